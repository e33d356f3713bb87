"""How each reason of the name server comes about: servers in this process, and the calls that they refuse."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn, cast

import grpc
import pytest
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from namesrv_api.v1 import admin_service_pb2 as admin
from namesrv_api.v1 import route_data_pb2 as route_data
from namesrv_api.v1 import route_service_pb2 as routes

from namesrv import limits
from namesrv.core.changes import MAX_CHANGE_ROWS, ChangeLog
from namesrv.core.errors import Reason, Refused
from namesrv.error_codes import FAILURES
from namesrv.grpc_api.route import TableCalls
from namesrv.server.server import SERVICES, NamesrvServer
from namesrv.settings import NamesrvSettings
from namesrv.storage import database
from namesrv_common.grpc_errors import PUSHBACK_KEY, RichError
from tests.support.engines import require_native
from tests.support.fakes.busy_database import held_by_another
from tests.support.promised_errors import promised
from tests.support.registrations import data_version, identity, registration
from tests.support.secured.fleet import TOKENS, permits

SECONDS = 20.0
"""A deadline that no test waits for."""

Errors = Sequence[RichError]
Request = Message | bytes | Sequence[Message] | dict[str, Any] | Callable[[str], dict[str, Any]]
"""What a call sends, or the fields of it; a function makes them of the name server's epoch."""
Call = tuple[str, Request] | tuple[str, Request, str | None]
"""The name of a call, its request, and perhaps the token that it shows."""
Case = Callable[[Path, pytest.MonkeyPatch], Coroutine[Any, Any, Errors]]
Patch = tuple[object, str, object] | tuple[()]
"""What has an attribute, its name, and the value that it has in the meantime, if there is one."""


async def error_of(call: Awaitable[object]) -> RichError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error, trailers = RichError.of(caught.value), cast("Any", caught.value.trailing_metadata())
    pushback = None if error.pushback_millis is None else str(error.pushback_millis)
    assert dict(trailers).get(PUSHBACK_KEY) == pushback, "what gRPC itself reads"
    return error


async def all_of(answers: AsyncIterable[Any]) -> list[Any]:
    return [answer async for answer in answers]


class Caller:
    """Calls name servers, or agents, by the names of their calls."""

    def __init__(self, connection: grpc.aio.Channel, services: Sequence[ServiceDescriptor] = SERVICES) -> None:
        self.connection = connection
        self._services = services

    def begin(self, name: str, request: Request, token: str | None = None) -> Any:
        """Begins a call: an awaitable of its answer, or an iterator of its answers."""
        metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        (method,) = [of.methods_by_name[name] for of in self._services if name in of.methods_by_name]
        if isinstance(request, dict):
            request = GetMessageClass(method.input_type)(**request)
        make: Any = self.connection.unary_stream if method.server_streaming else self.connection.unary_unary
        sent: object = request.SerializeToString() if isinstance(request, Message) else request
        if isinstance(request, list):
            make, sent = self.connection.stream_stream, (one.SerializeToString() for one in request)
        call = make(f"/{method.containing_service.full_name}/{name}", None, None)
        return call(sent, timeout=SECONDS, metadata=metadata)

    async def call(self, name: str, request: Request, token: str | None = None) -> Any:
        """Makes a call to its end. Raises grpc.aio.AioRpcError."""
        if callable(request):
            status = routes.GetNamesrvStatusResponse.FromString(await self.call("GetNamesrvStatus", b""))
            request = request(status.header.epoch)
        begun = self.begin(name, request, token)
        return await (all_of(begun) if isinstance(begun, AsyncIterable) else begun)

    async def refused(self, *calls: Call) -> Errors:
        """The errors of calls, one after the other."""
        return [await error_of(self.call(*call)) for call in calls]


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Caller]:
    """A name server, warm from the start unless said otherwise."""
    require_native()
    flags = {"listen": "127.0.0.1:0", "warm_up_millis": 0, "shutdown_grace_millis": 100, **settings}
    loaded = NamesrvSettings.load(None, flags)
    server = NamesrvServer(loaded, database.Database(loaded.data_dir) if loaded.data_dir else None)
    stop = asyncio.Event()
    running = asyncio.create_task(server.run(stop))
    try:
        async with grpc.aio.insecure_channel(str(server.endpoint)) as connection:
            yield Caller(connection)
    finally:
        stop.set()
        await asyncio.wait_for(running, SECONDS)


