"""How each reason of the name server comes about: servers in this process, and the calls that they refuse."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, NoReturn

import grpc
import pytest
from google.protobuf.message import Message
from namesrv_api.v1 import admin_service_pb2 as admin
from namesrv_api.v1 import registration_service_pb2 as registrations
from namesrv_api.v1 import route_service_pb2 as routes

from groundwork.grpc_errors import RichError
from namesrv import limits
from namesrv.core.changes import MAX_CHANGE_ROWS, ChangeLog
from namesrv.grpc_api.handlers import handlers_of_server
from namesrv.grpc_api.route import StatusCalls
from namesrv.server.listener import ROUTE_SERVICE, SERVICES
from namesrv.server.server import NamesrvServer
from namesrv.settings import NamesrvSettings
from namesrv.storage import database
from tests.support.engines import require_native
from tests.support.partial_services import whole
from tests.support.registrations import data_version, identity, registration
from tests.support.secured.fleet import TOKENS, permits

SECONDS = 20.0
"""A deadline that no test waits for."""

Errors = Sequence[RichError]
Case = Callable[[Path, pytest.MonkeyPatch], Coroutine[Any, Any, Errors]]


class Caller:
    """Calls name servers by the names of their calls."""

    def __init__(self, connection: grpc.aio.Channel) -> None:
        self.connection = connection

    async def call(self, name: str, request: Message | bytes, token: str | None = None) -> Any:
        """Makes a call to its end. Raises grpc.aio.AioRpcError."""
        metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        sent = request if isinstance(request, bytes) else request.SerializeToString()
        (method,) = [service.methods_by_name[name] for service in SERVICES if name in service.methods_by_name]
        path = f"/{method.containing_service.full_name}/{name}"
        if method.server_streaming:
            stream = self.connection.unary_stream(path, None, None)(sent, timeout=SECONDS, metadata=metadata)
            return [message async for message in stream]
        return await self.connection.unary_unary(path, None, None)(sent, timeout=SECONDS, metadata=metadata)

    async def refused(self, name: str, request: Message | bytes, token: str | None = None) -> RichError:
        """The error of a call."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.call(name, request, token)
        return RichError.of(caught.value)

    async def all_refused(self, *calls: tuple[str, Message | bytes]) -> Errors:
        """The errors of calls, one after the other."""
        return [await self.refused(name, request) for name, request in calls]


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[tuple[Caller, asyncio.Event, str]]:
    """A name server, warm from the start unless said otherwise; the event stops it, the text is where it listens."""
    require_native()
    flags = {"listen": "127.0.0.1:0", "warm_up_millis": 0, "shutdown_grace_millis": 100, **settings}
    loaded = NamesrvSettings.load(None, flags)
    durable = database.Database(loaded.data_dir) if loaded.data_dir else None
    server = NamesrvServer(loaded, durable)
    stop = asyncio.Event()
    running = asyncio.create_task(server.run(stop))
    try:
        async with grpc.aio.insecure_channel(str(server.endpoint)) as connection:
            yield Caller(connection), stop, str(server.endpoint)
    finally:
        stop.set()
        await asyncio.wait_for(running, SECONDS)


@asynccontextmanager
async def answering(part: object, slow_reader_seconds: float = SECONDS) -> AsyncIterator[Caller]:
    """A server of whose RouteService a test answers some calls."""
    server = grpc.aio.server()
    handlers_of_server(slow_reader_seconds).add_service(server, ROUTE_SERVICE, whole(ROUTE_SERVICE, part))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    options = [("grpc.http2.bdp_probe", 0)]  # a client that reads nothing would buffer some megabytes otherwise
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as connection:
        yield Caller(connection)
    await server.stop(0)


def refused_with(bounds: dict[str, int], *calls: tuple[str, Message | bytes]) -> Case:
    """Calls that a name server with these bounds refuses."""

    async def case(_path: Path, monkeypatch: pytest.MonkeyPatch) -> Errors:
        for name, most in bounds.items():
            monkeypatch.setattr(limits, name, most)
        async with serving() as (caller, _, _):
            return await caller.all_refused(*calls)

    return case


