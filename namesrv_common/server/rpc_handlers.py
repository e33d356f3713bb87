"""Handlers of calls: admission, parsing, errors and encoding."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NoReturn, TypeVar

import grpc
import structlog
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from namesrv_common.errors import CommonReason, FieldViolation, Refused, internal_defect, limit_exceeded
from namesrv_common.grpc_errors import RichError
from namesrv_common.server.call_metrics import CallObserver

# The admission of a call before it is answered, and of the memory for its requests. By default both are open.

Context = grpc.aio.ServicerContext[Any, Any]

RequestT = TypeVar("RequestT")


NO_LIMIT = contextlib.nullcontext()
"""The context of a call whose caller cannot lose the right to it."""


class Gate:
    """Lets in the calls of one method; this one lets in all."""

    def enter(self, context: Context) -> Any:
        """A call begins; ``leave`` must follow unless this raises Refused. Returns the caller, for ``checked``."""

    def checked(self, entered: Any, request: RequestT, context: Context) -> RequestT:  # noqa: ARG002 - for others
        """The parsed request. Raises Refused if the caller may not make it."""
        return request

    def while_allowed(self, entered: Any, context: Context) -> AbstractContextManager[None]:  # noqa: ARG002 - for others
        """A context that ends with Refused once the caller loses the right. The call has just entered."""
        return NO_LIMIT

    def take(self, entered: Any, size: int) -> int:  # noqa: ARG002 - for others
        """Takes memory for a request of so many bytes; returns what to give back. Raises Refused if there is none.

        Small requests need no bound: it returns 0 for them.
        """
        return 0

    def give_back(self, entered: Any, taken: int) -> None:
        """Gives back what ``take`` returned."""

    def leave(self, entered: Any) -> None:
        """A call that entered has ended."""

    def has_room(self) -> bool:
        """Whether ``enter`` has a share for every caller now."""
        return True


# Services are composed of parts: objects with a method of the same name for each call that they answer.
#
# A part's attribute ``inline_calls``, where it has one, names those of its calls that never wait for anything. A
# servicer of several parts is a named tuple of them.

Behaviour = Callable[[Any, Context], Any]
"""Answers a call, by an awaitable or an async iterator of messages or their bytes.

It takes the request, or the iterator of all requests if they are a stream.
"""


def methods_of(service: ServiceDescriptor, part: object) -> list[MethodDescriptor]:
    """The calls of a service that a part of it, or a class of parts, answers."""
    return [method for method in service.methods if hasattr(part, method.name)]


# The error that a call ends with after an exception: one rule for every listener of a program.

_log = structlog.get_logger(__name__)

MAX_PART_BYTES = 512
"""Longest text of an error, field, description or value of metadata. The rest is left out."""
MAX_ERROR_BYTES = 3_072
"""Most bytes of texts in an error; violations beyond them are left out.