def refused(
    *calls: Call,
    after: Iterable[Call] = (),
    patch: Patch = (),
    locked: bool = False,
    with_permits: bool = False,
    **settings: Any,
) -> Case:
    """Calls that a name server refuses after it has answered others.

    Args:
        calls: What it refuses.
        after: What it answers before.
        patch: Of a limit or the like.
        locked: Whether another program holds the database in the meantime.
        with_permits: Whether it asks who calls.
        settings: Of the name server.
    """

    async def case(path: Path, monkeypatch: pytest.MonkeyPatch) -> Errors:
        if patch:
            monkeypatch.setattr(*patch)
        given = {"data_dir": path, **settings}
        if with_permits:
            given["permits_file"] = path / "permits.json"
            given["permits_file"].write_text(json.dumps(permits()))
        async with serving(**given) as caller:
            for call in after:
                await caller.call(*call)
            with held_by_another(path) if locked else nullcontext():
                return await caller.refused(*calls)

    return case


def made(error: Refused) -> Case:
    """An error that other tests show at a name server, or that only another version sends."""

    async def case(*_: Any) -> Errors:
        return [FAILURES.rich(error)]

    return case


async def _unreadable(path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
    async with serving(data_dir=path) as caller:
        (path / database.DATABASE_FILE).rename(path / "elsewhere")  # a read opens the file again
        return await caller.refused(("ListAuditEntries", b""))


async def _fail(*_: Any) -> NoReturn:
    raise RuntimeError("a defect")


def _resumed(revision: int, epoch: str | None = None) -> tuple[Call, ...]:
    """Each call that continues after a point; the epoch is the name server's unless said otherwise."""

    def after(own: str) -> routes.ResumePoint:
        return routes.ResumePoint(epoch=epoch or own, revision=revision)

    return (
        ("WatchTopicRoutes", lambda own: {"topics": ["T"], "resume_after": after(own)}),
        ("StreamRouteSnapshot", lambda own: {"follow": True, "resume_after": after(own)}),
        ("StreamRouteChanges", lambda own: {"after": after(own)}),
    )


WRONG_CHECKSUM, INCREMENT = registration(), registration()
WRONG_CHECKSUM.body_crc32 = 1
INCREMENT.base_version.CopyFrom(data_version(counter=7))
NEW, OLD = registration(broker=identity("127.0.0.1:2")), registration(broker=identity("127.0.0.1:1"))
NEW.data_version.state_version, OLD.data_version.state_version = 2, 1

NEGATIVE = -1
PAGED = (
    *("ListAuditEntries", "ListIntents", "ListKvConfigs", "ListTopics", "ListWatchers"),
    *("GetBrokerClusterInfo", "GetRouteDigest"),
)
EMPTY_IS_GOOD: dict[str, Request] = {
    "ConfirmBrokerLoss": {"cluster_name": "c"},
    **{name: {"page_size": NEGATIVE} for name in PAGED},
    "OpenChannel": {"holder": "x" * (limits.MAX_HOLDER_LENGTH + 1)},
    "PinRouteSnapshot": {"lease_millis": NEGATIVE},
    "StreamRouteSnapshot": {"resume_after": routes.ResumePoint()},
}
"""A bad request of each call that takes an empty one."""
CHECKED = [
    name.rpartition(".")[2]
    for name, reasons in promised().items()
    if name.startswith("namesrv_") and "INVALID_FIELD" in reasons
]
"""Calls that look at their request."""

TWO_BEGINNINGS: Call = (
    "StreamRouteSnapshot",
    {"follow": True, "resume_after": routes.ResumePoint(epoch="e"), "pin_id": "p"},
)
REFUSED_LATER: Call = (
    "WatchTopicRoutes",
    [routes.WatchTopicRoutesRequest(topics=["T"]), routes.WatchTopicRoutesRequest(zone_name="z")],
)
REGISTERED: Call = ("RegisterBroker", registration(("TopicTest", "Held")))
PUT: Call = ("PutKvConfig", {"namespace": "n", "key": "k", "value": "v"})
HOLD: Call = ("DeleteTopic", {"force": True, "topic": "Held", "hold": True})
OF_GROUPS: tuple[Call, ...] = (
    ("WipeWritePermOfBroker", {"force": True, "broker_name": "broker-a"}),
    ("AddWritePermOfBroker", {"broker_name": "broker-a"}),
    ("DeleteTopic", {"force": True, "topic": "TopicTest", "hold": True}),
)
CHANGES: tuple[Call, ...] = (
    *OF_GROUPS,
    ("PutKvConfig", {"namespace": "n", "key": "other", "value": "v"}),
    ("DeleteKvConfig", {"namespace": "n", "key": "k"}),
    ("UpdateNamesrvConfig", {"values": {"orderMessageEnable": "true"}}),
)
"""Changes that must be durable."""
RELEASE: Call = ("ReleaseTopicHold", {"topic": "Held"})
EXPECTED = admin.KvExpectation(value="another")
QUEUES = route_data.QueueData(cluster_name="c", broker_name="b", read_queue_nums=1, write_queue_nums=1, perm=6)

NAME_SERVER_CASES: dict[str, tuple[Case, ...]] = {
    "MALFORMED_REQUEST": (refused(("GetTopicRoute", b"\xff"), ("WatchTopicRoutes", b"\xff")),),
    "INVALID_FIELD": (
        refused(*[(name, EMPTY_IS_GOOD.get(name, b"")) for name in CHECKED], TWO_BEGINNINGS, REFUSED_LATER),
    ),
    "LIMIT_EXCEEDED": (
        refused(
            ("OpenChannel", b""),
            ("BatchGetTopicRoutes", {"topics": ["T"] * (limits.MAX_BATCH_TOPICS + 1)}),
            ("WatchTopicRoutes", {"topic_prefixes": ["p"] * (limits.MAX_WATCH_PREFIXES + 1)}),
            patch=(limits, "MAX_CHANNELS", 0),
        ),
        refused(*OF_GROUPS, after=[REGISTERED], patch=(limits, "MAX_INTENTS", 0)),
        refused(
            ("ExplainTopicRoute", {"topic": "TopicTest"}), after=[REGISTERED], patch=(limits, "MAX_EXPLANATIONS", 0)
        ),
    ),
    "TOPIC_NOT_FOUND": (
        refused(("GetTopicRoute", {"topic": "T"}), ("DeleteTopic", {"topic": "T", "cluster_name": "c"})),
    ),
    "TOPICS_IN_USE": (
        refused(
            ("WipeWritePermOfBroker", {"broker_name": "broker-a"}),
            ("DeleteTopic", {"topic": "TopicTest"}),
            after=[REGISTERED],
        ),
    ),
    "BROKER_NOT_REGISTERED": (
        refused(
            ("BrokerHeartbeat", {"broker": identity()}),
            ("WipeWritePermOfBroker", {"broker_name": "b", "validate_only": True}),
            ("AddWritePermOfBroker", {"broker_name": "b", "validate_only": True}),
            ("RegisterTopic", {"topic": "T", "queue_datas": [QUEUES]}),
        ),
    ),
    "CHANNEL_GONE": (
        refused(("HandOverChannel", {"channel_id": "c"}), ("RegisterBroker", registration(channel_id="c"))),
    ),
    "NEED_FULL_REGISTRATION": (
        refused(("RegisterBroker", INCREMENT)),
        refused(("RegisterBroker", INCREMENT), after=[REGISTERED]),
    ),
    "REGISTRY_WARMING": (refused(("GetTopicRoute", {"topic": "T"}), warm_up_millis=600_000),),
    "SHUTTING_DOWN": (made(FAILURES.shutting_down()),),
    "OVERLOADED": (refused(("StreamRouteSnapshot", b""), patch=(limits, "MAX_SNAPSHOT_STREAMS", 0)),),
    "NOT_IMPLEMENTED": (made(Refused(Reason.NOT_IMPLEMENTED, "not in this version", call="GetNamesrvStatus")),),
    "INTERNAL_DEFECT": (refused(("GetNamesrvStatus", b""), patch=(TableCalls, "GetNamesrvStatus", _fail)),),
    "REVISION_COMPACTED": (
        refused(
            *_resumed(0),
            after=[("RegisterBroker", registration(["T"], counter=number)) for number in (1, 2)],
            patch=(ChangeLog.__init__, "__defaults__", (1, MAX_CHANGE_ROWS)),
        ),
    ),
    "REVISION_NOT_REACHED": (refused(*_resumed(99)),),
    "EPOCH_CHANGED": (refused(*_resumed(0, "another")),),
    "SNAPSHOT_GONE": (refused(("StreamRouteSnapshot", {"pin_id": "p"})),),
    "SLOW_READER": (made(FAILURES.slow_reader(1.0)),),
    "CRC32_NOT_MATCH": (refused(("RegisterBroker", WRONG_CHECKSUM)),),
    "NO_DATA_DIR": (refused(*CHANGES, after=[REGISTERED], data_dir=None),),
    "NOT_DURABLE": (
        refused(*CHANGES, RELEASE, after=[REGISTERED, PUT, HOLD], patch=(database, "LOCK_SECONDS", 0.05), locked=True),
        _unreadable,
    ),
    "KV_NOT_FOUND": (refused(("GetKvConfig", {"namespace": "n", "key": "k"}), ("ListKvConfigs", {"namespace": "n"})),),
    "CONFLICT": (
        refused(
            ("PutKvConfig", {"namespace": "n", "key": "k", "value": "v", "expected": EXPECTED}),
            ("DeleteKvConfig", {"namespace": "n", "key": "k", "expected": EXPECTED}),
        ),
    ),
    "CONFIG_KEY_DENIED": (refused(("UpdateNamesrvConfig", {"values": {"listen": "x"}, "validate_only": True})),),
    "STALE_STATE_VERSION": (refused(("RegisterBroker", OLD), after=[("RegisterBroker", NEW)]),),
    "NOT_AUTHENTICATED": (refused(("GetNamesrvStatus", b""), with_permits=True),),
    "NOT_PERMITTED": (
        refused(
            ("ListIntents", b"", TOKENS["client"]),
            ("RegisterBroker", registration(broker=identity(name="broker-b")), TOKENS["broker"]),
            with_permits=True,
        ),
    ),
    "INTENT_NOT_FOUND": (
        refused(
            ("ConfirmBrokerLoss", b""),
            ("ConfirmBrokerLoss", {"broker_name": "b", "cluster_name": "c"}),
            ("ReleaseTopicHold", {"topic": "T", "validate_only": True}),
            ("ReleaseTopicHold", {"topic": "T", "cluster_name": "c", "validate_only": True}),
        ),
    ),
    "PRODUCT_ENV_UNAVAILABLE": (refused(("GetTopicRoute", {"topic": "T"}), product_env_namesrv="127.0.0.1:1"),),
    "WATCH_EXPIRED": (
        refused(("WatchTopicRoutes", {"topics": ["TopicTest"]}), patch=(limits, "MAX_WATCH_SECONDS", 0.1)),
    ),
}
"""How each reason comes about."""
