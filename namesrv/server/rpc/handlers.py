"""Handlers of calls: permits, parsing, errors and encoding, in one place for every call and engine.

Requests are parsed here and not by the engine, so that bytes which are no message get our error. Answers may be
messages or bytes that are encoded already.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import grpc
import structlog
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from groundwork.telemetry.call_observers import CallObserver, observed
from namesrv.core.errors import (
    CallRefused,
    InternalDefect,
    MalformedRequest,
    NotImplementedYet,
    ShuttingDown,
    SlowReader,
)
from namesrv.server.auth.admission import Admission, Authorizer, CallBounds
from namesrv.server.rpc import inline_calls
from namesrv.server.rpc.request_memory import RequestMemory
from namesrv.server.rpc.status import ForwardedFailure, rich_error

Context = grpc.aio.ServicerContext[Any, Any]
UnaryBehaviour = Callable[[Any, Context], Awaitable[Message | bytes]]
StreamBehaviour = Callable[[Any, Context], AsyncIterator[Message | bytes]]

_log = structlog.get_logger(__name__)


CUT_SECONDS = 1.0
"""How long the status of a reader that is cut may take to leave; one that reads nothing gets it when it reads on."""


def add_service(
    server: grpc.aio.Server,
    service: ServiceDescriptor,
    servicer: object,
    slow_reader_seconds: float,
    memory: RequestMemory,
    *,
    observers: Sequence[CallObserver] = (),
    bounds: CallBounds | None = None,
    doorkeeper: Authorizer | None = None,
) -> None:
    """Adds a service to a server.

    Args:
        server: The server, of either engine.
        service: The service from the wire contract.
        servicer: Has a method of the same name for each call that is implemented; the others answer UNIMPLEMENTED. Its
            attribute ``at_once``, where it has one, names those that never wait for anything.
        slow_reader_seconds: How long the reader of a stream may take nothing before it is cut.
        memory: Bounds the requests under way; one for the whole server.
        observers: Watch the calls.
        bounds: Bounds the calls under way; one for the whole server. None: bounds of this service's own.
        doorkeeper: Knows who may make which call; None: everybody.
    """
    bounds = bounds or CallBounds()
    never_wait: Collection[str] = getattr(servicer, "at_once", ())
    handlers = {
        method.name: _handler(
            method,
            getattr(servicer, method.name, None),
            slow_reader_seconds,
            _Entry(memory, Admission(method, bounds, doorkeeper)),
            observers,
            never_waits=method.name in never_wait,
        )
        for method in service.methods
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
    # The native engine serves only what is registered in this way too; grpcio takes it as the quicker path.
    server.add_registered_method_handlers(service.full_name, handlers)  # type: ignore[attr-defined]


class _CallerGone(Exception):
    """There is nobody any more to write to."""


class _Entry(NamedTuple):
    """What a call must get past."""

    memory: RequestMemory
    gate: Admission


def unimplemented(service: ServiceDescriptor, servicer_class: type) -> frozenset[str]:
    """Names of a service's calls that a servicer class does not have."""
    return frozenset(method.name for method in service.methods if not hasattr(servicer_class, method.name))


def _handler(
    method: MethodDescriptor,
    behaviour: Any,
    slow_reader_seconds: float,
    entry: _Entry,
    observers: Sequence[CallObserver],
    *,
    never_waits: bool,
) -> grpc.RpcMethodHandler[Any, Any]:
    request_class = GetMessageClass(method.input_type)
    if behaviour is None:
        behaviour = _unimplemented_stream(method) if method.server_streaming else _unimplemented_unary(method)
    if method.server_streaming:
        handle = _stream(method, request_class, behaviour, slow_reader_seconds, entry)
        return grpc.unary_stream_rpc_method_handler(_watched(method, handle, observers))
    handle = _watched(method, _unary(method, request_class, behaviour, entry), observers)
    return grpc.unary_unary_rpc_method_handler(inline_calls.marked(handle) if never_waits else handle)


def _watched(method: MethodDescriptor, handle: Any, observers: Sequence[CallObserver]) -> Any:
    name = f"{method.containing_service.full_name}/{method.name}"
    return observed(handle, observers, name, streams=method.server_streaming, code_of=_code_of)


def _code_of(error: BaseException | None) -> grpc.StatusCode:
    """The code that a call was ended with because of an error."""
    match error:
        case CallRefused():
            return rich_error(error).code
        case DecodeError():
            return grpc.StatusCode.INVALID_ARGUMENT
        case asyncio.CancelledError():
            return grpc.StatusCode.UNAVAILABLE
    return grpc.StatusCode.INTERNAL


