"""Calls of a name server, of each method, that end with what its comment promises."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from google.protobuf.message import Message
from namesrv_api.v1 import admin_service_pb2 as admin
from namesrv_api.v1 import registration_service_pb2 as registrations
from namesrv_api.v1 import route_data_pb2 as route_data
from namesrv_api.v1 import route_service_pb2 as routes

from namesrv import limits
from namesrv.app import operators
from namesrv.core.changes import MAX_CHANGE_ROWS, ChangeLog
from namesrv.storage import database
from tests.integration.error_reasons.from_name_servers import Caller, Case, Errors, refused, serving
from tests.support.promised_errors import promised
from tests.support.registrations import registration

NEGATIVE = -1
BAD_REQUESTS: dict[str, Message] = {
    "ConfirmBrokerLoss": admin.ConfirmBrokerLossRequest(cluster_name="c"),
    "ListAuditEntries": admin.ListAuditEntriesRequest(page_size=NEGATIVE),
    "ListIntents": admin.ListIntentsRequest(page_size=NEGATIVE),
    "ListKvConfigs": admin.ListKvConfigsRequest(page_size=NEGATIVE),
    "ListTopics": routes.ListTopicsRequest(page_size=NEGATIVE),
    "ListWatchers": admin.ListWatchersRequest(page_size=NEGATIVE),
    "GetBrokerClusterInfo": routes.GetBrokerClusterInfoRequest(page_size=NEGATIVE),
    "GetRouteDigest": routes.GetRouteDigestRequest(page_size=NEGATIVE),
    "OpenChannel": registrations.OpenChannelRequest(holder="x" * (limits.MAX_HOLDER_LENGTH + 1)),
    "PinRouteSnapshot": routes.PinRouteSnapshotRequest(lease_millis=NEGATIVE),
    "StreamRouteSnapshot": routes.StreamRouteSnapshotRequest(resume_after=routes.ResumePoint()),
}
"""A bad request of each method that takes an empty one."""

CHANGES: tuple[tuple[str, Message], ...] = (
    ("PutKvConfig", admin.PutKvConfigRequest(namespace="n", key="other", value="v")),
    ("DeleteKvConfig", admin.DeleteKvConfigRequest(namespace="n", key="k")),
    ("WipeWritePermOfBroker", admin.WipeWritePermOfBrokerRequest(force=True, broker_name="broker-a")),
    ("AddWritePermOfBroker", admin.AddWritePermOfBrokerRequest(broker_name="broker-a")),
    ("DeleteTopic", admin.DeleteTopicRequest(force=True, topic="TopicTest", hold=True)),
    ("ReleaseTopicHold", admin.ReleaseTopicHoldRequest(topic="Held")),
    ("UpdateNamesrvConfig", admin.UpdateNamesrvConfigRequest(values={"orderMessageEnable": "true"})),
)
"""Changes that must be durable, on a name server that has had ``BEFORE``."""
BEFORE: tuple[tuple[str, Message], ...] = (
    ("PutKvConfig", admin.PutKvConfigRequest(namespace="n", key="k", value="v")),
    ("DeleteTopic", admin.DeleteTopicRequest(force=True, topic="Held", hold=True)),
)
REGISTERED = ("TopicTest", "Held")


def _bad_requests() -> Case:
    calls = [
        (name.rpartition(".")[2], BAD_REQUESTS.get(name.rpartition(".")[2], b""))
        for name, reasons in promised().items()
        if name.startswith("namesrv_") and "INVALID_FIELD" in reasons
    ]
    return refused(*calls)


async def _no_data_dir(_path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
    async with serving() as (caller, _, _):
        await caller.call("RegisterBroker", registration(REGISTERED))
        return await caller.all_refused(*[change for change in CHANGES if change[0] != "ReleaseTopicHold"])


async def _not_durable(path: Path, monkeypatch: pytest.MonkeyPatch) -> Errors:
    monkeypatch.setattr(database, "LOCK_SECONDS", 0.05)
    async with serving(data_dir=path) as (caller, _, _):
        await caller.call("RegisterBroker", registration(REGISTERED))
        for name, request in BEFORE:
            await caller.call(name, request)
        with closing(sqlite3.connect(path / database.DATABASE_FILE, isolation_level=None)) as another:
            another.execute("BEGIN IMMEDIATE")
            return await caller.all_refused(*CHANGES)


async def _unknown_group(_path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
    async with serving() as (caller, _, _):
        queues = route_data.QueueData(cluster_name="c", broker_name="b", read_queue_nums=1, write_queue_nums=1, perm=6)
        request = registrations.RegisterTopicRequest(topic="T", queue_datas=[queues])
        return await caller.all_refused(("RegisterTopic", request))


async def _too_many_intents(path: Path, monkeypatch: pytest.MonkeyPatch) -> Errors:
    monkeypatch.setattr(operators, "MAX_INTENTS", 0)
    async with serving(data_dir=path) as (caller, _, _):
        await caller.call("RegisterBroker", registration(REGISTERED))
        kept = {"WipeWritePermOfBroker", "AddWritePermOfBroker", "DeleteTopic"}
        return await caller.all_refused(*[change for change in CHANGES if change[0] in kept])


async def _in_use(path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
    async with serving(data_dir=path) as (caller, _, _):
        await caller.call("RegisterBroker", registration(REGISTERED))
        return await caller.all_refused(
            ("WipeWritePermOfBroker", admin.WipeWritePermOfBrokerRequest(broker_name="broker-a")),
            ("DeleteTopic", admin.DeleteTopicRequest(topic="TopicTest")),
        )


async def _resumed(caller: Caller, epoch: str, revision: int) -> Errors:
    point = routes.ResumePoint(epoch=epoch, revision=revision)
    return await caller.all_refused(
        ("WatchTopicRoutes", routes.WatchTopicRoutesRequest(topics=["T"], resume_after=point)),
        ("StreamRouteSnapshot", routes.StreamRouteSnapshotRequest(follow=True, resume_after=point)),
        ("StreamRouteChanges", routes.StreamRouteChangesRequest(after=point)),
    )


async def _wrong_points(_path: Path, monkeypatch: pytest.MonkeyPatch) -> Errors:
    monkeypatch.setattr(ChangeLog.__init__, "__defaults__", (1, MAX_CHANGE_ROWS))
    async with serving() as (caller, _, _):
        await caller.call("RegisterBroker", registration(counter=1))
        await caller.call("RegisterBroker", registration(["T"], counter=2))
        status = routes.GetNamesrvStatusResponse.FromString(await caller.call("GetNamesrvStatus", b""))
        epoch = status.header.epoch
        return [
            *await _resumed(caller, "another", 0),
            *await _resumed(caller, epoch, 0),
            *await _resumed(caller, epoch, 99),
        ]


async def _further_limits(_path: Path, monkeypatch: pytest.MonkeyPatch) -> Errors:
    monkeypatch.setattr(limits, "MAX_EXPLANATIONS", 0)
    async with serving() as (caller, _, _):
        await caller.call("RegisterBroker", registration(REGISTERED))
        return await caller.all_refused(
            ("ExplainTopicRoute", admin.ExplainTopicRouteRequest(topic="TopicTest")),
        )


EACH_CALL: tuple[Case, ...] = (
    _bad_requests(),
    _no_data_dir,
    _not_durable,
    _unknown_group,
    _too_many_intents,
    _in_use,
    _wrong_points,
    _further_limits,
)
"""Further ways in which reasons come about."""
