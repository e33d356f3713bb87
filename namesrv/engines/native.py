"""The native engine: how Python drives it, which answers it caches, and which changes make them stale."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import itertools
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, NoReturn

import grpc
import namesrv_engine
import structlog
from google.protobuf.message import Message
from namesrv_engine import end_of_piece

from namesrv import limits
from namesrv.core.changes import Change, SettingChange
from namesrv.core.errors import Refused, limit_exceeded, not_authenticated, overloaded
from namesrv.core.model import Doubt
from namesrv.core.state import RouteState
from namesrv.engines.api import (
    CLUSTERS_DEPENDENCY,
    KEEPALIVE_TIMEOUT_SECONDS,
    KEPT_METHODS,
    Again,
    EngineCall,
    EngineFailed,
    EngineServer,
    FrameCall,
    FrameHandler,
    FrameHits,
    Hits,
    Requests,
    group_dependency,
    max_request_bytes,
)
from namesrv.error_codes import FAILURES
from namesrv.settings import NamesrvSettings, RemotingTlsMode
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import DETAILS_KEY
from namesrv_common.process.program import descriptors_of_listener
from namesrv_common.process.shutdown import in_daemon_thread
from namesrv_common.server import rpc_handlers
from namesrv_common.server.shares import ShareRules
from namesrv_common.tls.certificates import CertificateError, names_in
from namesrv_common.tls.listener_tls import ListenerTls

# The client's identity from its certificate, which the engine has checked.

KNOWN_CERTIFICATES = 4_096
"""Certificates that are kept read, about 3 kB each: reading one takes longer than a lookup."""


@lru_cache(maxsize=KNOWN_CERTIFICATES)
def names_of(certificate: bytes | None) -> Mapping[str, Sequence[bytes]]:
    """The names in a client's certificate (DER), keyed as grpcio keys them; none without a certificate."""
    if certificate is None:
        return {}
    try:
        return names_in(certificate, is_der=True)
    except CertificateError:  # an authority signed what is no X.509: the client has no name
        return {}


# Metadata of calls, between what servicers know and the fields of HTTP/2.

Metadata = tuple[tuple[str, str | bytes], ...]

_BINARY = "-bin"


def _values(name: str, raw: bytes) -> Iterable[str | bytes]:
    if not name.endswith(_BINARY):
        return (raw.decode("latin-1"),)
    try:
        return [binascii.a2b_base64(part.strip() + b"==") for part in raw.split(b",")]
    except binascii.Error:
        return ()


def fields_of(metadata: Iterable[tuple[str, str | bytes]]) -> namesrv_engine.Fields:
    return [
        (name, value.encode("ascii") if isinstance(value, str) else base64.b64encode(value).rstrip(b"="))
        for name, value in metadata
    ]


# One call: what servicers ask of their context, and what the engine is told for it.

_OK = grpc.StatusCode.OK

_DOUBTS = {namesrv_engine.CLOSED_HERE: Doubt.CLOSED_HERE, namesrv_engine.SERVED_LATE: Doubt.OWN_STALL}
"""Causes of the end of a call that say nothing about its client."""


