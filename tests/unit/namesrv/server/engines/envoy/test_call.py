"""A call over ASGI: what is sent in which order, and how it ends. The server of ASGI is played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest

from namesrv.config.limits import MAX_MESSAGE_BYTES, MAX_METADATA_BYTES
from namesrv.server.engines.envoy.answering import run
from namesrv.server.engines.envoy.call import Call
from namesrv.server.engines.envoy.messages import framed

TE, TYPE = (b"te", b"trailers"), (b"content-type", b"application/grpc")
PATH = "/a.B/C"

Handling = Callable[[Any, Any], Awaitable[Any]]


class Http:
    """One request of HTTP, as pyvoy hands it over: events are taken when they are sent, and awaited to slow down."""

    def __init__(self, *body: bytes, headers: tuple[tuple[bytes, bytes], ...] = (TE, TYPE)) -> None:
        self.scope = {"path": PATH, "headers": list(headers), "client": ("127.0.0.1", 7)}
        self.sent: list[dict[str, Any]] = []
        self.taken: Callable[[], asyncio.Future[None]] | None = None
        self._body = list(body)

    def receive(self) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        if self._body:
            chunk = self._body.pop(0)
            future.set_result({"type": "http.request", "body": chunk, "more_body": bool(self._body)})
        else:
            future.set_result({"type": "http.disconnect"})
        return future

    def send(self, event: Any) -> asyncio.Future[None]:
        self.sent.append(dict(event))
        if self.taken is not None and event.get("more_body"):
            return self.taken()
        future = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    @property
    def messages(self) -> bytes:
        """All bytes of the answer."""
        return b"".join(event["body"] for event in self.sent if event["type"] == "http.response.body")

    @property
    def end(self) -> dict[bytes, bytes]:
        """Status and metadata at the end, from trailers or, if there was no message, from headers."""
        return dict(self.sent[-1].get("headers") or self.sent[0]["headers"])


async def answer(http: Http, handler: grpc.RpcMethodHandler[Any, Any] | None) -> Http:
    """Answers a request in a task of its own, as ASGI does."""

    async def application() -> None:
        await run(Call(http.scope, http.receive, http.send, asyncio.current_task()), handler, http.scope)

    await asyncio.create_task(application())
    return http


def answered(http: Http, handler: grpc.RpcMethodHandler[Any, Any] | None) -> Http:
    return asyncio.run(answer(http, handler))


def unary(handle: Handling) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_unary_rpc_method_handler(handle)


def stream(handle: Any) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_stream_rpc_method_handler(handle)


async def echo(request: bytes, _context: Any) -> bytes:
    return request * 2


def test_a_unary_call_is_answered_with_headers_a_message_and_trailers() -> None:
    http = answered(Http(framed(b"hi")), unary(echo))
    assert [event["type"] for event in http.sent] == [
        "http.response.start",
        "http.response.body",
        "http.response.trailers",
    ]
    assert http.messages == framed(b"hihi")
    assert http.end == {b"grpc-status": b"0"}


def test_a_request_may_come_in_pieces() -> None:
    data = framed(b"hello")
    assert answered(Http(data[:3], data[3:7], data[7:]), unary(echo)).messages == framed(b"hello" * 2)


def test_an_error_comes_in_one_frame_with_its_metadata() -> None:
    async def fail(_request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing", (("why-bin", b"\x01"),))
        return b""

    http = answered(Http(framed(b"")), unary(fail))
    assert http.end[b"grpc-status"] == b"5"
    assert http.end[b"grpc-message"] == b"no such thing"
    assert http.end[b"why-bin"] == b"AQ"
    assert http.messages == b""


def test_a_defect_tells_the_client_nothing() -> None:
    async def fail(_request: bytes, _context: Any) -> bytes:
        raise RuntimeError("a secret")

    http = answered(Http(framed(b"")), unary(fail))
    assert http.end[b"grpc-status"] == b"13"
    assert b"secret" not in http.end[b"grpc-message"]


async def _two(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
    yield b"1"
    yield b"2"


async def _two_written(_request: bytes, context: Any) -> None:
    await context.write(b"1")
    await context.write(b"2")


@pytest.mark.parametrize("handle", [_two, _two_written])
def test_a_stream_is_written_by_either_kind_of_handler(handle: Any) -> None:
    http = answered(Http(framed(b"")), stream(handle))
    assert http.messages == framed(b"1") + framed(b"2")
    assert http.end == {b"grpc-status": b"0"}


def test_a_handler_waits_while_the_reader_takes_nothing_and_can_cut_it() -> None:
    async def handle(_request: bytes, context: Any) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await context.write(b"1")
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "slow")

    async def scenario() -> tuple[Http, asyncio.Future[None]]:
        http, never = Http(framed(b"")), asyncio.get_running_loop().create_future()
        http.taken = lambda: never
        await answer(http, stream(handle))
        return http, never

    http, never = asyncio.run(scenario())
    assert http.end[b"grpc-status"] == b"8"
    assert not never.cancelled(), "pyvoy sets its result later, which must not be an error"


def test_a_client_that_has_gone_cancels_the_handler() -> None:
    ended = []

    async def handle(_request: bytes, context: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(context.peer())

    async def scenario() -> Http:
        http = Http(framed(b""))

        async def application() -> None:
            call = Call(http.scope, http.receive, http.send, asyncio.current_task())
            asyncio.get_running_loop().call_soon(call.ask_for_the_peer)
            await run(call, stream(handle), http.scope)

        await asyncio.create_task(application())
        return http

    assert asyncio.run(scenario()).sent == []
    assert ended == ["ipv4:127.0.0.1:7"]


def test_a_send_to_a_client_that_has_gone_cancels_the_handler() -> None:
    class Gone(OSError):
        pass

    async def handle(_request: bytes, context: Any) -> None:
        await context.write(b"1")
        raise AssertionError("the write came back")

    async def scenario() -> Http:
        http, gone = Http(framed(b"")), asyncio.get_running_loop().create_future()
        gone.set_exception(Gone())
        http.taken = lambda: gone
        return await answer(http, stream(handle))

    assert len(asyncio.run(scenario()).sent) == 2


def test_a_deadline_ends_the_handler() -> None:
    async def handle(_request: bytes, context: Any) -> bytes:
        assert context.time_remaining() is not None
        await asyncio.Event().wait()
        return b""

    http = answered(Http(framed(b""), headers=(TE, TYPE, (b"grpc-timeout", b"1m"))), unary(handle))
    assert http.end[b"grpc-status"] == b"4"


def test_the_end_of_the_server_is_unavailable() -> None:
    async def handle(_request: bytes, _context: Any) -> bytes:
        raise asyncio.CancelledError

    assert answered(Http(framed(b"")), unary(handle)).end[b"grpc-status"] == b"14"


@pytest.mark.parametrize(
    ("http", "status", "problem"),
    [
        (Http(framed(b""), headers=(TYPE,)), b"13", b"te: trailers is missing"),
        (Http(framed(b""), headers=(TE, TYPE, (b"grpc-encoding", b"br"))), b"12", b"no such compression"),
        (Http(framed(b""), headers=(TE, TYPE, (b"x", bytes(MAX_METADATA_BYTES)))), b"8", b"metadata size exceeds"),
        (Http(framed(b""), headers=(TE, TYPE, (b"grpc-timeout", b"soon"))), b"13", b"grpc-timeout is no time"),
        (Http(b""), b"13", b"no whole message"),
        (Http(framed(b"half")[:-1]), b"13", b"no whole message"),
        (Http(b"\x00\xff\xff\xff\xff"), b"8", f"(4294967295 vs. {MAX_MESSAGE_BYTES})".encode()),
    ],
)
def test_a_request_that_is_no_call_of_grpc_is_refused(http: Http, status: bytes, problem: bytes) -> None:
    end = answered(http, unary(echo)).end
    assert end[b"grpc-status"] == status
    assert problem in end[b"grpc-message"]


def test_a_method_that_is_not_there_is_unimplemented() -> None:
    assert answered(Http(framed(b"")), None).end[b"grpc-status"] == b"12"