gRPC libraries take 8 KiB of trailers. All texts travel in base64. The error's own text travels once more, with three
bytes for each byte that is not printable ASCII.
"""


def _cut(text: str) -> str:
    whole = text.encode()
    return text if len(whole) <= MAX_PART_BYTES else f"{whole[: MAX_PART_BYTES - 3].decode(errors='ignore')}..."


@dataclass(frozen=True, slots=True)
class Failures:
    """The errors that a program answers calls with, and its words for what goes wrong."""

    domain: str
    """Domain of all reasons."""
    codes: Mapping[Any, grpc.StatusCode]
    """The code of each reason, a text."""
    retry_after_seconds: Mapping[Any, float]
    """After which time a retry helps, for the reasons where one does."""
    defect_event: str
    """The log event of a defect."""
    shutting_down: Callable[[], Refused]
    """Makes the error of a call that something else than its caller has cancelled."""
    slow_reader: Callable[[float], Refused]
    """Makes the error of a reader that has taken nothing for so many seconds."""

    def rich(self, error: Refused) -> RichError:
        """The error in the form in which it travels: cut to ``MAX_PART_BYTES`` and ``MAX_ERROR_BYTES``."""
        retry_after = error.retry_after_seconds
        text, metadata = _cut(error.text), {key: _cut(value) for key, value in error.metadata.items()}
        violations = [FieldViolation(_cut(each.field), _cut(each.description)) for each in error.violations]
        room = MAX_ERROR_BYTES - len("".join((text, *metadata.values())).encode())
        sizes = accumulate(len(f"{each.field}{each.description}".encode()) for each in violations)
        fitting = sum(size <= room for size in sizes)
        return RichError(
            self.codes[error.reason],
            text,
            reason=str(error.reason),
            domain=self.domain,
            metadata=metadata,
            violations=tuple(violations[:fitting]),
            retry_after_seconds=self.retry_after_seconds.get(error.reason) if retry_after is None else retry_after,
        )

    def answer(self, error: BaseException, call: str) -> RichError:
        """What a call ends with because of an error. The text of an unexpected one goes only to the log."""
        if isinstance(error, Refused):
            # Its traceback would hold the parsed request, up to 16 MiB, until the response is sent.
            return self.rich(error.with_traceback(None))
        defect = internal_defect(uuid.uuid4().hex[:12])
        _log.error(self.defect_event, call=call, error_id=defect.metadata["error_id"], exc_info=error)
        return self.rich(defect)


# Handlers of calls: admission, parsing, errors and encoding, the same for every call, program and engine.
#
# Requests are parsed here and not by the engine, so that malformed ones get the name server's error. Answers may be
# messages or bytes that are encoded already.

MAX_STREAM_REQUEST_BYTES = 4 * 1024
"""Largest request of a stream, but for those that may be large. Engines keep a request until its stream ends."""

CUT_SECONDS = 1.0
"""How long the error of a stream may take to leave; a reader that reads nothing gets it when it reads on."""

ParseLarge = Callable[[type[Message], bytes, Context], Awaitable[Message]]
"""Parses a request and lets other calls run in between. Raises DecodeError."""


@dataclass(frozen=True, slots=True)
class CallHandlers:
    """Makes the handlers of a server's calls; one for the whole server."""

    failures: Failures
    slow_reader_seconds: float
    """How long the reader of a stream may take nothing before it is cut."""
    gate_of: Callable[[MethodDescriptor], Gate] = lambda _: Gate()
    """The gate of each call of the contract."""
    parse_large: ParseLarge | None = None
    """Parses requests whose memory the gate counts. None: the event loop does."""
    observers: Sequence[CallObserver] = ()
    large_streams: Collection[str] = ()
    """Full names of streams whose requests may be larger than ``MAX_STREAM_REQUEST_BYTES``."""

    def add_service(self, server: grpc.aio.Server, service: ServiceDescriptor, parts: Iterable[object]) -> None:
        """Adds those calls of a service that its parts answer to a server of gRPC's own."""
        server.add_registered_method_handlers(service.full_name, self.of(service, parts))  # type: ignore[attr-defined]

    def of(self, service: ServiceDescriptor, parts: Iterable[object]) -> dict[str, Handler]:
        """The handlers of a service by the names of its calls."""
        return {method.name: Handler(self, method, part) for part in parts for method in methods_of(service, part)}


class _CallerGone(Exception):
    """The reader of a stream has left."""


END_OF_REQUESTS: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs do not know of it
"""What ``read`` of a context returns after the last request."""


class Handler(grpc.RpcMethodHandler):  # type: ignore[type-arg]  # a generic class in the stubs only
    """Answers the calls of one method of the contract, for a server of any engine."""

    def __init__(self, handlers: CallHandlers, method: MethodDescriptor, part: object) -> None:
        """Takes the part of the service that answers these calls."""
        self.handlers = handlers
        self.method = method
        self.message = GetMessageClass(method.input_type)
        self.behaviour: Behaviour = getattr(part, method.name)
        self.gate = handlers.gate_of(method)
        self.is_inline = method.name in getattr(part, "inline_calls", ())
        is_small = method.server_streaming and method.full_name not in handlers.large_streams
        self.most_bytes = MAX_STREAM_REQUEST_BYTES if is_small else None
        """Largest request. None: as large as the engine takes."""
        name = f"{method.containing_service.full_name}/{method.name}"
        found = [observer.of(name, streams=method.server_streaming) for observer in handlers.observers]
        self.observers = [begun for begun in found if begun is not None]

        self.request_streaming, self.response_streaming = method.client_streaming, method.server_streaming
        answer: Any = self._stream if self.response_streaming else self._answer
        self.answer: Callable[[Any, Any], Any] = answer
        """Answers a call, given its bytes. The messages of a stream are written to its context."""
        self.has_room = self.gate.has_room if self.is_inline else None
        """Whether a call that never waits has a share for every caller now. None: it may wait."""
        # The same as servers of gRPC's own find it.
        self.unary_unary = None if self.response_streaming else answer
        self.unary_stream = answer if self.response_streaming and not self.request_streaming else None
        self.stream_stream = answer if self.response_streaming and self.request_streaming else None
        self.stream_unary = self.request_deserializer = self.response_serializer = None

    async def _answer(self, request: bytes, context: Context) -> bytes:
        call = _Call(self, context)
        try:
            with call.enter():
                answer = await self.behaviour(await call.parsed(request), context)
            encoded: bytes = answer if isinstance(answer, bytes) else answer.SerializeToString()
            call.code = grpc.StatusCode.OK
            return encoded  # noqa: TRY300 - it is the try that matters
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - no text of an unexpected one may get out
            await call.fail(error)
        finally:
            call.end()

    async def _stream(self, request: Any, context: Context) -> None:
        call, has_one_request = _Call(self, context), not self.method.client_streaming
        try:
            with call.enter():
                asked = await call.parsed(request) if has_one_request else call.all_parsed()
                # The behaviour must be closed when the caller goes, not when the garbage collector comes by.
                async with contextlib.aclosing(self.behaviour(asked, context)) as answers:
                    del request, asked  # a stream may last, and has taken from it what it needs
                    async for answer in answers:
                        if has_one_request:
                            call.give_back()
                        await self._write(context, answer)
            call.code = grpc.StatusCode.OK
        except _CallerGone:
            raise asyncio.CancelledError from None  # as if it had come first: nobody is there to be told anything
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - no text of an unexpected one may get out
            if isinstance(error, Refused) and error.reason == CommonReason.SLOW_READER:
                _log.warning("slow_reader_cut", call=self.method.full_name, peer=context.peer())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CUT_SECONDS):
                    await call.fail(error)
        finally:
            call.end()

    async def _write(self, context: Context, answer: Message | bytes) -> None:
        seconds = self.handlers.slow_reader_seconds
        try:
            async with asyncio.timeout(seconds):
                await context.write(answer if isinstance(answer, bytes) else answer.SerializeToString())
        except TimeoutError:
            raise self.handlers.failures.slow_reader(seconds) from None
        except grpc.aio.InternalError:  # grpcio raises it if the connection ended before this call was cancelled
            raise _CallerGone from None