class Call(EngineCall):
    """A call under way, and its servicer's context: as much of gRPC's as handlers use.

    One message of a stream may be on its way to the client while the next one is made; the one after that waits.
    """

    # Here and not in __init__: few calls have any of them, and each would cost every call.
    task: asyncio.Task[None] | None = None
    """What answers it; None if it is answered at once."""
    depends_on: tuple[Sequence[str], int] | None = None
    """The dependencies of its answer, and the generation that it is computed at. None: it is not to be kept."""
    again: Again | None = None
    """Answers the same call when it comes again. None: it is looked at as a whole each time."""
    doubt: Doubt | None = None
    """Why its end says nothing about its client."""
    code, details = _OK, ""
    """The status that it ends with."""
    trailing: Metadata = ()
    _begun = _done = _gone = _writing = False
    _taken: asyncio.Future[None] | None = None
    _message: asyncio.Future[bytes | None] | None = None

    def __init__(self, server: NativeServer, call: namesrv_engine.Call, handler: rpc_handlers.Handler) -> None:
        self.call = call
        """What the engine knows of it."""
        self.handler = handler
        """Answers it."""
        self._server = server

    def on_event(self, kind: int, what: Any) -> None:
        """The engine reports something of the call."""
        if kind == namesrv_engine.WRITABLE:  # the client has taken the last message
            self._writing = False
            if self._taken is not None and not self._taken.done():
                self._taken.set_result(None)
        elif kind == namesrv_engine.MESSAGE:  # of the request; None after the last
            if self._message is not None and not self._message.done():
                self._message.set_result(what)
        elif kind == namesrv_engine.CANCELLED:  # the client or its connection has ended, or the deadline has passed
            self._gone = True
            self.doubt = _DOUBTS.get(what)
            self.end_early(grpc.StatusCode.CANCELLED, "the client has gone")

    def end_early(self, code: grpc.StatusCode, details: str) -> None:
        """Cancels the handler; the client is told the status if it can still be told."""
        if not self._done and self.task is not None:
            self.set_status(code, details)
            self.task.cancel()

    def set_status(self, code: grpc.StatusCode, details: str) -> None:
        self.code, self.details = code, details

    def finish(self, answer: bytes | None = None) -> None:
        """Sends the answer of a unary call, if it ended well, and how it ended."""
        self._done = True
        if self._gone:
            return
        server, number, answers = self._server, self.call.id, self._server.answers
        if self.code is not _OK or answer is None:
            trailing = fields_of(self.trailing)
            server.engine.finish(number, self.code.value[0], self.details, trailing)
            if self.code is grpc.StatusCode.NOT_FOUND and answers is not None:
                answers.put_refusal(self, trailing)
        else:
            server.engine.answer(number, answer)
            if answers is not None:  # else any call may be traced
                answers.put(self, answer)
                if self.again is not None:
                    server.known.learn(self.call, self.again, self.handler.has_room)
        server.flush_soon()

    # What servicers ask of their context.

    def may_keep(self, request: Message, dependencies: Sequence[str]) -> None:
        request.DiscardUnknownFields()
        # With unknown fields, one answer would have many keys.
        if (answers := self._server.answers) is not None and request.SerializeToString() == self.call.request:
            self.depends_on = dependencies, answers.generation

    def may_repeat(self, again: Again) -> None:
        self.again = again

    async def read(self) -> Any:
        """The next message of the request; EOF after the last."""
        self._message = asyncio.get_running_loop().create_future()
        self._server.engine.read(self.call.id)
        self._server.flush_soon()
        message = await self._message
        return rpc_handlers.END_OF_REQUESTS if message is None else message

    async def write(self, message: bytes) -> None:
        """Sends one message of a stream. Waits while the client has not taken the one before."""
        if self._writing:
            self._taken = asyncio.get_running_loop().create_future()
            await self._taken
        self._begun = self._writing = True
        self._server.engine.write(self.call.id, message)
        self._server.flush_soon()

    @property
    def is_free(self) -> bool:
        return self._begun and not (self._writing or self._gone or self._done)

    def write_to_all(self, streams: Sequence[Call], message: bytes) -> None:
        for stream in streams:
            stream._writing = True  # noqa: SLF001 - it is one of us
        self._server.engine.write_all([stream.call.id for stream in streams], message)
        self._server.flush_soon()

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> NoReturn:
        """Ends the call with an error. Raises AbortError, which nobody but the engine should catch."""
        self.set_status(code, details)
        self.trailing = trailing_metadata
        raise grpc.aio.AbortError

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details

    def invocation_metadata(self) -> Metadata:
        """The metadata that the client sent. Binary values that are not base64 are left out."""
        return tuple((name, value) for name, raw in self.call.metadata() for value in _values(name, raw))

    def peer(self) -> str:
        """The client's address, as grpcio writes it."""
        return self.call.peer

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return names_of(self.call.certificate)


# One request of RocketMQ's protocol.


