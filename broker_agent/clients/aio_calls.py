"""How calls reach an asyncio servicer: parsing, errors and slow readers, in one place for every call.

The counterpart of ``listener.error_answers``, which serves the agent's synchronous listener.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NoReturn

import grpc
import structlog
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from broker_agent.clients.limits import CUT_SECONDS
from broker_agent.error_codes import rich_error
from broker_agent.rpc_errors import CallRefused, InternalDefect, MalformedRequest, ShuttingDown, SlowReader
from groundwork.telemetry.call_observers import CallObserver, observed

Context = grpc.aio.ServicerContext[Any, Any]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def add_service(
    server: grpc.aio.Server,
    service: ServiceDescriptor,
    servicer: object,
    slow_reader_seconds: float,
    observers: Sequence[CallObserver] = (),
) -> None:
    """Adds a service to a server.

    Args:
        server: The server.
        service: The service from the wire contract.
        servicer: Has a method of the same name for each call.
        slow_reader_seconds: How long the reader of a stream may take nothing before it is cut.
        observers: Watch the calls.
    """
    handlers = {
        method.name: _handler(method, getattr(servicer, method.name), slow_reader_seconds, observers)
        for method in service.methods
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))


def _handler(
    method: MethodDescriptor, behaviour: Any, slow_reader_seconds: float, observers: Sequence[CallObserver]
) -> grpc.RpcMethodHandler[Any, Any]:
    parse = GetMessageClass(method.input_type).FromString
    name = f"{method.containing_service.full_name}/{method.name}"
    if method.server_streaming:
        stream = _stream(method, parse, behaviour, slow_reader_seconds)
        return grpc.unary_stream_rpc_method_handler(observed(stream, observers, name, streams=True, code_of=_code_of))
    unary = _unary(method, parse, behaviour)
    return grpc.unary_unary_rpc_method_handler(observed(unary, observers, name, streams=False, code_of=_code_of))


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


def _unary(
    method: MethodDescriptor,
    parse: Callable[[bytes], Message],
    behaviour: Callable[[Any, Context], Awaitable[Message]],
) -> Any:
    async def handle(request: bytes, context: Context) -> bytes:
        try:
            return (await behaviour(parse(request), context)).SerializeToString()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the last place that can answer it
            await _end_with(context, method, error)

    return handle


def _stream(
    method: MethodDescriptor,
    parse: Callable[[bytes], Message],
    behaviour: Callable[[Any, Context], AsyncIterator[Message]],
    slow_reader_seconds: float,
) -> Any:
    async def write(context: Context, message: Message) -> None:
        try:
            async with asyncio.timeout(slow_reader_seconds):
                await context.write(message.SerializeToString())
        except TimeoutError:
            raise SlowReader from None

    async def handle(request: bytes, context: Context) -> None:
        try:
            # The behaviour must be closed when the caller goes, not when the garbage collector comes by.
            async with contextlib.aclosing(behaviour(parse(request), context)) as messages:  # type: ignore[type-var]
                async for message in messages:
                    await write(context, message)
        except SlowReader as error:
            _log.warning("slow_reader_cut", call=method.full_name, peer=context.peer())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CUT_SECONDS):
                    await _abort(context, error)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the last place that can answer it
            await _end_with(context, method, error)

    return handle


async def _end_with(context: Context, method: MethodDescriptor, error: BaseException) -> NoReturn:
    match error:
        case CallRefused():
            await _abort(context, error)
        case DecodeError():
            await _abort(context, MalformedRequest(method.input_type.full_name))
        case asyncio.CancelledError():
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise error  # of this very call: the caller has gone
            await _abort(context, ShuttingDown())
        case _:
            defect = InternalDefect(secrets.token_hex(4))
            _log.error("defect", error_id=defect.metadata["error_id"], method=method.full_name, exc_info=error)
            await _abort(context, defect)


async def _abort(context: Context, error: CallRefused) -> NoReturn:
    rich = rich_error(error)
    await context.abort(rich.code, rich.message, rich.status().trailing_metadata)