def refused(*calls: tuple[str, Message | bytes], **settings: Any) -> Case:
    """Calls that a name server with these settings refuses."""

    async def case(_path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
        async with serving(**settings) as (caller, _, _):
            return await caller.all_refused(*calls)

    return case


async def _channel_gone(_path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
    async with serving() as (caller, _, _):
        return await caller.all_refused(
            ("HandOverChannel", registrations.HandOverChannelRequest(channel_id="c")),
            ("RegisterBroker", registration(channel_id="c")),
        )


async def _shutting_down(_path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
    async with serving() as (caller, stop, _):
        request = routes.WatchTopicRoutesRequest(topics=["TopicTest"])
        watch = asyncio.create_task(caller.refused("WatchTopicRoutes", request))
        listed = admin.ListWatchersResponse()
        while not listed.watchers:
            listed.ParseFromString(await caller.call("ListWatchers", b""))
        stop.set()
        return [await watch]


async def _watch_expired(_path: Path, monkeypatch: pytest.MonkeyPatch) -> Errors:
    monkeypatch.setattr(limits, "MAX_WATCH_SECONDS", 0.1)
    async with serving() as (caller, _, _):
        return await caller.all_refused(("WatchTopicRoutes", routes.WatchTopicRoutesRequest(topics=["TopicTest"])))


async def _overloaded(_path: Path, monkeypatch: pytest.MonkeyPatch) -> Errors:
    monkeypatch.setattr(limits, "MAX_SNAPSHOT_STREAMS", 0)
    async with serving() as (caller, _, _):
        return await caller.all_refused(("StreamRouteSnapshot", b""))


async def _not_implemented(_path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
    class OlderVersion:
        """Has one call."""

        async def GetTopicRoute(self, _request: routes.GetTopicRouteRequest, _context: Any) -> bytes:  # noqa: N802
            return b""

    async with answering(OlderVersion()) as caller:
        return await caller.all_refused(
            ("GetNamesrvStatus", b""),
            ("WatchTopicRoutes", b""),
        )


async def _internal_defect(_path: Path, monkeypatch: pytest.MonkeyPatch) -> Errors:
    async def fail(*_: Any) -> NoReturn:
        raise RuntimeError("a defect")

    monkeypatch.setattr(StatusCalls, "GetNamesrvStatus", fail)
    async with serving() as (caller, _, _):
        return await caller.all_refused(("GetNamesrvStatus", b""))


async def _after(point: routes.ResumePoint, *before: registrations.RegisterBrokerRequest) -> Errors:
    async with serving() as (caller, _, _):
        for request in before:
            await caller.call("RegisterBroker", request)
        status = routes.GetNamesrvStatusResponse.FromString(await caller.call("GetNamesrvStatus", b""))
        after = routes.ResumePoint(epoch=status.header.epoch, revision=0)
        after.MergeFrom(point)
        return await caller.all_refused(
            ("StreamRouteChanges", routes.StreamRouteChangesRequest(after=after)),
            ("StreamRouteSnapshot", routes.StreamRouteSnapshotRequest(follow=True, resume_after=after)),
        )


async def _revision_compacted(_path: Path, monkeypatch: pytest.MonkeyPatch) -> Errors:
    monkeypatch.setattr(ChangeLog.__init__, "__defaults__", (1, MAX_CHANGE_ROWS))
    point = routes.ResumePoint(revision=0)
    return await _after(point, registration(counter=1), registration(["T1"], counter=2))


async def _revision_not_reached(_path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
    return await _after(routes.ResumePoint(revision=99))


async def _epoch_changed(_path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
    return await _after(routes.ResumePoint(epoch="another"))


async def _slow_reader(_path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
    ended = asyncio.Event()

    class Flood:
        """Sends what nobody reads."""

        async def WatchTopicRoutes(self, _request: Any, _context: Any) -> AsyncIterator[bytes]:  # noqa: N802
            try:
                while True:
                    yield bytes(1_000_000)
            finally:
                ended.set()

    async with answering(Flood(), slow_reader_seconds=0.1) as caller:
        stream = caller.connection.unary_stream("/namesrv_api.v1.RouteService/WatchTopicRoutes", None, None)
        call = stream(b"", timeout=SECONDS)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _read_late(call, ended)
        return [RichError.of(caught.value)]


async def _read_late(call: Any, ended: asyncio.Event) -> None:
    """Reads on only after the sender's end. On a busy machine the first message may come too late already."""
    await anext(aiter(call))
    await asyncio.wait_for(ended.wait(), SECONDS)
    async for _ in call:
        pass


async def _stale_state_version(_path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
    new, old = registration(broker=identity("127.0.0.1:2")), registration(broker=identity("127.0.0.1:1"))
    new.data_version.state_version = 2
    old.data_version.state_version = 1
    async with serving() as (caller, _, _):
        await caller.call("RegisterBroker", new)
        return await caller.all_refused(("RegisterBroker", old))


async def _need_full_registration(_path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
    increment = registration()
    increment.base_version.CopyFrom(data_version(counter=7))
    async with serving() as (caller, _, _):
        unknown = await caller.refused("RegisterBroker", increment)
        await caller.call("RegisterBroker", registration())
        return [unknown, await caller.refused("RegisterBroker", increment)]


async def _not_durable(path: Path, monkeypatch: pytest.MonkeyPatch) -> Errors:
    monkeypatch.setattr(database, "LOCK_SECONDS", 0.1)
    async with serving(data_dir=path) as (caller, _, _):
        with closing(sqlite3.connect(path / database.DATABASE_FILE, isolation_level=None)) as another:
            another.execute("BEGIN IMMEDIATE")
            put = admin.PutKvConfigRequest(namespace="n", key="k", value="v")
            refused_changes = await caller.all_refused(("PutKvConfig", put))
        (path / database.DATABASE_FILE).rename(path / "elsewhere")  # a read opens the file again
        return [*refused_changes, await caller.refused("ListAuditEntries", b"")]


async def _with_permits(path: Path, calls: Callable[[Caller], Awaitable[Errors]]) -> Errors:
    file = path / "permits.json"
    file.write_text(json.dumps(permits()))
    async with serving(permits_file=file) as (caller, _, _):
        return await calls(caller)


async def _not_authenticated(path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
    return await _with_permits(path, lambda caller: caller.all_refused(("GetNamesrvStatus", b"")))


async def _not_permitted(path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
    async def calls(caller: Caller) -> Errors:
        other = registration(broker=identity(name="broker-b"))
        return [
            await caller.refused("ListIntents", b"", TOKENS["client"]),
            await caller.refused("RegisterBroker", other, TOKENS["broker"]),
        ]

    return await _with_permits(path, calls)


EXPECTED = admin.KvExpectation(value="another")
WRONG_CHECKSUM = registration()
WRONG_CHECKSUM.body_crc32 = 1


async def _topics_in_use(_path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
    async with serving() as (caller, _, _):
        await caller.call("RegisterBroker", registration())
        return await caller.all_refused(("DeleteTopic", admin.DeleteTopicRequest(topic="TopicTest")))


NAME_SERVER_CASES: dict[str, Case] = {
    "MALFORMED_REQUEST": refused(("GetTopicRoute", b"\xff"), ("WatchTopicRoutes", b"\xff")),
    "INVALID_FIELD": refused(
        ("GetTopicRoute", b""),
        ("BatchGetTopicRoutes", b""),
        ("RegisterBroker", b""),
        ("WatchTopicRoutes", b""),
        ("ExplainTopicRoute", b""),
    ),
    "LIMIT_EXCEEDED": refused_with(
        {"MAX_CHANNELS": 0},
        ("OpenChannel", b""),
        ("BatchGetTopicRoutes", routes.BatchGetTopicRoutesRequest(topics=["T"] * (limits.MAX_BATCH_TOPICS + 1))),
        ("WatchTopicRoutes", routes.WatchTopicRoutesRequest(topic_prefixes=["p"] * (limits.MAX_WATCH_PREFIXES + 1))),
    ),
    "TOPIC_NOT_FOUND": refused(
        ("GetTopicRoute", routes.GetTopicRouteRequest(topic="T")),
        ("DeleteTopic", admin.DeleteTopicRequest(topic="T", cluster_name="c")),
    ),
    "TOPICS_IN_USE": _topics_in_use,
    "BROKER_NOT_REGISTERED": refused(
        ("BrokerHeartbeat", registrations.BrokerHeartbeatRequest(broker=identity())),
        ("WipeWritePermOfBroker", admin.WipeWritePermOfBrokerRequest(broker_name="b", validate_only=True)),
        (
            "AddWritePermOfBroker",
            admin.AddWritePermOfBrokerRequest(broker_name="b", validate_only=True),
        ),
    ),
    "CHANNEL_GONE": _channel_gone,
    "NEED_FULL_REGISTRATION": _need_full_registration,
    "REGISTRY_WARMING": refused(("GetTopicRoute", routes.GetTopicRouteRequest(topic="T")), warm_up_millis=600_000),
    "SHUTTING_DOWN": _shutting_down,
    "OVERLOADED": _overloaded,
    "NOT_IMPLEMENTED": _not_implemented,
    "INTERNAL_DEFECT": _internal_defect,
    "REVISION_COMPACTED": _revision_compacted,
    "REVISION_NOT_REACHED": _revision_not_reached,
    "EPOCH_CHANGED": _epoch_changed,
    "SNAPSHOT_GONE": refused(("StreamRouteSnapshot", routes.StreamRouteSnapshotRequest(pin_id="p"))),
    "SLOW_READER": _slow_reader,
    "CRC32_NOT_MATCH": refused(("RegisterBroker", WRONG_CHECKSUM)),
    "NO_DATA_DIR": refused(
        ("PutKvConfig", admin.PutKvConfigRequest(namespace="n", key="k", value="v")),
        ("UpdateNamesrvConfig", admin.UpdateNamesrvConfigRequest(values={"orderMessageEnable": "true"})),
    ),
    "NOT_DURABLE": _not_durable,
    "KV_NOT_FOUND": refused(
        ("GetKvConfig", admin.GetKvConfigRequest(namespace="n", key="k")),
        ("ListKvConfigs", admin.ListKvConfigsRequest(namespace="n")),
    ),
    "CONFLICT": refused(
        ("PutKvConfig", admin.PutKvConfigRequest(namespace="n", key="k", value="v", expected=EXPECTED)),
        ("DeleteKvConfig", admin.DeleteKvConfigRequest(namespace="n", key="k", expected=EXPECTED)),
    ),
    "CONFIG_KEY_DENIED": refused(
        ("UpdateNamesrvConfig", admin.UpdateNamesrvConfigRequest(values={"listen": "x"}, validate_only=True))
    ),
    "STALE_STATE_VERSION": _stale_state_version,
    "NOT_AUTHENTICATED": _not_authenticated,
    "NOT_PERMITTED": _not_permitted,
    "INTENT_NOT_FOUND": refused(
        ("ConfirmBrokerLoss", b""),
        ("ConfirmBrokerLoss", admin.ConfirmBrokerLossRequest(broker_name="b", cluster_name="c")),
        ("ReleaseTopicHold", admin.ReleaseTopicHoldRequest(topic="T", validate_only=True)),
        ("ReleaseTopicHold", admin.ReleaseTopicHoldRequest(topic="T", cluster_name="c", validate_only=True)),
    ),
    "PRODUCT_ENV_UNAVAILABLE": refused(
        ("GetTopicRoute", routes.GetTopicRouteRequest(topic="T")),
        product_env_namesrv="127.0.0.1:1",
    ),
    "WATCH_EXPIRED": _watch_expired,
}
"""How each reason comes about."""
