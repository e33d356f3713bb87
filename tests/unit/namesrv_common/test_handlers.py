"""Errors of calls, with hints for those that connect, and the handlers of calls that end with them."""

from __future__ import annotations

import asyncio
import base64
import gc
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock
from unittest.mock import AsyncMock

import grpc
import pytest
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2 as pb
from structlog.testing import capture_logs

from namesrv.core.errors import suppress_refusals
from namesrv.error_codes import FAILURES
from namesrv_common.errors import (
    MAX_VIOLATIONS,
    CommonReason,
    FieldProblems,
    FieldViolation,
    Refused,
    invalid_field,
    limit_exceeded,
    not_durable,
)
from namesrv_common.grpc_errors import DETAILS_KEY, PUSHBACK_KEY, RichError
from namesrv_common.server.health_service import MAX_SERVICE_LENGTH, HealthService
from namesrv_common.server.rpc_handlers import MAX_STREAM_REQUEST_BYTES, CallHandlers, Context, Gate
from tests.support.calls_from_nowhere import CONTEXT, Caller
from tests.support.refusals import refuses

SERVICE = pb.DESCRIPTOR.services_by_name["Health"]
REQUEST = pb.HealthCheckRequest(service="s").SerializeToString()
GONE = grpc.aio.InternalError()
"""What grpcio raises if the reader has left."""

Work = Callable[[], Any]


def read(error: RichError, trailers: Any) -> RichError:
    """What a client reads from a call that failed with code and message of an error, and these trailers."""
    return RichError.of(grpc.aio.AioRpcError(error.code, grpc.aio.Metadata(), trailers, error.message, None))


class Reader(Caller):
    """A call's context: the error that its caller got. A reader of messages has left."""

    def __init__(self, before_write: Callable[[], None] = lambda: None) -> None:
        self.error: RichError | None = None
        self._before_write = before_write

    async def write(self, _message: bytes) -> None:
        self._before_write()
        raise GONE

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: Any) -> None:
        self.error = read(RichError(code, details), trailing_metadata)
        raise grpc.aio.AbortError


class Part:
    """Does in a call what a test wants."""

    def __init__(self, work: Work, inline_calls: tuple[str, ...]) -> None:
        self._work = work
        self.inline_calls = inline_calls
        self.closed = False

    async def Check(self, request: pb.HealthCheckRequest, _context: Context) -> Any:  # noqa: N802
        assert request.service == "s"
        return await self._work()

    async def Watch(self, request: pb.HealthCheckRequest, _context: Context) -> AsyncIterator[Any]:  # noqa: N802
        assert request.service == "s"
        try:
            while True:
                yield await self._work()
        finally:
            self.closed = True


class Tally(Gate):
    """Counts the calls inside, and the bytes of their requests."""

    def __init__(self) -> None:
        self.inside = self.taken = 0

    def enter(self, _context: Context) -> None:
        self.inside += 1

    def leave(self, entered: None) -> None:
        self.inside -= 1

    def take(self, entered: Any, size: int) -> int:
        self.taken += size
        return size

    def give_back(self, entered: Any, taken: int) -> None:
        self.taken -= taken


class World:
    """The handlers of a program, and what they were made with."""

    def __init__(self, work: Work, inline_calls: tuple[str, ...] = ("Check",), **options: Any) -> None:
        self.part, self.tally = Part(work, inline_calls), Tally()
        self.ended_with: list[grpc.StatusCode] = []
        observer: Any = SimpleNamespace(of=lambda _method, **_: lambda _metadata: self.ended_with.append)
        handlers = CallHandlers(FAILURES, 20.0, gate_of=lambda _: self.tally, observers=(observer,), **options)
        self.handlers: dict[str, Any] = handlers.of(SERVICE, (self.part,))

    async def check(self, reader: Reader) -> bytes:
        answer: bytes = await self.handlers["Check"].unary_unary(REQUEST, reader)
        return answer

    def refused(self) -> RichError:
        """What the unary call ends with; it must leave nothing behind."""
        reader = Reader()
        with pytest.raises(grpc.aio.AbortError):
            asyncio.run(self.check(reader))
        assert (self.tally.inside, self.tally.taken) == (0, 0)
        assert reader.error is not None
        assert self.ended_with == [reader.error.code]
        return reader.error