class Frame(FrameCall):
    """A request of RocketMQ's protocol under way, as one frame."""

    __slots__ = ("_again", "_server", "body", "call", "connection", "depends_on", "encoding", "header", "is_admitted")

    def __init__(self, server: NativeServer, call: namesrv_engine.Call) -> None:
        frame = call.frame()
        assert frame is not None, "calls of this method are frames"
        self.connection, self.encoding, self.header, self.body = frame
        self.call = call
        self._server = server
        self.depends_on: tuple[Sequence[str], int] | None = None
        self.is_admitted = False
        self._again: Again | None = None

    @property
    def peer(self) -> str:  # type: ignore[override]
        return self.call.peer

    @property
    def names(self) -> Mapping[str, Sequence[bytes]]:
        return names_of(self.call.certificate)

    def answer(self, frame: bytes) -> None:
        server = self._server
        server.engine.answer(self.call.id, frame)
        if frame and server.answers is not None:
            server.answers.put_frame(self, frame)
        if self._again is not None:
            server.known.learn(self.call, self._again)
        server.flush_soon()

    def may_keep(self, dependencies: Sequence[str], *, is_admitted: bool = True) -> None:
        if self._server.answers is not None:
            self.depends_on, self.is_admitted = (dependencies, self._server.answers.generation), is_admitted

    def may_repeat(self, again: Again) -> None:
        self._again = again

    def release(self) -> None:
        self.call.release_request()

    @property
    def close(self) -> Callable[[], None]:
        return partial(self._server.close_connection, self.connection)


# Answers that the engine may give again by itself: their dependencies, and which changes make them stale.
#
# An answer is handed over in the step of the event loop that computed it, and a change in the step that published it.
# So the engine never has an answer that is older than a change it knows of, and nobody hears of a change before the
# engine.

_PERMITTED = 1
"""The class of callers who may look up; what they are answered does not depend on who they are."""


class KeptAnswers:
    """Fills the engine's answer cache for the tables that are served."""

    def __init__(self, engine: namesrv_engine.Engine, state: RouteState, *, permits: bool) -> None:
        """Keeps answers of these tables from now on."""
        self._engine = engine
        self._permits = permits
        self._state = state
        self._change([])
        state.change_log.listen(self._on_change, first=True)

    def put(self, call: Call, answer: bytes) -> None:
        """Keeps an answer, if its dependencies are known."""
        if call.depends_on is not None and answer.startswith(self._header):
            self._remember(call.call)
            self._engine.put(call.call, answer[len(self._header) :], *call.depends_on)

    def put_refusal(self, call: Call, trailing: namesrv_engine.Fields) -> None:
        """Keeps that something is not found; any other status is a defect, or concerns its caller."""
        if call.depends_on is not None:
            self._remember(call.call)
            self._engine.put_absence(call.call, call.code.value[0], call.details, trailing, *call.depends_on)

    def put_frame(self, frame: Frame, answer: bytes) -> None:
        """Keeps the answer to a request of RocketMQ's protocol."""
        if frame.depends_on is not None:
            if frame.is_admitted:
                self._remember(frame.call)
            self._engine.put_frame(frame.call, answer, *frame.depends_on)

    def _remember(self, call: namesrv_engine.Call) -> None:
        # It has passed the gate of its service in this very step.
        if self._permits:
            self._engine.set_class(call, _PERMITTED)

    def _on_change(self, change: Change) -> None:
        if any(isinstance(row, SettingChange) for row in change.rows):  # it may concern every route
            self._engine.clear()
        dependencies = list(change.topics)
        if groups := change.groups:  # a cluster is added or removed with a group
            dependencies += (*map(group_dependency, groups), CLUSTERS_DEPENDENCY)
        self._change(dependencies)

    def _change(self, dependencies: list[str]) -> None:
        self._header = self._state.header_fragment()
        self.generation = self._engine.change(dependencies, self._header)


# Calls that the engine knows by a number, since they were answered before: what answers them when they come again.

MAX_KNOWN = 32_768
"""Calls that are known at once; then all are forgotten, and learned anew. Some 30 MB at most: heartbeats and questions
of 10,000 brokers, and some more."""

_log = structlog.get_logger(__name__)


