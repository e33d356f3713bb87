"""One connection: frames in, answers out, and the bounds on both."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast
from uuid import uuid4

import structlog

from groundwork.shares import address_at
from namesrv.app.event_log import ROUTINE
from namesrv.app.fair_queue import FairLock
from namesrv.core.errors import Refused, internal_defect
from namesrv.error_codes import ResponseCode
from namesrv.remoting.answers import refusal
from namesrv.remoting.caller import Caller
from namesrv.remoting.calls import Calls, InTurn
from namesrv.remoting.limits import FRAME_SECONDS, MAX_UNSENT_BYTES, MAX_WAITING_REQUESTS
from namesrv.remoting.memory import FrameMemory
from namesrv.remoting.wire.codes import RequestCode
from namesrv.remoting.wire.frames import BrokenFrame, FrameReader
from namesrv.remoting.wire.headers import Request, answer, request_of

WRITE_BYTES = 64 * 1024
"""Bytes of answers that are collected before they are written. Only written answers count towards MAX_UNSENT_BYTES."""

FRAMES_IN_A_TURN = 200
"""Requests of one connection that are answered before the event loop serves others: about two milliseconds."""

_log = structlog.get_logger(__name__)


class Home(Protocol):
    """The listener that a connection belongs to."""

    memory: FrameMemory
    requests: FairLock
    calls: Calls
    """What answers requests now."""

    def opened(self, connection: Connection) -> None: ...

    def closed(self, connection: Connection) -> None: ...

    def owes(self, connection: Connection) -> None:
        """Bytes wait for the peer of a connection. May end that connection, or others."""

    def broken(self, peer: str, problem: str) -> None:
        """A peer sent something that ends its connection."""

    def answered(self, code: int, began: float, problem: Refused | None) -> None: ...

    def refused(self, code: int, peer: str, problem: str, grade: str | None = None) -> None:
        """A request was refused: of a grade that is not allowed, if one is given."""


class Connection(asyncio.Protocol):
    """A broker, a client or a tool of RocketMQ."""

    def __init__(self, home: Home, clock: Callable[[], float]) -> None:
        self._home = home
        self._clock = clock
        self._frames = FrameReader()
        self._waiting: deque[tuple[Request, InTurn, int, float]] = deque()
        """Requests that are answered one after the other: with the call, the memory taken, and when each arrived."""
        self._worker: asyncio.Task[None] | None = None
        self._taken = 0
        """Memory of the frame that is on its way."""
        self._waits_for_memory = False
        self._unsent_since: float | None = None
        self._later: asyncio.Handle | None = None
        self._reading = True
        self.last_active = clock()
        """When a byte was last received or sent."""
        self.has_asked = False
        """Whether a whole request ever arrived over it."""
        self._frame_since: float | None = None
        """Since when a frame is on its way; None if none is, or it is not the peer that keeps it waiting."""

    # Of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unknown"
        self.address = address_at(f"rocketmq:{self.peer}")
        self.caller = Caller(self.peer, transport.get_extra_info("peercert") or {}, self.close)
        self._home.opened(self)

    def connection_lost(self, _error: Exception | None) -> None:
        """Has ended, however that was: then a broker that registered over it leaves."""
        self._reading = False
        if self._later is not None:
            self._later.cancel()
        self.caller.left()
        memory = self._home.memory
        memory.forget(self.memory_granted)
        memory.give_back(self._taken)
        self._taken = 0
        if self._worker is not None:
            self._worker.cancel()
        for _, _, taken, _ in self._waiting:
            memory.give_back(taken)
        self._waiting.clear()
        self._frames = FrameReader()
        self._home.closed(self)

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self.last_active = self._clock()
        self._frames.feed(data)
        if self._later is None and not self._is_held_up():
            self._answer_frames()

    def pause_writing(self) -> None:
        """The peer does not read: nothing more is read from it until it does."""
        self._unsent_since = self._clock()
        self._hold_reading()

    def resume_writing(self) -> None:
        self._unsent_since = None
        self._answer_waiting()
        self._go_on()

    # Of the listener

    def overdue(self, now: float, idle_seconds: float, slow_reader_seconds: float) -> str | None:
        """Why the connection has to be ended; None if it has not."""
        if self._unsent_since is not None:
            return "it takes no answers" if now - self._unsent_since > slow_reader_seconds else None
        if self._frame_since is not None and now - self._frame_since > FRAME_SECONDS:
            return f"a frame did not arrive whole within {FRAME_SECONDS:g} s"
        if not self._waiting and not self._waits_for_memory and now - self.last_active > idle_seconds:
            return "it was silent"
        return None

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def close(self) -> None:
        """Ends the connection once its pending answers have been sent."""
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def _is_held_up(self) -> bool:
        return self._unsent_since is not None or self._waits_for_memory or len(self._waiting) >= MAX_WAITING_REQUESTS

    def _answer_frames(self) -> None:
        """Answers frames that are there: not all of very many, and none for a peer that does not read."""
        answers: list[bytes] = []
        size, left, problem = 0, FRAMES_IN_A_TURN, None
        try:
            while not (self._is_held_up() or self._transport.is_closing()):
                if not left:
                    self._later = asyncio.get_running_loop().call_soon(self._answer_more)
                    break
                frame = self._frames.next()
                if frame is None:
                    self._note_begun()
                    break
                left -= 1
                told = self._take(request_of(frame))
                if told is not None:
                    answers.append(told)
                    size += len(told)
                if size >= WRITE_BYTES:
                    self._write(answers)
                    size = 0
        except BrokenFrame as error:
            problem = str(error)
        if answers:
            self._write(answers)
        if problem is not None:
            self._home.broken(self.peer, problem)
            self._transport.close()
        elif self._is_held_up() or self._later is not None:
            self._hold_reading()

    def _answer_more(self) -> None:
        """Continues after others have been served."""
        self._later = None
        self._go_on()

    def _write(self, answers: list[bytes]) -> None:
        """Writes answers and empties the list. May pause the connection, or end it."""
        self._transport.write(answers[0] if len(answers) == 1 else b"".join(answers))
        answers.clear()
        if self.unsent_bytes:
            self._home.owes(self)

    def _take(self, request: Request) -> bytes | None:
        """Returns the answer to a request; None if it wants none, or has to wait."""
        taken, self._taken, self._frame_since = self._taken, 0, None
        self.has_asked = True
        told: bytes | None = None
        waits, began = False, self._clock()
        if not request.is_answer:
            calls = self._home.calls
            at_once, in_turn = calls.at_once.get(request.code), calls.in_turn.get(request.code)
            if at_once is not None:
                told = self._answered_at_once(request, at_once, began)
                waits = told is None and in_turn is not None
            elif in_turn is not None:
                waits = True
            else:
                remark = f" request type {request.code} not supported"
                self._home.refused(request.code, self.peer, remark.strip())
                told = answer(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
            if waits and in_turn is not None:
                self._waiting.append((request, in_turn, taken, began))
                self._answer_waiting()
                return None
        if taken:
            self._home.memory.give_back(taken)
        return None if request.is_one_way else told

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
            request, call, taken, began = self._waiting[0]
            async with self._home.requests.held_for(self.caller.owner):
                pass  # the event loop has served others
            try:
                told = await call(request, self.caller)
            except Refused as error:
                told = self._refused(request, error, began)
            except Exception as error:  # noqa: BLE001 - as above
                told = self._defect(request, error, began)
            else:
                self._home.answered(request.code, began, None)
            if not self._waiting:  # the connection has ended
                return
            self._waiting.popleft()
            self._home.memory.give_back(taken)
            if not request.is_one_way:
                self._write([told])
            self.last_active = self._clock()
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

    def _note_begun(self) -> None:
        """A frame is on its way, or none: a large one needs memory before more of it is read."""
        needed = self._frames.needed
        if needed and self._frame_since is None:
            self._frame_since = self._clock()
        memory = self._home.memory
        if self._taken == 0 and memory.counts(needed):
            if memory.take(needed, self.memory_granted):
                self._taken = needed
            else:
                self._waits_for_memory = True
                self._frame_since = None

    def memory_granted(self, size: int) -> None:
        """The arriving frame has its memory."""
        self._taken = size
        self._waits_for_memory = False
        self._go_on()

    def _hold_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._transport.pause_reading()

    def _go_on(self) -> None:
        """Continues with frames that are there and with reading, unless something still holds it up."""
        if self._later is not None or self._is_held_up() or self._transport.is_closing():
            return
        self._frame_since = None  # the peer had to wait, too
        self._answer_frames()
        if not (self._reading or self._is_held_up() or self._transport.is_closing() or self._later is not None):
            self._reading = True
            self._transport.resume_reading()