class _Call:
    """One call. Its requests are admitted to the memory for requests, and parsed. ``end`` must follow."""

    def __init__(self, handler: Handler, context: Context) -> None:
        self._handler = handler
        self._context = context
        self._caller: Any = None
        self._has_entered = False
        self._taken = 0
        self.code = grpc.StatusCode.CANCELLED
        """The code that the call ends with; this one unless it is answered, or fails."""
        self._ends = [begun(context.invocation_metadata) for begun in handler.observers]

    def enter(self) -> AbstractContextManager[None]:
        """Enters the gate. Returns the context to answer in. Raises Refused."""
        gate = self._handler.gate
        self._caller = gate.enter(self._context)
        self._has_entered = True
        return NO_LIMIT if self._handler.is_inline else gate.while_allowed(self._caller, self._context)

    async def parsed(self, request: bytes) -> Any:
        """Returns a request as a message."""
        of, caller, context = self._handler, self._caller, self._context
        parse_large = None if of.is_inline else of.handlers.parse_large
        if of.most_bytes is not None and len(request) > of.most_bytes:
            raise limit_exceeded("bytes of the request", len(request), of.most_bytes)
        self._taken = of.gate.take(caller, len(request))
        # No name for the parsed request: if this fails, it must not be held until the answer has left.
        if self._taken and parse_large is not None:
            return of.gate.checked(caller, await parse_large(of.message, request, context), context)
        return of.gate.checked(caller, of.message.FromString(request), context)

    async def all_parsed(self) -> AsyncIterator[Any]:
        """Yields the requests of a stream."""
        # Not by the engine's iterator, which keeps the bytes of the last request for as long as it waits for the next.
        while (request := await self._context.read()) is not END_OF_REQUESTS:
            parsed = await self.parsed(request)
            del request
            yield parsed
            del parsed
            self.give_back()  # the next one is asked for

    def give_back(self) -> None:
        """Gives the memory of the present request back."""
        taken, self._taken = self._taken, 0
        if taken:
            self._handler.gate.give_back(self._caller, taken)

    async def fail(self, error: BaseException) -> NoReturn:
        """Ends the call with an error."""
        failures = self._handler.handlers.failures
        if isinstance(error, DecodeError):
            error.with_traceback(None)  # a half-parsed request is held by it
            name = self._handler.method.input_type.full_name
            error = Refused(CommonReason.MALFORMED_REQUEST, f"the request is not a {name}", message=name)
        elif isinstance(error, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                try:
                    raise error  # of this very call; any other would leave the caller waiting for its deadline
                finally:
                    # Both lead to this frame by the traceback, and would wait for the garbage collector.
                    del error, task
            error = failures.shutting_down()
        rich = failures.answer(error, self._handler.method.full_name)
        self.code = rich.code
        await self._context.abort(rich.code, rich.message, rich.trailers())

    def end(self) -> None:
        """Gives back what the call holds, and reports its end."""
        self.give_back()
        if self._has_entered:
            self._handler.gate.leave(self._caller)
        for end in filter(None, self._ends):
            end(self.code)