class KnownCalls:
    """The calls by their numbers. A number is given once, so a forgotten number stays unknown."""

    def __init__(self, engine: namesrv_engine.Engine, most: int = MAX_KNOWN) -> None:
        self._engine = engine
        self._most = most
        self._numbers = itertools.count(1)
        self._again: dict[int, Again] = {}
        self._has_room: set[Callable[[], bool]] = set()
        """What admits calls of the kinds that are known."""

    def learn(self, call: namesrv_engine.Call, again: Again, has_room: Callable[[], bool] | None = None) -> None:
        """A call was answered well; when it comes again, it comes by a number.

        Args:
            has_room: Whether nobody would be refused one more of its kind. None if its kind takes no share.
        """
        if (before := call.known) is not None:
            self._again.pop(before, None)
        if len(self._again) >= self._most:
            self.forget()
        number = next(self._numbers)
        if self._engine.know(call, number):
            self._again[number] = again
            if has_room is not None:
                self._has_room.add(has_room)

    def forget(self) -> None:
        """Every call is looked at as a whole again."""
        self._again.clear()
        self._engine.forget_known()

    def answers(self, numbers: Sequence[int]) -> list[bytes | None]:
        """The answers to calls that were sent as numbers; None where a call has to be examined in full."""
        if not all(has_room() for has_room in self._has_room):  # only a whole call tells whose share it takes
            return [None] * len(numbers)
        find, answers = self._again.get, list[bytes | None]()
        for number in numbers:
            again = find(number)
            try:
                answers.append(None if again is None else again())
            except Exception:  # noqa: BLE001 - the others of its turn have nothing to do with it
                _log.exception("known_call_failed")
                answers.append(None)
        return answers


# Sockets that a server listens on: TCP at every address of a host.

BACKLOG = 4_096
"""Connections that may wait to be accepted; the system may allow fewer."""


def listen(target: str) -> list[socket.socket]:
    """Listens at ``HOST:PORT``, and returns the sockets, all of one port; port 0 takes any free one. Raises OSError."""
    with contextlib.ExitStack() as opened:
        sockets: list[socket.socket] = []
        host, port = Endpoint.parse(target, allow_port_zero=True)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            at, is_dual = (address[0], port, *address[2:]), host == "::"
            one = socket.create_server(at, family=family, backlog=BACKLOG, dualstack_ipv6=is_dual)
            sockets.append(opened.enter_context(one))
            port = port or one.getsockname()[1]
        opened.pop_all()
    return sockets


# The server of the native engine: hands the engine's events to calls, and the calls' answers to the engine.

CUT_SECONDS = 1.0
"""How long calls that are cut at the end may take to end, and then the engine to send what they said last."""

_INTERNAL_ERROR = "an internal error, which the server's log tells of"

DRAIN, END, LEAVE = 1, 2, 3
"""Stages of the engine's end."""


class Waited(RuntimeError):
    """A call that is answered at once waits for something: a defect."""


