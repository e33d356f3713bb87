"""The server of the envoy engine: its calls come from Envoy, which has the sockets, HTTP/2 and TLS."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

import grpc
import structlog

from groundwork.connections.listener_tls import ListenerTls
from groundwork.files.hot_reload import CHECK_SECONDS
from groundwork.grpc_handlers.inline_calls import is_marked
from namesrv.server.engines.envoy.admin import ADMIN_SOCKET, AdminFailed, EnvoyAdmin
from namesrv.server.engines.envoy.answering import Handler, is_grpc, refuse, refuse_other_protocol, run
from namesrv.server.engines.envoy.call import Call, Receive, Send
from namesrv.server.engines.envoy.inside import Inside
from namesrv.server.engines.envoy.polling import PeerPoll
from namesrv.server.engines.envoy.prompt import NOTHING_TO_RUN, PromptCalls, Scope, is_plain

PROMPT_SECONDS, PROMPT_PER_SECOND = 0.5, 4_000
"""Period of polling for streams whose end means something by itself, and most polls in a second."""

IDLE_SECONDS, IDLE_PER_SECOND = 10.0, 1_000
"""The same for other streams: most of these notice the end when they write."""

MAX_UNREAD = 1_000
"""Most ended streams whose readers still live and take nothing: Envoy cannot be told to reset them, and holds a message
for each. Beyond it other streams are refused, but not channels of brokers.
"""

CUT_SECONDS = 1.0
"""Time that cut calls have to end at shutdown, and then Envoy to send their last messages."""

_PAUSE_SECONDS = 0.01
_ACTIVE_REQUESTS = "http.grpc.downstream_rq_active"

_log = structlog.get_logger(__name__)


class EnvoyServer(grpc.aio.Server):
    """A ``grpc.aio`` server inside Envoy, with one event loop."""

    def __init__(self, inside: Inside, prompt_paths: frozenset[str], tls: ListenerTls | None) -> None:
        """Makes it.

        Args:
            inside: The Envoy around it.
            prompt_paths: The streams whose end means something by itself.
            tls: The certificates that Envoy shows; it reads them when these have been found good.
        """
        self._inside = inside
        self._admin = EnvoyAdmin(inside.folder / ADMIN_SOCKET)
        self._tls = tls
        self._handlers: dict[str, Handler] = {}
        self._handlers_at_once: dict[str, Handler] = {}
        self._at_once = PromptCalls(self._answer)
        self._prompt_paths = prompt_paths
        self._prompt = PeerPoll(PROMPT_SECONDS, PROMPT_PER_SECOND)
        self._idle = PeerPoll(IDLE_SECONDS, IDLE_PER_SECOND)
        self._calls: set[Call] = set()
        self._unread: set[asyncio.Future[None]] = set()
        """Messages of ended streams that readers have not taken yet: Envoy holds them."""
        self._stopping = False
        self._background: list[asyncio.Task[None]] = []
        self._stopped = asyncio.Event()
        inside.answer = self.answer

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler[Any, Any]]) -> None:
        """Does nothing: callers of this add each method, too."""

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Handler]) -> None:
        """Adds the methods of a service."""
        handlers = {f"/{service_name}/{name}": handler for name, handler in method_handlers.items()}
        self._handlers.update(handlers)
        self._handlers_at_once.update({path: handler for path, handler in handlers.items() if is_marked(handler)})

    def add_insecure_port(self, address: str) -> int:  # noqa: ARG002 - there is one listener, and it is Envoy's
        """The port that Envoy listens on."""
        return self._inside.handed.port

    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> int:  # noqa: ARG002 - see above
        """The port that Envoy listens on, with TLS of its own."""
        return self._inside.handed.port

    async def start(self) -> None:
        """Has Envoy listen. Raises TimeoutError."""
        await self._inside.open()
        work = [self._prompt.run(), self._idle.run(), self._at_once.run()]
        if self._tls is not None:
            work.append(self._pass_certificates_on(self._tls))
        self._background = [asyncio.create_task(coroutine) for coroutine in work]

    async def _pass_certificates_on(self, tls: ListenerTls) -> None:
        """Has Envoy read certificates again that have been read and found good here. Runs until cancelled."""
        passed_on = tls.generation
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            if tls.generation != passed_on:
                passed_on = tls.generation
                await asyncio.to_thread(self._inside.read_certificates_again)

    def answer(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Answers one request: an application of ASGI, whose result is to be run in a task. Raises nothing."""
        handler = self._handlers_at_once.get(scope["path"])
        if handler is None or self._stopping or not is_plain(scope["headers"]):
            return self._answer(scope, receive, send)
        self._at_once.begin(handler, scope, receive, send)
        return NOTHING_TO_RUN

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not is_grpc(scope["headers"]):
            refuse_other_protocol(send)
            return
        call = Call(scope, receive, send, asyncio.current_task())
        if self._stopping:  # the client goes on elsewhere
            refuse(call, grpc.StatusCode.UNAVAILABLE, "the name server is shutting down")
            return
        handler = self._handlers.get(scope["path"])
        poll = self._poll_for(scope["path"], handler)
        if poll is self._idle and len(self._unread) >= MAX_UNREAD:
            details = f"{len(self._unread)} streams have ended whose readers have not taken what they were sent"
            refuse(call, grpc.StatusCode.RESOURCE_EXHAUSTED, details)
            return
        self._calls.add(call)
        if poll is not None:
            poll.add(call)
        try:
            await run(call, handler, scope)
        finally:
            self._calls.discard(call)
            if poll is not None:
                poll.discard(call)
            if (unread := call.unread) is not None:
                self._unread.add(unread)
                unread.add_done_callback(self._unread.discard)

    def _poll_for(self, path: str, handler: Handler | None) -> PeerPoll | None:
        if handler is None or handler.request_streaming or not handler.response_streaming:
            return None
        return self._prompt if path in self._prompt_paths else self._idle

    async def stop(self, grace: float | None = None) -> None:
        """Takes no more connections and calls, lets those under way end, then cuts them."""
        if not self._background:  # Envoy waits for us to let it listen, and answers nobody
            self._stopped.set()
            return
        self._at_once.give_tasks()
        await asyncio.sleep(0)  # these begin as the calls that they were
        self._stopping = True
        for target in ("/healthcheck/fail", "/drain_listeners"):  # the first has Envoy say GOAWAY with each answer
            try:
                await self._admin.post(target)
            except AdminFailed as error:
                _log.warning("envoy_not_drained", problem=str(error))
        await self._until_calls_ended(grace or 0.0)
        for call in list(self._calls):
            call.end_early(grpc.StatusCode.UNAVAILABLE, "the name server is shutting down")
        await self._until_calls_ended(CUT_SECONDS)
        await self._until_sent()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._stopped.set()

    async def _until_calls_ended(self, seconds: float) -> None:
        if self._calls:
            await asyncio.wait({call.task for call in self._calls if call.task is not None}, timeout=seconds)

    async def _until_sent(self) -> None:
        """Gives Envoy time to write what the last calls said; readers that do not read do not get it."""
        try:
            async with asyncio.timeout(CUT_SECONDS):
                while await self._admin.number(_ACTIVE_REQUESTS):  # noqa: ASYNC110 - Envoy does not say when
                    await asyncio.sleep(_PAUSE_SECONDS)
        except (TimeoutError, AdminFailed):
            _log.info("answers_not_all_taken")

    async def wait_for_termination(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - grpc's signature
        """Waits until it has stopped; returns whether the time ran out before."""
        try:
            async with asyncio.timeout(timeout):
                await self._stopped.wait()
        except TimeoutError:
            return True
        return False