def _unary(method: MethodDescriptor, request_class: type[Message], behaviour: UnaryBehaviour, entry: _Entry) -> Any:
    parse, (memory, gate) = request_class.FromString, entry

    async def handle(request: bytes, context: Context) -> bytes:
        taken, entered = 0, False
        try:
            principal = gate.enter(context)
            entered = True
            taken = memory.take(len(request))
            # No name for the parsed request: if this fails, it must not be held until the answer has left.
            answer = await behaviour(gate.checked(principal, parse(request), context), context)
            return answer if isinstance(answer, bytes) else answer.SerializeToString()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - no text of an unexpected one may get out
            await _end_with(context, method, error)
        finally:
            memory.give_back(taken)
            if entered:
                gate.leave()

    return handle


def _stream(
    method: MethodDescriptor,
    request_class: type[Message],
    behaviour: StreamBehaviour,
    slow_reader_seconds: float,
    entry: _Entry,
) -> Any:
    parse, (memory, gate) = request_class.FromString, entry

    async def write(context: Context, answer: Message | bytes) -> None:
        try:
            async with asyncio.timeout(slow_reader_seconds):
                await context.write(answer if isinstance(answer, bytes) else answer.SerializeToString())
        except TimeoutError:
            raise SlowReader(slow_reader_seconds) from None
        except grpc.aio.InternalError:  # what grpcio says if the connection went before this call was cancelled
            raise _CallerGone from None

    async def handle(request: bytes, context: Context) -> None:
        taken, entered = 0, False
        try:
            principal = gate.enter(context)
            entered = True
            taken = memory.take(len(request))
            answering = behaviour(gate.checked(principal, parse(request), context), context)
            # The behaviour must be closed when the caller goes, not when the garbage collector comes by.
            async with contextlib.aclosing(answering) as answers:  # type: ignore[type-var]
                del request  # a stream may last, and has taken from it what it needs
                async for answer in answers:
                    memory.give_back(taken)
                    taken = 0
                    await write(context, answer)
        except _CallerGone:
            raise asyncio.CancelledError from None  # as if it had come first: nobody is there to be told anything
        except SlowReader as error:
            _log.warning("slow_reader_cut", call=method.full_name, peer=context.peer())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CUT_SECONDS):
                    await _abort(context, error)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - no text of an unexpected one may get out
            await _end_with(context, method, error)
        finally:
            memory.give_back(taken)
            if entered:
                gate.leave()

    return handle


async def _end_with(context: Context, method: MethodDescriptor, error: BaseException) -> NoReturn:
    """Ends a call with what went wrong, in words that the caller may read."""
    match error:
        case CallRefused():
            # Its traceback would hold the parsed request, up to 80 MiB, until the answer has left.
            await _abort(context, error.with_traceback(None))
        case ForwardedFailure():
            await context.abort(error.rich.code, error.rich.message, error.rich.status().trailing_metadata)
        case DecodeError():
            await _abort(context, MalformedRequest(method.input_type.full_name))
        case asyncio.CancelledError():
            await _reraise_own_cancellation(context)
        case _:
            await _abort_defect(context, method, error)


async def _abort(context: Context, error: CallRefused) -> NoReturn:
    rich = rich_error(error)
    await context.abort(rich.code, rich.message, rich.status().trailing_metadata)


async def _abort_defect(context: Context, method: MethodDescriptor, error: BaseException) -> NoReturn:
    error_id = uuid.uuid4().hex[:12]
    _log.error("internal_defect", call=method.full_name, error_id=error_id, exc_info=error)
    await _abort(context, InternalDefect(error_id))


async def _reraise_own_cancellation(context: Context) -> NoReturn:
    """Re-raises the cancellation of this very call; any other would leave the caller waiting for its deadline."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
    await _abort(context, ShuttingDown())


def _unimplemented_unary(method: MethodDescriptor) -> UnaryBehaviour:
    async def behaviour(_request: Message, _context: Context) -> bytes:
        raise _not_implemented(method)

    return behaviour


def _unimplemented_stream(method: MethodDescriptor) -> StreamBehaviour:
    async def behaviour(_request: Message, _context: Context) -> AsyncIterator[bytes]:
        raise _not_implemented(method)
        yield b""  # type: ignore[unreachable]  # makes this a generator, as streams are

    return behaviour


def _not_implemented(method: MethodDescriptor) -> NotImplementedYet:
    metadata: Mapping[str, str] = {"call": method.full_name}
    return NotImplementedYet(f"{method.full_name}: this version of the name server does not have it yet", metadata)