def run_at_once(call: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine that does not wait to its end. A task would cost as much as a lookup.

    Raises:
        Waited: It waits. It was told so itself, and may have answered before it ended.
    """
    try:
        call.send(None)
        call.throw(Waited("a call that is answered at once waits for something"))
    except StopIteration:
        return
    call.close()
    raise Waited("a call that is answered at once goes on waiting")


class NativeServer(EngineServer):
    """A server whose sockets, TLS, HTTP/2 and answer cache are in Rust."""

    def __init__(self, settings: NamesrvSettings, tls: ListenerTls | None) -> None:
        self._settings = settings
        self._permits = settings.permits_file is not None
        self._tls = tls
        self._sockets: list[tuple[socket.socket, RemotingTlsMode | None]] = []
        """Sockets that the engine does not have yet, with the TLS of RocketMQ's protocol if that is spoken there."""
        self._registered: dict[str, rpc_handlers.Handler] = {}
        self._handlers: list[rpc_handlers.Handler] = []
        """By the engine's number of the method."""
        self._requests: Sequence[Requests] = ()
        """The requests of RocketMQ's protocol. Their numbers follow the numbers of the methods."""
        self._frames: FrameHandler | None = None
        self._state: RouteState | None = None
        self._follows_traces = True
        self.answers: KeptAnswers | None = None
        """None where none are kept, and before the start."""
        self.known: KnownCalls
        """There are some once it has been started."""
        self._calls: dict[int, Call] = {}
        self._flushing = False
        self._ended = asyncio.Event()
        self._is_stopping = False
        self._has_failed = asyncio.Event()
        self._cause = ""
        """Why the engine failed."""
        self.engine: namesrv_engine.Engine
        """There is one once it has been started."""
        self.end_of_piece = end_of_piece

    def add_handlers(self, service_name: str, handlers: Mapping[str, rpc_handlers.Handler]) -> None:
        self._registered.update({f"/{service_name}/{name}": handler for name, handler in handlers.items()})

    def listen(self, address: str, sockets: list[socket.socket], frames: FrameHandler | None = None) -> int:
        mode: RemotingTlsMode | None = None
        if frames is not None:
            self._frames, self._requests, mode = frames, frames.requests, self._settings.remoting_tls_mode
        sockets = sockets or listen(address)
        self._sockets += [(one, mode) for one in sockets]
        port: int = sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        self._handlers = list(self._registered.values())
        self.engine = self._new_engine()
        if self._frames is not None:
            self.engine.set_go_away(*self._frames.go_away)
        with socket.socket(fileno=self.engine.handover()) as door:
            for one, mode in self._sockets:
                socket.send_fds(door, [b"\0"], [one.fileno()])
                self.engine.listen(mode)
                one.close()
        self.show_certificates()
        if self._state is not None:
            self.answers = KeptAnswers(self.engine, self._state, permits=self._permits)
        self.known = KnownCalls(self.engine)
        asyncio.get_running_loop().add_reader(self.engine.fileno(), self._on_events)
        self.engine.start()

    def show_certificates(self) -> None:
        if self._tls is not None:
            shown = self._tls.value
            self.engine.set_tls(shown.pair.certificate, shown.pair.key, shown.authorities)

    async def stop(self, grace: float) -> None:
        self._is_stopping = True
        self.engine.stop(DRAIN)
        until = asyncio.get_running_loop().time() + grace
        await self._until_calls_ended(grace)
        for call in list(self._calls.values()):
            call.end_early(grpc.StatusCode.UNAVAILABLE, "the name server is shutting down")
        await self._until_calls_ended(CUT_SECONDS)
        self._flush()
        await self._until_connections_ended(until)
        asyncio.get_running_loop().remove_reader(self.engine.fileno())
        await in_daemon_thread("engine-join", self.engine.join)  # a thread that hangs must not keep the process

    async def until_failed(self) -> NoReturn:
        await self._has_failed.wait()
        raise EngineFailed(self._cause)

    def keep_answers_of(self, state: RouteState, *, follows_traces: bool) -> None:
        self._state, self._follows_traces = state, follows_traces

    def forget_callers(self) -> None:
        self.engine.renew_permits()
        self.known.forget()

    def hits(self) -> Hits:
        return {
            (path.removeprefix("/"), code): (count, nanos / 1e9 * count / (found + absent))
            for path, (found, absent, nanos) in zip(self._registered, self.engine.hits(), strict=False)
            for code, count in ((_OK, found), (grpc.StatusCode.NOT_FOUND, absent))
            if count
        }

    def frame_hits(self) -> FrameHits:
        of_requests = zip(self._requests, self.engine.hits()[len(self._registered) :], strict=False)
        return {
            requests.code: (found + absent, nanos / 1e9)
            for requests, (found, absent, nanos) in of_requests
            if requests.code is not None and found + absent
        }

    def stats(self) -> Mapping[str, int]:
        return self.engine.stats()

    def http2_errors(self) -> Mapping[str, int]:
        return self.engine.http2_errors()

    # What calls need.

    def flush_soon(self) -> None:
        """Has what was told to the engine reach it before the event loop waits."""
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def close_connection(self, connection_id: int) -> None:
        """Ends a connection of RocketMQ's protocol once its answers have left."""
        self.engine.close(connection_id)
        self.flush_soon()

    def _flush(self) -> None:
        self._flushing = False
        self.engine.flush()

    def _on_events(self) -> None:
        self._flushing = True  # what these events lead to leaves together
        for kind, number, what in self.engine.take():
            self._try_event(kind, number, what)
        self._flush()

    def _try_event(self, kind: int, number: int, what: Any) -> None:
        """Handles an event. If that fails, its call ends."""
        try:
            self._on_event(kind, number, what)
        except Exception:  # noqa: BLE001 - the other events of the batch have been taken from the engine, too
            _log.exception("engine_event_failed", kind=kind, call_id=number)
            if (call := self._calls.get(number)) is not None:
                call.end_early(grpc.StatusCode.INTERNAL, _INTERNAL_ERROR)
            elif kind == namesrv_engine.CALL:
                self.engine.finish(number, grpc.StatusCode.INTERNAL.value[0], _INTERNAL_ERROR, [])

    def _on_event(self, kind: int, number: int, what: Any) -> None:
        match kind:
            case namesrv_engine.CALL:
                self._on_call(number, what)
            case namesrv_engine.KNOWN:
                self._on_known(what)
            case namesrv_engine.NOTICE:
                event, peer, problem, not_told = what
                _log.warning(event, peer=peer, problem=problem, not_told=not_told)
            case namesrv_engine.FAILED:
                self._failed(what)
            case namesrv_engine.LEFT:
                if self._frames is not None:
                    self._frames.left(number, _DOUBTS.get(what))
            case namesrv_engine.STOPPED:
                self._ended.set()
                if not self._is_stopping:
                    self._failed("all its threads have ended")
            case _:
                if (call := self._calls.get(number)) is not None:
                    call.on_event(kind, what)

    def _failed(self, cause: str) -> None:
        """Has the name server end with an error: connections of a dead thread would never be answered again."""
        _log.error("engine_stopped", problem=cause)
        self._cause = self._cause or cause
        self._has_failed.set()

    def _on_known(self, known: namesrv_engine.KnownCalls) -> None:
        try:
            others = self.engine.answer_known(known, self.known.answers(known.numbers))
        except Exception:  # noqa: BLE001 - none of the batch is answered yet, and each has to be
            _log.exception("known_calls_failed")
            others = self.engine.answer_known(known, [None] * len(known.numbers))
        for called in others:
            self._try_event(namesrv_engine.CALL, called.id, called)

    def _on_call(self, number: int, called: namesrv_engine.Call) -> None:
        if called.method >= len(self._handlers):
            assert self._frames is not None, "there are no such methods without it"
            self._frames.received(Frame(self, called))
            return
        handler = self._handlers[called.method]
        call = Call(self, called, handler)
        if handler.has_room is not None:  # it never waits
            run_at_once(self._conclude(call))
            return
        self._calls[number] = call
        call.task = asyncio.get_running_loop().create_task(self._conclude(call))
        call.task.add_done_callback(lambda _: self._calls.pop(number))

    async def _conclude(self, call: Call) -> None:
        """Ends a call with the result of its handler: the answer of a unary call, or an error. Raises nothing."""
        handler, answer = call.handler, None
        try:
            answering = handler.answer(call.call.request, call)
            if handler.response_streaming:
                call.call.release_request()  # the stream may last, and Python has a copy
            answer = await answering  # None of a stream, whose messages are written while it is made
        except grpc.aio.AbortError:
            pass  # the call knows with what
        except asyncio.CancelledError:
            if call.code is _OK:
                call.set_status(grpc.StatusCode.UNAVAILABLE, "the name server is shutting down")
        except Exception:  # noqa: BLE001 - it stays with its call, and none of its text gets out
            self._failed_in_handler(call)
        finally:
            self._finish(call, answer)

    def _finish(self, call: Call, answer: bytes | None) -> None:
        try:
            call.finish(answer)
        except Exception:  # noqa: BLE001 - an answer or metadata that cannot be encoded
            self._failed_in_handler(call)
            call.finish()

    def _failed_in_handler(self, call: Call) -> None:
        """Has the call end with an error, whatever its handler has set before."""
        _log.exception("handler_failed", call=list(self._registered)[call.call.method])
        call.set_status(grpc.StatusCode.INTERNAL, _INTERNAL_ERROR)
        call.trailing = ()

    def _new_engine(self) -> namesrv_engine.Engine:
        methods = [
            (path, handler.request_streaming, path in KEPT_METHODS, max_request_bytes(path), _counted_as(path))
            for path, handler in self._registered.items()
        ]
        return namesrv_engine.Engine(
            methods,
            self._requests,
            limits=limits_of(self._settings),
            threads=self._settings.engine_threads,
            permits=self._permits,
            follows_traces=self._follows_traces,
            explanations=_explanations(self._settings.share_rules),
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
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        return self._ended.is_set()


def _counted_as(path: str) -> str:
    """The kind of an open call: health and reflection have limits of their own."""
    if path.startswith("/grpc.reflection."):
        return "reflection_calls"
    return "health_calls" if path.startswith("/grpc.health.") else "calls"


def limits_of(settings: NamesrvSettings) -> namesrv_engine.Limits:
    """The engine's limits. ``engine/src/limits.rs`` says what each bound prevents."""
    shares = settings.share_rules
    return {
        "cache_bytes": settings.cache_bytes,
        "max_metadata": limits.MAX_METADATA_BYTES,
        "max_streams": limits.MAX_CONCURRENT_STREAMS,
        "max_connections": min(limits.MAX_CONNECTIONS, descriptors_of_listener(1)),
        "max_calls": limits.MAX_CALLS_UNDER_WAY,
        "max_health_calls": limits.MAX_PROBES_UNDER_WAY,
        "max_reflection_calls": limits.MAX_REFLECTIONS_UNDER_WAY,
        "max_bytes_in": limits.MAX_REQUEST_BYTES_UNDER_WAY,
        "max_waiting": limits.MAX_ANSWER_BYTES_WAITING,
        "caller_percent": shares.caller_percent,
        "kept_percent": shares.kept_percent,
        "max_cancels": 2 * limits.MAX_CONCURRENT_STREAMS,  # two full sets of calls within a keepalive time
        "max_connection_rate": limits.MAX_CONNECTIONS_PER_SECOND,
        "keepalive": timedelta(milliseconds=settings.keepalive_time_millis),
        "keepalive_timeout": timedelta(seconds=KEEPALIVE_TIMEOUT_SECONDS),
        "handshake_timeout": timedelta(seconds=10),
        "body_timeout": timedelta(seconds=20),
        "slow_reader": timedelta(milliseconds=settings.slow_reader_timeout_millis),
        "proxies": [(network.network_address, network.prefixlen) for network in settings.proxy_networks],
        "linger": timedelta(seconds=5),
    }


def _explanations(
    shares: ShareRules,
) -> tuple[list[namesrv_engine.Explanation], list[namesrv_engine.Explanation], namesrv_engine.Explanation]:
    """Returns what the engine tells calls that it ends itself: in all, of one address, and by a refused certificate."""
    bounds = [
        ("open calls", limits.MAX_CALLS_UNDER_WAY),
        ("open calls of health", limits.MAX_PROBES_UNDER_WAY),
        ("open calls of reflection", limits.MAX_REFLECTIONS_UNDER_WAY),
        ("bytes of requests", limits.MAX_REQUEST_BYTES_UNDER_WAY),
    ]
    text = "{} are over the limit of {} in all; try again in a moment"
    in_all = [_refusal(overloaded(text.format(what, most))) for what, most in bounds]
    of_callers = [(what, shares.of_caller(most)) for what, most in bounds]
    of_address = [_refusal(limit_exceeded(what, share + 1, share, "your address")) for what, share in of_callers]
    return in_all, of_address, _refusal(not_authenticated("the certificate of this connection is no longer accepted"))


def _refusal(error: Refused) -> namesrv_engine.Explanation:
    """What the engine tells calls that it ends itself: the text, the details as they travel, and the pushback."""
    rich = FAILURES.rich(error)
    details = dict(fields_of(rich.trailers()))[DETAILS_KEY]
    return rich.message, details, rich.pushback_millis
