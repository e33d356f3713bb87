"""Handlers of calls: admission, parsing, errors and encoding, in one place for every call, program and engine.

Requests are parsed here and not by the engine, so that bytes which are no message get our error. Answers may be
messages or bytes that are encoded already.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

import grpc
import structlog
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from groundwork.errors import CallRefused, MalformedRequest, SlowReader
from groundwork.grpc_handlers import inline_calls
from groundwork.grpc_handlers.admission import Context, Gate, Memory, OpenGate, UnboundedMemory
from groundwork.grpc_handlers.composition import Behaviour, Composition, methods_of
from groundwork.grpc_handlers.failures import Failures
from groundwork.grpc_handlers.large_requests import LargeRequests, OneInATurn
from groundwork.telemetry.call_observers import CallObserver, observed

_log = structlog.get_logger(__name__)

CUT_SECONDS = 1.0
"""How long the status of a reader that is cut may take to leave; one that reads nothing gets it when it reads on."""


class CallHandlers:
    """Makes the handlers of a server's calls; one for the whole server."""

    def __init__(
        self,
        failures: Failures,
        slow_reader_seconds: float,
        *,
        gate_of: Callable[[MethodDescriptor], Gate] = lambda _: OpenGate(),
        memory: Memory | None = None,
        large_requests: LargeRequests | None = None,
        observers: Sequence[CallObserver] = (),
    ) -> None:
        """Takes what differs between servers.

        Args:
            failures: What calls end with when something goes wrong.
            slow_reader_seconds: How long the reader of a stream may take nothing before it is cut.
            gate_of: Who is let in, for each call of the contract.
            memory: Bounds the requests under way; None: no bound.
            large_requests: Parses those that the memory counts; None: one in a turn of the event loop.
            observers: Watch the calls.
        """
        self._failures = failures
        self._slow_reader_seconds = slow_reader_seconds
        self._gate_of = gate_of
        self._memory = memory or UnboundedMemory()
        self._observers = observers
        self._large_requests = large_requests or OneInATurn()

    def add_service(self, server: grpc.aio.Server, service: ServiceDescriptor, parts: Iterable[object]) -> None:
        """Adds a service to a server of any engine.

        Args:
            server: The server.
            service: The service from the wire contract.
            parts: What answers its calls, as ``composition`` says.

        Raises:
            NotComposed: Not every call is answered by exactly one part.
        """
        self._add(server, service, self.of(service, parts))

    def add_calls(self, server: grpc.aio.Server, service: ServiceDescriptor, part: object) -> None:
        """Adds those calls of a service that a part answers; there are no others then.

        Args:
            server: The server.
            service: The service from the wire contract.
            part: What answers some of its calls.
        """
        self._add(server, service, self._of(methods_of(service, (part,)), (part,)))

    def of(self, service: ServiceDescriptor, parts: Iterable[object]) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The handlers of a service by the names of its calls. Raises NotComposed."""
        return self._of(service.methods, parts)

    @staticmethod
    def _add(
        server: grpc.aio.Server, service: ServiceDescriptor, handlers: dict[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
        # Some engines serve only what is registered in this way too; grpcio takes it as the quicker path.
        server.add_registered_method_handlers(service.full_name, handlers)  # type: ignore[attr-defined]

    def _of(
        self, methods: Sequence[MethodDescriptor], parts: Iterable[object]
    ) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        composition = Composition.of(methods, parts)
        return {
            method.name: self._handler(
                method, composition.behaviours[method.name], is_inline=method.name in composition.inline_calls
            )
            for method in methods
        }

    def _handler(
        self, method: MethodDescriptor, behaviour: Behaviour, *, is_inline: bool
    ) -> grpc.RpcMethodHandler[Any, Any]:
        gate = self._gate_of(method)
        answering = _Answering(
            method,
            GetMessageClass(method.input_type),
            None if is_inline else self._large_requests,
            behaviour,
            gate,
            self._memory,
            self._failures,
        )
        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._observed(method, _stream(answering, self._slow_reader_seconds))
            )
        handle = self._observed(method, _unary(answering))
        return grpc.unary_unary_rpc_method_handler(inline_calls.marked(handle, gate.has_room) if is_inline else handle)

    def _observed(self, method: MethodDescriptor, handle: Any) -> Any:
        name = f"{method.containing_service.full_name}/{method.name}"
        return observed(handle, self._observers, name, streams=method.server_streaming, code_of=self._code_of)

    def _code_of(self, error: BaseException | None) -> grpc.StatusCode:
        """The code that a call was ended with because of an error."""
        match error:
            case CallRefused():
                return self._failures.table.rich(error).code
            case DecodeError():
                return grpc.StatusCode.INVALID_ARGUMENT
            case asyncio.CancelledError():
                return grpc.StatusCode.UNAVAILABLE
        return grpc.StatusCode.INTERNAL


class _Answering(NamedTuple):
    """What the handler of one call works with."""

    method: MethodDescriptor
    message: type[Message]
    large_requests: LargeRequests | None
    """Parses large requests, of all calls together; None: they are parsed at once."""
    behaviour: Behaviour
    gate: Gate
    memory: Memory
    failures: Failures


class _CallerGone(Exception):
    """There is nobody any more to write to."""


def _unary(answering: _Answering) -> Any:
    method, message, _, behaviour, gate, memory, failures = answering
    parse = message.FromString

    async def handle(request: bytes, context: Context) -> bytes:
        taken, entered, caller = 0, False, None
        try:
            caller = gate.enter(context)
            entered = True
            taken = memory.take(caller, len(request))
            # No name for the parsed request: if this fails, it must not be held until the answer has left.
            if taken:
                answer = await behaviour(gate.checked(caller, await _large(answering, request), context), context)
            else:
                answer = await behaviour(gate.checked(caller, parse(request), context), context)
            return answer if isinstance(answer, bytes) else answer.SerializeToString()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - no text of an unexpected one may get out
            await _end_with(error, context, method, failures)
        finally:
            memory.give_back(caller, taken)
            if entered:
                gate.leave(caller)

    return handle


def _stream(answering: _Answering, slow_reader_seconds: float) -> Any:
    method, message, _, behaviour, gate, memory, failures = answering
    parse = message.FromString

    async def write(context: Context, answer: Message | bytes) -> None:
        try:
            async with asyncio.timeout(slow_reader_seconds):
                await context.write(answer if isinstance(answer, bytes) else answer.SerializeToString())
        except TimeoutError:
            raise failures.slow_reader(slow_reader_seconds) from None
        except grpc.aio.InternalError:  # what grpcio says if the connection went before this call was cancelled
            raise _CallerGone from None

    async def handle(request: bytes, context: Context) -> None:
        taken, entered, caller = 0, False, None
        try:
            caller = gate.enter(context)
            entered = True
            taken = memory.take(caller, len(request))
            # The behaviour must be closed when the caller goes, not when the garbage collector comes by.
            async with contextlib.aclosing(
                behaviour(
                    gate.checked(caller, await _large(answering, request) if taken else parse(request), context),
                    context,
                )
            ) as answers:
                del request  # a stream may last, and has taken from it what it needs
                async for answer in answers:
                    memory.give_back(caller, taken)
                    taken = 0
                    await write(context, answer)
        except _CallerGone:
            raise asyncio.CancelledError from None  # as if it had come first: nobody is there to be told anything
        except SlowReader as error:
            _log.warning("slow_reader_cut", call=method.full_name, peer=context.peer())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CUT_SECONDS):
                    await _end_with(error, context, method, failures)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - no text of an unexpected one may get out
            await _end_with(error, context, method, failures)
        finally:
            memory.give_back(caller, taken)
            if entered:
                gate.leave(caller)

    return handle


async def _large(answering: _Answering, request: bytes) -> Message:
    """A large request as a message."""
    if answering.large_requests is None:
        return answering.message.FromString(request)
    return await answering.large_requests.parsed(answering.message, request)


async def _end_with(error: BaseException, context: Context, method: MethodDescriptor, failures: Failures) -> NoReturn:
    """Ends a call with what went wrong, in words that the caller may read."""
    if isinstance(error, DecodeError):
        error.with_traceback(None)  # a half-parsed request is held by it
        error = MalformedRequest(method.input_type.full_name)
    elif isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise error  # of this very call; any other would leave the caller waiting for its deadline
        error = failures.shutting_down()
    rich = failures.answer(error, method.full_name)
    await context.abort(rich.code, rich.message, rich.status().trailing_metadata)
