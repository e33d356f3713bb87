"""RocketMQ's front as a name server has it, over connections that are no sockets: so a million frames take minutes."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from namesrv.app.access import FairShares
from namesrv.app.administration import Administration
from namesrv.app.channels import ChannelStreams, StallDetector
from namesrv.app.event_log import RegistrationCounter
from namesrv.app.worker import Worker
from namesrv.app.writer import TableWriter
from namesrv.core.errors import Refused
from namesrv.core.state import WarmUp
from namesrv.engines.api import Again, FrameCall
from namesrv.remoting.caller import Gate, Grade
from namesrv.remoting.calls import Calls, LookupCalls, OperatorCalls, RegistrationCalls, calls_of
from namesrv.remoting.connection import Connections
from namesrv.settings import NamesrvSettings
from namesrv.storage.database import Database
from tests.support.core_fleet import Fleet
from tests.support.state_changes import Nothing

SETTLE_TURNS = 1_000_000
"""Iterations of the event loop until all that was asked must be answered. A thread commits during them."""

LEAVE_TURNS = 5
"""Iterations in which the end of a connection has become a change that stands in line."""

SETTLE_SECONDS = 60.0
"""Until changes under way must be made."""

CLOSE_SECONDS = 5.0
"""Until the change under way is made, and until the database is closed."""

SETTLE_ROUNDS = 3
"""The end of one connection is being dealt with, that of the next stands in line, and nothing follows these."""

MAX_FRAME_BYTES, MAX_HEADER_BYTES = 16 * 2**20, 512 * 2**10


class SentFrame(FrameCall):
    """A frame, and its answers."""

    def __init__(self, encoding: int, header: bytes, body: bytes = b"") -> None:
        self.encoding, self.header, self.body, self.peer = encoding, header, body, "127.0.0.1:40000"
        self.connection = 0
        self.answers: list[bytes] = []
        """One empty answer if nobody waits for one."""
        self.again: Again | None = None
        self.kept: Sequence[str] | None = None
        """The dependencies of an answer that may be kept."""
        self.is_released = self.is_closed = False

    @property
    def names(self) -> Mapping[str, Sequence[bytes]]:
        return {}

    def answer(self, frame: bytes) -> None:
        self.answers.append(frame)

    def may_keep(self, dependencies: Sequence[str], *, is_admitted: bool = True) -> None:
        self.kept = dependencies

    def may_repeat(self, again: Again) -> None:
        self.again = again

    def release(self) -> None:
        self.is_released = True

    @property
    def close(self) -> Callable[[], None]:
        return partial(setattr, self, "is_closed", True)


class NoFrame(Exception):
    """Bytes that are no frame."""


def first_frame(data: bytes) -> tuple[SentFrame, bytes] | None:
    """Returns the first frame and what follows it; None without a whole one. Raises NoFrame."""
    if len(data) < 8:
        return None
    length, word = struct.unpack_from(">II", data)
    header_length = word & 0xFF_FFFF
    if not header_length + 4 <= length <= MAX_FRAME_BYTES - 4 or header_length > MAX_HEADER_BYTES:
        raise NoFrame
    if len(data) < 4 + length:
        return None
    body_at = 8 + header_length
    return SentFrame(word >> 24, data[8:body_at], data[body_at : 4 + length]), data[4 + length :]


def frames_in(data: bytes) -> list[SentFrame]:
    """The whole frames that bytes begin with. Raises NoFrame."""
    found = []
    while (next_one := first_frame(data)) is not None:
        frame, data = next_one
        found.append(frame)
    return found


class SocketlessFront:
    """A name server with everything but gRPC and sockets. Must be made and used inside one event loop."""

    def __init__(self, folder: Path) -> None:
        """Makes one without brokers, whose database is in a folder."""
        self.shares = FairShares()
        self.fleet = Fleet()
        self._database = Database(folder)
        self.connections = _Told(self._calls(), self.fleet.clock)
        self.broken_by = self.connections.broken_by
        """Why connections were ended."""
        self.told = self.connections.told
        """The code of each request that was answered, and what was wrong with it."""
        self._others = asyncio.all_tasks()
        self._removing = asyncio.get_running_loop().create_task(self._channels.remove_brokers_of_ended())

    def _calls(self) -> Calls:
        state, clock, settings = self.fleet.state, self.fleet.clock, NamesrvSettings.load(None, {})
        reader, grant_more_time = Worker("reader"), self.fleet.state.grant_more_time
        self._writer = writer = TableWriter()
        self._administration = Administration(state, writer, self._database, settings, clock.wall_millis)
        warm_up = WarmUp(state, 0)
        self._channels = ChannelStreams(state, writer, StallDetector(clock, grant_more_time, 0))
        gate = Gate(Grade, None)
        return calls_of(
            LookupCalls(state, reader, warm_up),
            RegistrationCalls(state, writer, self._channels, RegistrationCounter(), gate, shares=self.shares),
            OperatorCalls(state, self._administration),
            gate,
            shares=self.shares,
        )

    def state(self) -> object:
        """Everything that a refused request must leave as it was."""
        state = self.fleet.state
        held = {topic: dict(queues) for topic, queues in state.index.held_queue_table.items()}
        by_broker = {key: tuple(topics) for key, topics in state.index.topics_by_broker.items()}
        return (*state.snapshot().messages(), held, by_broker, state.kv_config, state.intents)

    async def settled(self) -> None:
        """Waits until brokers whose connections have ended have left, and until changes under way are made.

        An operator's change that is next is made also if its caller has left.
        """
        for _ in range(SETTLE_ROUNDS):
            for _ in range(LEAVE_TURNS):
                await asyncio.sleep(0)
            under_way = asyncio.all_tasks() - self._others - {self._removing, asyncio.current_task()}
            if under_way:
                _, unended = await asyncio.wait(under_way, timeout=SETTLE_SECONDS)
                assert not unended, f"these never end: {unended}"
            await self._writer.apply(Nothing(self.fleet.state))

    async def end(self) -> None:
        """Ends what runs, also after a failure: nothing of it may be there in the next life."""
        running = asyncio.all_tasks() - self._others - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._administration.close(CLOSE_SECONDS)
        await self._database.close(CLOSE_SECONDS)


class _Told(Connections):
    """Connections that record the outcome of each request."""

    def __init__(self, calls: Calls, clock: Callable[[], float]) -> None:
        super().__init__(calls, lambda *_: None, clock)
        self.broken_by: list[str] = []
        self.told: list[tuple[int, Refused | None]] = []

    def broken(self, peer: str, problem: str) -> None:
        self.broken_by.append(problem)

    def refused(self, code: int, peer: str, problem: str, grade: str | None = None) -> None:
        """Logs nothing."""

    def answered(self, code: int, began: float, problem: Refused | None) -> None:
        self.told.append((code, problem))


class SocketlessClient:
    """A connection to it."""

    _numbers = itertools.count(1)

    def __init__(self, front: SocketlessFront, address: str = "127.0.0.1") -> None:
        self._front = front
        self._number = next(self._numbers)
        self._peer = f"{address}:40000"
        self.sent: list[SentFrame] = []
        """What was handed over and not looked at since."""
        self.is_open = True

    async def send(self, pieces: list[bytes]) -> list[SentFrame]:
        """Sends frames, waits until all that can be answered is answered, and returns the answers."""
        self.receive(b"".join(pieces))
        await self.settle()
        sent, self.sent = self.sent, []
        return [answer for one in sent for told in one.answers for answer in frames_in(told)]

    def receive(self, data: bytes) -> None:
        """Sends frames, and waits for nothing. Bytes that are none end the connection, as the engine does it."""
        while self.is_open:
            try:
                found = first_frame(data)
            except NoFrame:
                self._front.connections.broken_by.append("no frame")
                self.is_open = False
                return
            if found is None:
                return
            frame, data = found
            frame.connection, frame.peer = self._number, self._peer
            self.sent.append(frame)
            self._front.connections.received(frame)
            self.is_open = not frame.is_closed

    async def settle(self) -> None:
        """Waits until everything that was sent is answered."""
        for _ in range(SETTLE_TURNS):
            if not self.is_open or all(frame.answers for frame in self.sent):
                return
            await asyncio.sleep(0)
        raise AssertionError("what was asked was never answered")

    @property
    def sent_count(self) -> int:
        """Requests that were answered since the last look."""
        return sum(1 for frame in self.sent if frame.answers)

    def end(self) -> None:
        """Ends the connection."""
        self.is_open = False
        self._front.connections.left(self._number, None)

    async def close(self) -> None:
        """Ends the connection, and waits until its brokers have left."""
        self.end()
        await self._front.settled()


@asynccontextmanager
async def connected(folder: Path) -> AsyncIterator[tuple[SocketlessFront, SocketlessClient]]:
    """A connection. It must leave nothing."""
    front = SocketlessFront(folder)
    client = SocketlessClient(front)
    yield front, client
    await client.close()
    assert not front.connections._connections
    await front.end()