@pytest.mark.parametrize("answer", [b"\x08\x01", pb.HealthCheckResponse(status=1)])
def test_an_answer_may_be_a_message_or_its_bytes(answer: Any) -> None:
    world = World(AsyncMock(return_value=answer))
    assert asyncio.run(world.check(Reader())) == b"\x08\x01"
    assert world.ended_with == [grpc.StatusCode.OK]
    assert world.handlers["Check"].has_room() is True


def test_the_text_of_a_defect_is_for_the_log_alone() -> None:
    with capture_logs() as lines:
        error = World(AsyncMock(side_effect=RuntimeError("the secret is Mellon"))).refused()
    assert (error.code, error.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL_DEFECT")
    assert "Mellon" not in str(error)
    assert [(line["event"], line["error_id"], str(line["exc_info"])) for line in lines] == [
        (FAILURES.defect_event, error.metadata["error_id"], "the secret is Mellon")
    ]


@pytest.mark.parametrize(
    "violations",
    [
        [FieldViolation("topic", "d" * 9_000)],
        [FieldViolation(f"topics[{number}]", "is bad" * 20) for number in range(99)],
    ],
    ids=["one that is long", "many"],
)
def test_an_error_fits_into_the_trailers_that_grpc_libraries_take(violations: list[FieldViolation]) -> None:
    refusal = Refused("INVALID_FIELD", "ä" * 9_000, violations=violations, field="größe" * 2_000)
    error = FAILURES.rich(refusal)
    assert error.message == "ä" * 254 + "..."
    assert (error.reason, error.metadata["field"][:5]) == ("INVALID_FIELD", "größe")
    assert 0 < len(error.violations) <= len(violations)
    assert error.violations[0].field == violations[0].field
    assert violations[0].description.startswith(error.violations[0].description.removesuffix("..."))
    (_, details), *_ = error.trailers()
    assert 3 * len(error.message.encode()) + len(base64.b64encode(details)) < 8 * 1024  # type: ignore[arg-type]


def test_a_call_whose_caller_goes_is_cancelled_and_leaves_nothing_behind() -> None:
    async def run() -> weakref.ref[Reader]:
        begun = asyncio.Event()

        async def work() -> Any:
            begun.set()
            await asyncio.Event().wait()

        world, reader = World(work), Reader()
        call = asyncio.create_task(world.check(reader))
        await begun.wait()
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        assert reader.error is None
        assert (world.tally.inside, world.tally.taken) == (0, 0)
        assert world.ended_with == [grpc.StatusCode.CANCELLED]
        return weakref.ref(reader)

    gc.disable()
    try:
        assert asyncio.run(run())() is None, "it waits for the garbage collector"
    finally:
        gc.enable()


async def test_a_stream_holds_nothing_of_its_request_and_a_gone_reader_is_no_defect() -> None:
    world, request = World(AsyncMock(return_value=b"message")), bytes(bytearray(REQUEST))
    before, while_open = sys.getrefcount(request), list[tuple[int, int]]()

    reader = Reader(lambda: while_open.append((world.tally.taken, sys.getrefcount(request))))
    with capture_logs() as lines, pytest.raises(asyncio.CancelledError):
        await world.handlers["Watch"].unary_stream(request, reader)
    assert while_open == [(0, before)]
    assert (reader.error, lines) == (None, [])
    assert (world.part.closed, world.tally.inside, world.tally.taken) == (True, 0, 0)
    assert world.ended_with == [grpc.StatusCode.CANCELLED]


@pytest.mark.parametrize(
    ("large_streams", "reason"), [((), "LIMIT_EXCEEDED"), (("grpc.health.v1.Health.Watch",), None)]
)
async def test_a_stream_refuses_a_request_larger_than_it_needs(
    large_streams: tuple[str, ...], reason: str | None
) -> None:
    world, reader = World(AsyncMock(return_value=b"message"), large_streams=large_streams), Reader()
    padded = REQUEST + b"\x12\x80\x20" + bytes(MAX_STREAM_REQUEST_BYTES)  # a field that nobody knows
    with pytest.raises((grpc.aio.AbortError, asyncio.CancelledError)):
        await world.handlers["Watch"].unary_stream(padded, reader)
    assert (reader.error and reader.error.reason, world.tally.inside) == (reason, 0)


def test_a_refused_or_unreadable_request_is_not_held_by_its_answer() -> None:
    refusal, unreadable = invalid_field("service", "is bad"), DecodeError("half parsed")
    assert World(AsyncMock(side_effect=refusal)).refused().reason == "INVALID_FIELD"
    parse_large = AsyncMock(side_effect=unreadable)
    large = World(AsyncMock(return_value=b"answer"), inline_calls=(), parse_large=parse_large).refused()
    assert large.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.__traceback__ is unreadable.__traceback__ is None
    shut = World(AsyncMock(return_value=b""))
    with mock.patch.object(shut.tally, "enter", side_effect=refusal):
        assert shut.refused().reason == "INVALID_FIELD"


async def test_a_watcher_that_takes_nothing_delays_no_other_and_gets_the_last_status() -> None:
    serving, not_serving = pb.HealthCheckResponse.SERVING, pb.HealthCheckResponse.NOT_SERVING
    health, request = HealthService(), pb.HealthCheckRequest(service="a")
    references = sys.getrefcount(request)
    stuck: Any = health.Watch(request, CONTEXT)
    reading: Any = health.Watch(pb.HealthCheckRequest(service="a"), CONTEXT)
    told = [(await anext(stuck)).status]
    assert sys.getrefcount(request) == references, "an open watch keeps its request"
    for status in (serving, not_serving, serving):
        health.set("a", status)
        told.append((await anext(reading)).status)
    health.enter_shutdown()
    told.append((await anext(reading)).status)
    health.set("a", serving)  # it is ignored
    told.append((await anext(stuck)).status)
    await stuck.aclose()
    await reading.aclose()
    unknown = pb.HealthCheckResponse.SERVICE_UNKNOWN
    assert told == [unknown, serving, not_serving, serving, not_serving, not_serving]


async def test_names_that_no_service_has_are_refused() -> None:
    health, context = HealthService(), mock.Mock()
    await health.Check(pb.HealthCheckRequest(service="unknown"), context)
    too_long = pb.HealthCheckRequest(service="a" * (MAX_SERVICE_LENGTH + 1))
    assert [answer async for answer in health.Watch(too_long, context)] == []
    codes = [mock.call(grpc.StatusCode.NOT_FOUND), mock.call(grpc.StatusCode.INVALID_ARGUMENT)]
    assert context.set_code.call_args_list == codes


def check(problems: FieldProblems, fields: Iterable[str]) -> None:
    for field in fields:
        with problems:
            raise invalid_field(field, "is bad")
    problems.raise_any()


def test_only_the_named_reasons_are_passed_over() -> None:
    def fail(error: Refused) -> None:
        with suppress_refusals(CommonReason.INVALID_FIELD):
            raise error

    fail(invalid_field("a", "is bad"))
    with refuses(CommonReason.NOT_DURABLE):
        fail(not_durable("the disk is full"))


def test_problems_of_fields_are_listed_and_other_errors_raised_at_once() -> None:
    check(FieldProblems(), [])
    problems, fields = FieldProblems(), ("part.a", "part.b", "c")
    with problems:
        check(FieldProblems(), fields[:2])
    with refuses(CommonReason.INVALID_FIELD, match=r"^part\.a: is bad \(and 2 more\)$") as caught:
        check(problems, fields[2:])
    assert caught.value.violations == tuple(FieldViolation(field, "is bad") for field in fields)
    assert caught.value.metadata == {"field": "part.a"}
    for other in (limit_exceeded("things", 2, 1), ValueError("a defect")):
        with pytest.raises(type(other)) as raised, FieldProblems():
            raise other
        assert raised.value is other


def test_a_request_of_very_many_problems_is_refused_when_a_hundred_are_found() -> None:
    checked: list[str] = []

    def fields() -> Iterable[str]:
        for number in range(1_000):
            checked.append(f"f{number}")
            yield f"f{number}"

    with refuses(CommonReason.INVALID_FIELD) as caught:
        check(FieldProblems(), fields())
    assert len(caught.value.violations) == len(checked) == MAX_VIOLATIONS


ERROR = RichError(
    grpc.StatusCode.INVALID_ARGUMENT,
    "broker.broker_id: is -1",
    reason="INVALID_FIELD",
    domain="namesrv.dev",
    metadata={"field": "broker.broker_id"},
    violations=(FieldViolation("broker.broker_id", "is -1, must not be negative"),),
    retry_after_seconds=1.5,
)


def test_an_error_comes_back_as_sent_with_the_pushback_that_grpc_reads() -> None:
    assert read(ERROR, ERROR.trailers()) == ERROR
    assert str(ERROR) == "INVALID_ARGUMENT INVALID_FIELD: broker.broker_id: is -1"
    assert dict(ERROR.trailers())[PUSHBACK_KEY] == "1500"
    assert PUSHBACK_KEY not in dict(replace(ERROR, retry_after_seconds=None).trailers())


def test_missing_or_broken_details_leave_the_rest_of_an_error() -> None:
    bare = RichError(ERROR.code, ERROR.message)
    for trailers in (None, (), (("other", "x"),), ((DETAILS_KEY, b"\xff\xff"),), ((DETAILS_KEY, "text"),)):
        assert read(ERROR, trailers) == bare
    status = status_pb2.Status()
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason="OVERLOADED"))
    status.details.add(type_url="type.googleapis.com/google.rpc.RetryInfo", value=b"\x0b")
    assert read(ERROR, [(DETAILS_KEY, status.SerializeToString())]) == replace(bare, reason="OVERLOADED")


