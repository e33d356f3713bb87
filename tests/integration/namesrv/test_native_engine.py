"""The native engine. Bad events end their own calls, a failed engine all; requests may be large, but not too large."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from grpc_health.v1.health_pb2 import HealthCheckRequest
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_api.v1.registration_service_pb2 import BrokerHeartbeatRequest
from namesrv_api.v1.registration_service_pb2_grpc import RegistrationServiceStub
from namesrv_api.v1.route_service_pb2_grpc import RouteServiceStub
from structlog.testing import capture_logs

from namesrv.core.tables import varint
from namesrv.engines.api import EngineFailed
from namesrv.grpc_api.handlers import PIECE_BYTES
from namesrv.limits import MAX_MESSAGE_BYTES, MAX_REGISTRATION_BYTES
from namesrv.server.listeners import build_server
from namesrv.server.server import NamesrvServer
from namesrv.settings import NamesrvSettings
from tests.support.core_fleet import Fleet
from tests.support.engines import LEFT_OUT
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Client, eventually
from tests.support.registrations import identity, registration

pytest.importorskip("namesrv_engine", reason=LEFT_OUT)

import namesrv_engine
from namesrv_engine import FAILED, NOTICE, STOPPED

from namesrv.engines.native import NativeServer

SECONDS = 30.0
REQUEST = pb.GetTopicRouteRequest(topic="TopicTest").SerializeToString()
KEPT = "namesrv_api.v1.RouteService/GetTopicRoute"
FLAGS = {"listen": "127.0.0.1:0", "engine": "native", "warm_up_millis": 0, "shutdown_grace_millis": 100}


def _handler(answer: Callable[[bytes, Any], Awaitable[object]], has_room: Callable[[], bool] | None = None) -> Any:
    """A handler of unary calls that are in no contract."""
    return SimpleNamespace(answer=answer, has_room=has_room, request_streaming=False, response_streaming=False)


class _Server:
    """A server of the native engine. ``hold`` keeps its event loop busy until three further calls have come."""

    def __init__(self) -> None:
        server = build_server(NamesrvSettings.load(None, FLAGS))
        assert isinstance(server, NativeServer)
        self.server = server
        self.broken = 0
        """Calls of the broken handler."""
        self.has_room = True
        """Whether calls of Known have a share."""
        self.holds = threading.Event()

        async def hold(request: bytes, _context: object) -> bytes:
            self.holds.set()
            eventually(lambda: server.stats()["calls_under_way"] == 4)
            return request

        async def answer(request: bytes, _context: object) -> bytes:
            return request

        async def fail(_request: bytes, _context: object) -> bytes:
            raise ValueError("a defect")

        async def answer_what_is_no_message(request: bytes, _context: object) -> str:
            return "no bytes"

        async def break_when_it_may_be_kept(request: bytes, context: Any) -> bytes:
            self.broken += 1
            context.may_keep(pb.GetTopicRouteRequest.FromString(request), ["TopicTest"])
            raise ValueError

        async def break_when_it_comes_again(request: bytes, context: Any) -> bytes:
            context.may_repeat(lambda: "no bytes")
            return request

        async def answer_and_be_known(request: bytes, context: Any) -> bytes:
            context.may_repeat(lambda: b"again")
            return request

        handlers = {
            "Hold": _handler(hold, has_room=lambda: True),
            "Broken": _handler(fail, has_room=lambda: True),
            "BrokenAnswer": _handler(answer_what_is_no_message),
            "Fine": _handler(answer),
            "Again": _handler(break_when_it_comes_again, has_room=lambda: True),
            "Known": _handler(answer_and_be_known, has_room=lambda: self.has_room),
        }
        self.server.add_handlers("test", handlers)
        service, name = KEPT.split("/")
        self.server.add_handlers(service, {name: _handler(break_when_it_may_be_kept)})
        self.server.keep_answers_of(Fleet().state, follows_traces=False)
        self.port = self.server.listen("127.0.0.1:0", [])


Calls = Callable[..., Awaitable[bytes]]


@asynccontextmanager
async def connected(server: _Server) -> AsyncIterator[Calls]:
    await server.server.start()
    # The server's loop is blocked on purpose, so that the client has a thread and a loop of its own.
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as connection:

        def call(name: str, after: threading.Event | None = None) -> Awaitable[bytes]:
            path = name if "/" in name else f"test/{name}"

            def answer() -> bytes:
                assert after is None or after.wait(SECONDS)
                return bytes(connection.unary_unary(f"/{path}", None, None)(REQUEST, timeout=SECONDS))

            return asyncio.to_thread(answer)

        try:
            yield call
        finally:
            await server.server.stop(0.1)


async def test_an_event_that_fails_ends_its_call_and_no_other_of_its_batch() -> None:
    with capture_logs() as lines:
        async with connected(server := _Server()) as call:
            others = [call(name, server.holds) for name in ("Broken", "BrokenAnswer", "Fine")]
            held, *broken, fine = await asyncio.gather(call("Hold"), *others, return_exceptions=True)
            await asyncio.to_thread(eventually, lambda: server.server.stats()["calls_under_way"] == 0)
    assert (held, fine) == (REQUEST, REQUEST)
    assert [isinstance(error, grpc.RpcError) and error.code() for error in broken] == [grpc.StatusCode.INTERNAL] * 2
    assert [line["event"] for line in lines if line.get("exc_info")] == ["handler_failed"] * 2


async def test_an_internal_error_is_kept_for_nobody() -> None:
    async with connected(server := _Server()) as call:
        for _ in range(2):
            with pytest.raises(grpc.RpcError):
                await call(KEPT)
    assert server.broken == 2


async def test_calls_that_come_again_are_answered_although_one_cannot_be() -> None:
    async with connected(_Server()) as call:
        answers = [await call("Again"), *await asyncio.gather(call("Again"), call("Again"))]
    assert answers == [REQUEST] * 3


async def test_calls_that_come_again_are_looked_at_while_their_kind_is_full() -> None:
    async with connected(server := _Server()) as call:
        assert [await call("Known"), await call("Known")] == [REQUEST, b"again"]
        server.has_room = False
        assert await call("Known") == REQUEST


class _Engine:
    """The real engine, with a malformed event before its first batch and ``news`` after the next one."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._malformed: list[tuple[int, int, Any]] = [(NOTICE, 0, None)]
        self.news: list[tuple[int, int, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def take(self) -> list[tuple[int, int, Any]]:
        events = [*self._malformed, *self._engine.take(), *self.news]
        self._malformed, self.news = [], []
        return events


@pytest.mark.parametrize(
    ("news", "cause"),
    [((FAILED, 0, "the thread worker-0 ended"), "the thread worker-0 ended"), ((STOPPED, 0, None), "all its threads")],
)
async def test_an_engine_that_fails_ends_the_name_server_with_its_cause(
    monkeypatch: pytest.MonkeyPatch, news: tuple[int, int, Any], cause: str
) -> None:
    make, made = namesrv_engine.Engine, list[_Engine]()

    def make_engine(*methods: Any, **options: Any) -> _Engine:
        made.append(_Engine(make(*methods, **options)))
        return made[0]

    monkeypatch.setattr("namesrv_engine.Engine", make_engine)
    with capture_logs() as lines:
        server = NamesrvServer(NamesrvSettings.load(None, FLAGS), None)
        running = asyncio.create_task(server.run(asyncio.Event()))
        async with grpc.aio.insecure_channel(str(server.endpoint)) as connection:
            look_up = RouteServiceStub(connection).GetTopicRoute
            with pytest.raises(grpc.aio.AioRpcError) as answered:
                await look_up(pb.GetTopicRouteRequest(topic="x"), timeout=SECONDS)
            assert answered.value.code() is grpc.StatusCode.NOT_FOUND, "in spite of the malformed event before it"
            made[0].news = [news]
            # Its arrival has the event loop take the news; the failure may come before its answer.
            with pytest.raises(grpc.aio.AioRpcError):
                await look_up(pb.GetTopicRouteRequest(topic="y"), timeout=SECONDS)
            with pytest.raises(BaseExceptionGroup) as caught:
                await asyncio.wait_for(running, SECONDS)
    (failure,) = caught.value.exceptions
    assert isinstance(failure, EngineFailed)
    assert cause in str(failure)
    (stopped,) = [line for line in lines if line["event"] == "engine_stopped"]
    assert cause in stopped["problem"]
    assert "namesrv_stopped" in [line["event"] for line in lines]


async def test_a_registration_and_a_watch_of_many_topics_are_parsed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [f"topic-{number:06}" for number in range(8_000)]
    begun, end_of_piece = list[int](), namesrv_engine.end_of_piece

    def noted(request: bytes, begin: int, *of_piece: int) -> int:
        begun.append(begin)
        end: int = end_of_piece(request, begin, *of_piece)
        return end

    monkeypatch.setattr("namesrv.engines.native.end_of_piece", noted)
    server, stop = NamesrvServer(NamesrvSettings.load(None, FLAGS), None), asyncio.Event()
    running = asyncio.create_task(server.run(stop))
    async with asyncio.timeout(SECONDS), grpc.aio.insecure_channel(str(server.endpoint)) as connection:
        register = RegistrationServiceStub(connection).RegisterBroker
        assert (await register(registration(topics), wait_for_ready=True)).changed
        told = 0
        watch: Any = RouteServiceStub(connection).WatchTopicRoutes(iter([pb.WatchTopicRoutesRequest(topics=topics)]))
        while told < len(topics):
            told += len((await watch.read()).changes)
    stop.set()
    await asyncio.wait_for(running, SECONDS)
    firsts = [index for index, begin in enumerate(begun) if begin == 0]
    assert len(firsts) == 2
    for first, after in zip(firsts, [*firsts[1:], len(begun)], strict=True):
        assert after - first >= len("".join(topics)) // PIECE_BYTES


REGISTER_BROKER = "/namesrv_api.v1.RegistrationService/RegisterBroker"
HEARTBEAT = "/namesrv_api.v1.RegistrationService/BrokerHeartbeat"

UNKNOWN_TAG = b"\x82\x7d"
"""Field 2,000, length-delimited: what readers of a message pass over."""


def padded(request: Message, size: int) -> bytes:
    """The encoding of a request, filled up to a size by a field that nobody knows, again and again."""
    encoded = request.SerializeToString()
    while left := size - len(encoded):
        length = min(left, 1_000_000) - len(UNKNOWN_TAG) - 3  # three bytes tell a length of 16 KiB to 2 MiB
        encoded += UNKNOWN_TAG + varint(length) + bytes(length)
    return encoded


@pytest.mark.parametrize(
    ("path", "message", "limit"),
    [
        (REGISTER_BROKER, registration(["Large"], counter=2), MAX_REGISTRATION_BYTES),
        (HEARTBEAT, BrokerHeartbeatRequest(broker=identity()), MAX_MESSAGE_BYTES),
        ("/grpc.health.v1.Health/Check", HealthCheckRequest(), MAX_MESSAGE_BYTES),
    ],
)
def test_a_request_may_have_so_many_bytes_and_not_one_more(
    client: Client, path: str, message: Message, limit: int
) -> None:
    client.registration.RegisterBroker(registration(), timeout=TIMEOUT)
    error = client.failure(path, padded(message, limit + 1))
    assert error.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"{limit + 1} vs. {limit}" in error.message
    assert client.route("Large") is None
    client.connection.unary_unary(path, None, None)(padded(message, limit), timeout=TIMEOUT)
    assert (client.route("Large") is not None) == (path == REGISTER_BROKER)
