"""The server of the native engine: hands the engine's events to calls, and the calls' answers to the engine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Coroutine, Iterable, Mapping
from typing import Any, TypeAlias

import grpc
import namesrv_engine
import structlog
from namesrv_engine import CALL, CANCELLED, KNOWN, MESSAGE, NOTICE, STOPPED, WRITABLE, end_of_piece

from groundwork.connections.listener_tls import ListenerTls
from groundwork.grpc_handlers import inline_calls
from groundwork.program.freed_memory import FreedMemory, malloc_trim, resident_bytes
from groundwork.rich_errors import DETAILS_KEY
from namesrv.core.errors import Overloaded
from namesrv.core.registrations import RouteInfoManager
from namesrv.server.engines.native.answers import KeptAnswers
from namesrv.server.engines.native.call import Call
from namesrv.server.engines.native.entrance import Entrance
from namesrv.server.engines.native.known_calls import KnownCalls
from namesrv.server.engines.native.metadata import fields_of
from namesrv.server.engines.native.options import Options
from namesrv.server.rpc.kept_answers import KEPT_METHODS
from namesrv.server.rpc.repeated_calls import Again
from namesrv.server.rpc.status import FAILURES

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

CUT_SECONDS = 1.0
"""How long calls that are cut at the end may take to end, and then the engine to send what they said last."""

DRAIN, END, LEAVE = 1, 2, 3
"""Stages of the engine's end."""

_log = structlog.get_logger(__name__)