CONNECTING = "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:9876: "
HINTS = {
    "Socket closed": "set tls_ca",
    "Handshake read failed (Socket closed)": "may speak no TLS",
    "Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:100000f7:SSL routines:OPENSSL_internal:"
    "WRONG_VERSION_NUMBER: Invalid certificate verification context: OK": "speaks no TLS",
    "Unwrap failed (TSI_DATA_CORRUPTED)": "look at tls_cert",
    "Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"
    "CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate: OK": "of an authority that tls_ca does not",
    "Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"
    "CERTIFICATE_VERIFY_FAILED: certificate has expired: OK": "has ended",
    "CERTIFICATE_VERIFY_FAILED: certificate is not yet valid: OK": "compare the clocks",
    "Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: odd": "see the server's log",
    "Custom verification check failed with error: UNAUTHENTICATED: Hostname Verification Check failed.": "other names",
    "Failed parsing HTTP/2: Expected SETTINGS frame": "look at the port",
}


@pytest.mark.parametrize("text", HINTS)
def test_a_connection_that_did_not_come_about_says_what_to_look_at(text: str) -> None:
    told = read(RichError(grpc.StatusCode.UNAVAILABLE, CONNECTING + text), ()).message
    assert told.startswith(f"{CONNECTING}{text}; ")
    assert HINTS[text] in told


@pytest.mark.parametrize("text", ["Socket closed", "the name server is shutting down", CONNECTING + "refused", ""])
def test_about_other_failures_nothing_is_said(text: str) -> None:
    assert read(RichError(grpc.StatusCode.UNAVAILABLE, text), ()).message == text
