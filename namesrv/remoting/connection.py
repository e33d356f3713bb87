"""One connection: frames in, answers out, and the bounds on both."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol, cast
from uuid import uuid4

import structlog

from groundwork.shares import Sharer, address_at
from namesrv.app.event_log import ROUTINE
from namesrv.core.errors import Refused, internal_defect
from namesrv.error_codes import ResponseCode
from namesrv.remoting.answers import refusal
from namesrv.remoting.caller import Caller
from namesrv.remoting.calls import Calls, InTurn
from namesrv.remoting.limits import (
    FRAME_SECONDS,
    FRAME_SILENCE_SECONDS,
    FREE_BYTES,
    MAX_UNSENT_BYTES,
    MAX_WAITING_REQUESTS,
    MEMORY_SECONDS,
)
from namesrv.remoting.memory import FrameMemory
from namesrv.remoting.scheduling import LoopTime
from namesrv.remoting.tls import certificate_problem
from namesrv.remoting.wire.codes import RequestCode
from namesrv.remoting.wire.frames import BrokenFrame, Frame, FrameReader
from namesrv.remoting.wire.headers import Request, answer, request_of

WRITE_BYTES = 64 * 1024
"""Bytes of answers that are collected before they are written. Only written answers count towards MAX_UNSENT_BYTES."""

READ_BYTES = 64 * 1024
"""Most bytes that are read at once. Their memory is taken before."""

FEWEST_BYTES = 4 * 1024
"""Fewest bytes for which memory is taken, so that reads are not small."""

HEADER_WEIGHT = 8
"""Bytes that each byte of a header takes while its request waits: fields are objects then."""

_log = structlog.get_logger(__name__)


class Home(Protocol):
    """The listener that a connection belongs to."""

    buffer: memoryview
    """Where bytes are read into: ``READ_BYTES``."""
    memory: FrameMemory
    time: LoopTime
    calls: Calls
    """What answers requests now."""

    def opened(self, connection: Connection) -> None: ...

    def asked(self, connection: Connection) -> None:
        """A connection has sent its first whole request."""

    def closed(self, connection: Connection) -> None: ...

    def owes(self, connection: Connection) -> None:
        """Bytes wait for the peer of a connection. May end that connection, or others."""

    def broken(self, peer: str, problem: str) -> None:
        """A peer sent something that ends its connection."""

    def answered(self, code: int, began: float, problem: Refused | None) -> None: ...

    def refused(self, code: int, peer: str, problem: str, grade: str | None = None) -> None:
        """A request was refused: of a grade that is not allowed, if one is given."""


class _Queued(NamedTuple):
    """A request that is answered after those before it."""

    request: Request
    call: InTurn
    size: int
    """Bytes that it takes."""
    arrived_at: float


class Connection(asyncio.BufferedProtocol):
    """A broker, a client or a tool of RocketMQ."""

    def __init__(self, home: Home, clock: Callable[[], float]) -> None:
        self._home = home
        self._clock = clock
        self._frames = FrameReader()
        self._waiting: deque[_Queued] = deque()
        self._waiting_bytes = 0
        self._worker: asyncio.Task[None] | None = None
        self._taken = 0
        """Memory that it has, beyond FREE_BYTES."""
        self._waits_for_memory = False
        self._waits_for_time = False
        self._unsent_since: float | None = None
        self._paused_at: float | None = None
        """Since when nothing is read from it; None while it is read from."""
        self.last_active = clock()
        """When a byte was last received or sent, or could be again."""
        self.has_asked = False
        """Whether a whole request ever arrived over it."""
        self._frame_since: float | None = None
        """Since when a frame is on its way, without the time in which it was not read; None if none is."""

    # Of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unknown"
        self.address = address_at(f"rocketmq:{self.peer}")
        certificate = transport.get_extra_info("peercert") or {}
        self.caller = Caller(self.peer, certificate, self.close)
        self._home.opened(self)
        problem = certificate_problem(certificate)
        if problem is not None:
            self._home.broken(self.peer, f"TLS: {problem}")
            self._transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        """Has ended, however that was: then a broker that registered over it leaves."""
        self.caller.left()
        self._home.memory.forget(self)
        self._home.memory.give_back(self, self._taken)
        self._taken = 0
        if self._worker is not None:
            self._worker.cancel()
            self._worker = None  # which has this connection in the traceback of its end
        for queued in self._waiting:
            queued.call.shares.give_back(self.sharer)
        self._waiting.clear()
        self._frames = FrameReader()
        self._home.closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - see BufferedProtocol
        return self._home.buffer[: max(FREE_BYTES + self._taken - self._held, FEWEST_BYTES)]

    def buffer_updated(self, nbytes: int) -> None:
        if self._transport.is_closing():
            return
        self.last_active = self._clock()
        self._frames.feed(bytes(self._home.buffer[:nbytes]))
        self._go_on()
        if self._waits_for_time:
            self._home.time.count_read(nbytes)

    def pause_writing(self) -> None:
        """The peer does not read: nothing more is read from it until it does."""
        self._unsent_since = self._clock()
        self._read_or_pause()

    def resume_writing(self) -> None:
        self._unsent_since = None
        self._answer_waiting()
        self._go_on()

    # Of the listener

    def overdue(self, now: float, idle_seconds: float, slow_reader_seconds: float) -> str | None:
        """Why the connection has to be ended; None if it has not."""
        if self._unsent_since is not None:
            return "it takes no answers" if now - self._unsent_since > slow_reader_seconds else None
        if self._paused_at is not None:
            is_late = self._waits_for_memory and now - self._paused_at > MEMORY_SECONDS
            return "there was no memory for its requests" if is_late else None
        silent = now - self.last_active
        if self._frame_since is not None:
            if now - self._frame_since > FRAME_SECONDS:
                return f"a frame did not arrive whole within {FRAME_SECONDS:g} s"
            return f"a frame stopped for {FRAME_SILENCE_SECONDS:g} s" if silent > FRAME_SILENCE_SECONDS else None
        return "it was silent" if not self._waiting and silent > idle_seconds else None

    @property
    def sharer(self) -> Sharer:
        """The caller that its shares count for."""
        return self.caller.sharer

    def granted(self, size: int) -> None:
        """Gets the memory that it waits for."""
        self._taken += size
        self._waits_for_memory = False
        self._wait_for_time()

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def close(self) -> None:
        """Ends the connection once its pending answers have been sent."""
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    @property
    def _held(self) -> int:
        """Bytes of requests that are here."""
        return self._frames.held + self._waiting_bytes

    def _is_held_up(self) -> bool:
        return self._waits_for_time or self._waits_for_memory or self._is_full()

    def _is_full(self) -> bool:
        """Whether answers or requests wait that have to go first."""
        return self._unsent_since is not None or len(self._waiting) >= MAX_WAITING_REQUESTS

    def _wait_for_time(self) -> None:
        if not self._waits_for_time:
            self._waits_for_time = True
            self._home.time.call_later(self.caller.owner, self._have_time)

    def _have_time(self) -> None:
        self._waits_for_time = False
        if self._transport.is_closing():
            return
        self._answer_frames()
        self._read_or_pause()

    def _go_on(self) -> None:
        """Continues with frames that are there and with reading, unless something holds it up."""
        if not self._is_held_up():
            if self._home.time.may_begin():
                self._answer_frames()
            else:
                self._wait_for_time()
        self._read_or_pause()

    def _answer_frames(self) -> None:
        """Answers frames that are there while there is time, and none for a peer that does not read."""
        answers: list[bytes] = []
        size, problem, time = 0, None, self._home.time
        try:
            while not (self._is_held_up() or self._transport.is_closing()):
                frame = self._frames.next()
                if frame is None:
                    break
                self._frame_since = None
                told = self._take(frame)
                if told is not None:
                    answers.append(told)
                    size += len(told)
                if size >= WRITE_BYTES:
                    self._write(answers)
                    size = 0
                if not time.is_left():
                    self._wait_for_time()
        except BrokenFrame as error:
            problem = str(error)
        if answers:
            self._write(answers)
        if problem is not None:
            self._home.broken(self.peer, problem)
            self._transport.close()
            return
        if self._frames.needed and self._frame_since is None:
            self._frame_since = self._clock()
        self._fit_memory()

    def _fit_memory(self) -> None:
        """Takes the memory that its bytes and the next ones need, and gives back the rest."""
        if not (self._taken or self._waiting or self._waits_for_memory) and self._frames.needed < FREE_BYTES // 2:
            return
        if self._transport.is_closing():
            return
        missing = self._frames.needed - self._frames.held
        ahead = 0 if self._waits_for_time or self._is_full() else min(max(missing, FEWEST_BYTES), READ_BYTES)
        more = max(0, self._held + ahead - FREE_BYTES) - self._taken
        if more > 0:
            if self._waits_for_memory or not self._home.memory.take(self, more):
                self._waits_for_memory = True
                return
        elif self._waits_for_memory:
            self._waits_for_memory = False
            self._home.memory.forget(self)
        self._taken += more
        if more < 0:
            self._home.memory.give_back(self, -more)

    def _write(self, answers: list[bytes]) -> None:
        """Writes answers and empties the list. May pause the connection, or end it."""
        self._transport.write(answers[0] if len(answers) == 1 else b"".join(answers))
        answers.clear()
        if self.unsent_bytes:
            self._home.owes(self)

    def _take(self, frame: Frame) -> bytes | None:
        """Returns the answer to a request; None if it wants none, or has to wait."""
        request = request_of(frame)
        if not self.has_asked:
            self.has_asked = True
            self._home.asked(self)
        if request.is_answer:
            return None
        told, began, calls = None, self._clock(), self._home.calls
        at_once, in_turn = calls.at_once.get(request.code), calls.in_turn.get(request.code)
        if at_once is not None:
            told = self._answered_at_once(request, at_once, began)
        if told is None and in_turn is not None:
            if request.is_one_way and in_turn.is_question:
                return None
            told = self._queued(request, in_turn, HEADER_WEIGHT * len(frame.header), began)
        elif told is None and at_once is None:
            remark = f" request type {request.code} not supported"
            self._home.refused(request.code, self.peer, remark.strip())
            told = answer(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        return None if request.is_one_way else told

    def _queued(self, request: Request, call: InTurn, size: int, began: float) -> bytes | None:
        """Has a request wait for those before it. Returns the refusal if it may not."""
        try:
            call.admit(request, self.caller)
        except Refused as error:
            return self._refused(request, error, began)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next request must be answered
            return self._defect(request, error, began)
        if not call.reads_body:
            request = request._replace(body=b"")
        size += len(request.body)
        self._waiting.append(_Queued(request, call, size, began))
        self._waiting_bytes += size
        self._answer_waiting()
        return None

    def _answered_at_once(
        self, request: Request, call: Callable[[Request, Caller], bytes | None], began: float
    ) -> bytes | None:
        try:
            told = call(request, self.caller)
        except Refused as error:
            return self._refused(request, error, began)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next request must be answered
            return self._defect(request, error, began)
        if told is not None:
            self._home.answered(request.code, began, None)
        return told

    def _answer_waiting(self) -> None:
        """Has a task answer the requests that wait, unless one does so already."""
        if self._waiting and self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._answer_in_order())

    async def _answer_in_order(self) -> None:
        """Answers requests in their order of arrival, as long as there are some and the peer reads."""
        while self._waiting and self._unsent_since is None and not self._transport.is_closing():
            request, call, size, began = self._waiting[0]
            await self._home.time.begin(self.caller.owner)
            try:
                told = await call.call(request, self.caller)
            except Refused as error:
                told = self._refused(request, error, began)
            except Exception as error:  # noqa: BLE001 - as above
                told = self._defect(request, error, began)
            else:
                self._home.answered(request.code, began, None)
            if not self._waiting:  # the connection has ended
                return
            self._waiting.popleft()
            self._waiting_bytes -= size
            call.shares.give_back(self.sharer)
            if not request.is_one_way:
                self._write([told])
            self.last_active = self._clock()
            self._fit_memory()
            self._go_on()
        self._worker = None

    def _refused(self, request: Request, error: Refused, began: float) -> bytes:
        self._home.answered(request.code, began, error)
        # A refused registration has a line of its own, which names the broker.
        if request.code != RequestCode.REGISTER_BROKER and error.reason not in ROUTINE:
            self._home.refused(request.code, self.peer, error.text, error.metadata.get("grade"))
        return refusal(request, error)

    def _defect(self, request: Request, error: Exception, began: float) -> bytes:
        """The answer where something happened that should not: the log has it, and the caller a number to quote."""
        error_id = uuid4().hex[:12]
        _log.error("internal_defect", error_id=error_id, call=request.code, peer=self.peer, exc_info=error)
        refused = internal_defect(error_id)
        self._home.answered(request.code, began, refused)
        return refusal(request, refused)

    def _read_or_pause(self) -> None:
        """Continues reading, or pauses it. A pause does not count as time of the peer."""
        # Few bytes that wait for time are not worth a pause.
        is_to_pause = self._waits_for_memory or self._is_full() or (self._waits_for_time and self._held >= FEWEST_BYTES)
        if is_to_pause == (self._paused_at is not None) or self._transport.is_closing():
            return
        if self._paused_at is None:
            self._paused_at = self._clock()
            self._transport.pause_reading()
            return
        self.last_active = self._clock()
        if self._frame_since is not None:
            self._frame_since += self.last_active - self._paused_at
        self._paused_at = None
        self._transport.resume_reading()