class NativeServer(grpc.aio.Server):
    """A ``grpc.aio`` server whose sockets, TLS, HTTP/2 and kept answers are in Rust."""

    def __init__(self, options: Options, holding: frozenset[str], tls: ListenerTls | None) -> None:
        """Makes it.

        Args:
            options: How the engine is to be.
            holding: Streams that keep their connection from growing too old.
            tls: The certificates to show; None: no TLS.
        """
        self.options = options
        """As it was made."""
        self._holding = holding
        self._entrance = Entrance(tls)
        self._registered: dict[str, Handler] = {}
        self._handlers: list[tuple[Handler, bool]] = []
        """By the engine's number of the method, and whether it never waits."""
        self._paths: list[str] = []
        self._manager: RouteInfoManager | None = None
        self._answers: KeptAnswers | None = None
        self._known: KnownCalls
        """There are some once it has been started."""
        self._calls: dict[int, Call] = {}
        self._flushing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._background: list[asyncio.Task[None]] = []
        self._ended = asyncio.Event()
        self._stopped = asyncio.Event()
        self.engine: namesrv_engine.Engine
        """There is one once it has been started."""

    # What a grpc.aio server has.

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler[Any, Any]]) -> None:
        """Nothing: whoever calls this adds each method, too."""

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Handler]) -> None:
        """Adds the methods of a service."""
        self._registered.update({f"/{service_name}/{name}": handler for name, handler in method_handlers.items()})

    def add_insecure_port(self, address: str) -> int:
        """Listens without TLS. Raises OSError."""
        return self._entrance.listen(address, with_tls=False)

    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> int:  # noqa: ARG002 - the certificates are here already, and grpcio's credentials tell nothing
        """Listens with TLS. Raises OSError."""
        return self._entrance.listen(address, with_tls=True)

    def adopt(self, sockets: list[socket.socket], *, with_tls: bool) -> int:
        """Takes sockets that listen already, all at one port; returns that."""
        return self._entrance.adopt(sockets, with_tls=with_tls)

    async def start(self) -> None:
        """Begins to accept. Raises ValueError if the certificates cannot be used."""
        self._paths = list(self._registered)
        self._handlers = [(handler, inline_calls.is_marked(handler)) for handler in self._registered.values()]
        self.engine = self._new_engine()
        if (passing_on := self._entrance.hand_over(self.engine)) is not None:
            self._background.append(passing_on)
        self._answers = KeptAnswers(self.engine, permits=self.options.permits)
        self._known = KnownCalls(self.engine)
        if self._manager is not None:
            self._answers.serve(self._manager)
        self._background.append(asyncio.create_task(FreedMemory(self.stats, resident_bytes, malloc_trim).run()))
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.engine.fileno(), self._on_events)
        self.engine.start()

    async def stop(self, grace: float | None = None) -> None:
        """Takes no more connections, lets calls under way end, then cuts them."""
        if self._answers is None:
            self._entrance.close()
            self._stopped.set()
            return
        self.engine.stop(DRAIN)
        until = asyncio.get_running_loop().time() + (grace or 0.0)
        await self._until_calls_ended(grace or 0.0)
        for call in list(self._calls.values()):
            call.end_early(grpc.StatusCode.UNAVAILABLE, "the name server is shutting down")
        await self._until_calls_ended(CUT_SECONDS)
        self._flush()
        await self._until_connections_ended(until)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        asyncio.get_running_loop().remove_reader(self.engine.fileno())
        await asyncio.to_thread(self.engine.join)
        self._stopped.set()

    async def wait_for_termination(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - grpc's signature
        """Waits until it has stopped; whether the time was over before."""
        try:
            async with asyncio.timeout(timeout):
                await self._stopped.wait()
        except TimeoutError:
            return True
        return False

    # What a server has that looks into messages.

    @staticmethod
    def end_of_piece(request: bytes, begin: int, least_bytes: int, most_fields: int, /) -> int:
        """Where a piece of a request ends that can be parsed before the others."""
        return end_of_piece(request, begin, least_bytes, most_fields)

    # What a server has that keeps answers.

    def keep_answers_of(self, manager: RouteInfoManager) -> None:
        """Answers are of these tables from now on."""
        self._manager = manager
        if self._answers is not None:
            self._answers.serve(manager)

    def forget_callers(self) -> None:
        """Whoever calls must show again that he may. Thread-safe."""
        if self._answers is not None and self._loop is not None:
            self._forget_callers()
            # A call may have passed by the permits of before, and be remembered only now.
            self._loop.call_soon_threadsafe(self._forget_callers)

    @property
    def generation(self) -> int:
        """Of the tables: how often they have changed, as the engine counts."""
        return 0 if self._answers is None else self._answers.generation

    def hits(self) -> dict[tuple[str, grpc.StatusCode], tuple[int, float]]:
        """What the engine has answered by itself, by method and code: how many, and the seconds they took."""
        if self._answers is None:
            return {}
        counts, nanos = self.engine.hits()
        of_method: dict[int, int] = {}
        for method, _, count in counts:
            of_method[method] = of_method.get(method, 0) + count
        return {
            (self._paths[method].removeprefix("/"), _CODES[code]): (
                count,
                nanos[method] / 1e9 * count / of_method[method],
            )
            for method, code, count in counts
        }

    def stats(self) -> Mapping[str, int]:
        """Counters and gauges of the engine."""
        return {} if self._answers is None else self.engine.stats()

    # What calls need.

    def flush_soon(self) -> None:
        """Has what was told to the engine reach it before the event loop waits."""
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def answered(self, call: Call, message: bytes) -> None:
        """A call was answered with this message, and what the message rests on is known."""
        if self._answers is not None:
            self._answers.put(call, message)

    def refused(self, call: Call) -> None:
        """A call was ended with a status, and what the status rests on is known."""
        if self._answers is not None:
            self._answers.put_refusal(call)

    def learned(self, call: Call, again: Again) -> None:
        """A call was answered well, and it is known how to answer it when it comes again."""
        if self._manager is not None:  # else any call may be traced, and has to be looked at
            self._known.learn(call, again, inline_calls.room_of(call.handler))

    # Details.

    def _forget_callers(self) -> None:
        self.engine.forget_classes()
        self._known.forget()

    def _flush(self) -> None:
        self._flushing = False
        self.engine.flush()

    def _on_events(self) -> None:
        self._flushing = True  # what these events lead to leaves together
        for kind, number, what in self.engine.take():
            if kind == CALL:
                self._on_call(number, what)
            elif kind == KNOWN:
                self._on_known(what)
            elif kind == NOTICE:
                event, peer, problem, not_told = what
                _log.warning(event, peer=peer, problem=problem, not_told=not_told)
            elif kind == STOPPED:
                self._ended.set()
            elif (call := self._calls.get(number)) is not None:
                _tell(call, kind, what)
        self._flush()

    def _on_known(self, known: namesrv_engine.KnownCalls) -> None:
        for called in self.engine.answer_known(known, self._known.answers(known.numbers)):
            self._on_call(called.id, called)

    def _on_call(self, number: int, called: namesrv_engine.Call) -> None:
        handler, never_waits = self._handlers[called.method]
        call = Call(self, called, handler)
        if never_waits:
            answering: Any = handler.unary_unary  # the stubs know of the blocking kind only
            inline_calls.run(self._conclude(call, answering(call.request(), call)))
            return
        self._calls[number] = call
        call.task = asyncio.get_running_loop().create_task(self._run(number, call))

    async def _run(self, number: int, call: Call) -> None:
        try:
            await self._conclude(call, _handled(call))
        finally:
            del self._calls[number]

    async def _conclude(self, call: Call, answering: Awaitable[Any]) -> None:
        """Ends a call with what comes of answering it: the answer of a unary call, or an error. Raises nothing."""
        answer = None
        try:
            answer = await answering
        except grpc.aio.AbortError:
            pass  # the call knows with what
        except asyncio.CancelledError:
            if call.code() is grpc.StatusCode.OK:
                call.set_status(grpc.StatusCode.UNAVAILABLE, "the name server is shutting down")
        except Exception:  # noqa: BLE001 - it stays with its call, and none of its text gets out
            _log.exception("handler_failed", call=self._paths[call.call.method])
            call.set_status(grpc.StatusCode.INTERNAL, "an internal error, which the server's log tells of")
        finally:
            call.finish(answer)

    def _new_engine(self) -> namesrv_engine.Engine:
        options = self.options
        methods = [
            (path, handler.request_streaming, path in KEPT_METHODS, path in self._holding)
            for path, handler in self._registered.items()
        ]
        return namesrv_engine.Engine(
            methods,
            threads=options.threads,
            permits=options.permits,
            cache_bytes=options.cache_bytes,
            max_message=options.max_message,
            max_metadata=options.max_metadata,
            max_streams=options.max_streams,
            max_connections=options.max_connections,
            max_connections_of_address=options.max_connections_of_address,
            kept_connections=options.kept_connections,
            max_pending=options.max_pending,
            max_assembling=options.max_assembling,
            max_waiting=options.max_waiting,
            max_cancels=options.max_cancels,
            max_connection_rate=options.max_connection_rate,
            keepalive=options.keepalive,
            keepalive_timeout=options.keepalive_timeout,
            handshake_timeout=options.handshake_timeout,
            body_timeout=options.body_timeout,
            linger=options.linger,
            max_connection_age=options.max_connection_age,
            overloaded=_overloaded(),
        )

    async def _until_calls_ended(self, seconds: float) -> None:
        tasks = {call.task for call in self._calls.values() if call.task is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    async def _until_connections_ended(self, until: float) -> None:
        """Lets connections go as long as some do, which takes thousands seconds; then ends them, then leaves them.

        Args:
            until: When the time of their own is over, by the event loop's clock.
        """
        stages = [END, LEAVE]
        connections = self.stats()["connections"]
        while not await self._has_ended(CUT_SECONDS) and stages:
            before, connections = connections, self.stats()["connections"]
            if connections == before or asyncio.get_running_loop().time() >= until:
                self.engine.stop(stages.pop(0))
        self.engine.stop(LEAVE)

    async def _has_ended(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True


_CODES = {code.value[0]: code for code in grpc.StatusCode}


def _overloaded() -> tuple[str, bytes]:
    """What the engine tells a call for which there is no room now: the text, and the details as they travel."""
    rich = FAILURES.table.rich(Overloaded("too much is under way or coming in; try again in a moment"))
    return rich.message, dict(fields_of(rich.status().trailing_metadata))[DETAILS_KEY]


def _tell(call: Call, kind: int, what: Any) -> None:
    """Tells a call what has become of it."""
    if kind == WRITABLE:
        call.writable()
    elif kind == CANCELLED:
        call.went()
    elif kind == MESSAGE:
        call.received(what)


def _handled(call: Call) -> Coroutine[Any, Any, Any]:
    """What answers a call."""
    handler, request = call.handler, call.request()
    if handler.response_streaming:
        answering: Any = handler.stream_stream if handler.request_streaming else handler.unary_stream
        return _streamed(call, answering(request, call))
    once: Any = handler.stream_unary if handler.request_streaming else handler.unary_unary
    answered: Coroutine[Any, Any, Any] = once(request, call)
    return answered


async def _streamed(call: Call, answers: Any) -> None:
    if not hasattr(answers, "__aiter__"):
        await answers
        return
    async for answer in answers:
        await call.write(answer)
