"""RocketMQ's front as a name server has it, over connections that are no sockets: so a million frames take minutes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

from namesrv.app.administration import Administration
from namesrv.app.channels import ChannelStreams
from namesrv.app.counters import RegistrationCounter
from namesrv.app.operators import Operators, SettingsInForce
from namesrv.app.quotas import FairShares
from namesrv.app.stall_detector import StallDetector
from namesrv.app.worker import Worker
from namesrv.app.writer import TableWriter
from namesrv.core.errors import Refused
from namesrv.core.warm_up import WarmUp
from namesrv.remoting.caller import Gate, Grade
from namesrv.remoting.calls import Calls, ListCalls, LookupCalls, OperatorCalls, RegistrationCalls, calls_of
from namesrv.remoting.connection import READ_BYTES, Connection
from namesrv.remoting.memory import FrameMemory
from namesrv.remoting.route_json import RouteJson
from namesrv.remoting.scheduling import LoopTime
from namesrv.remoting.wire.frames import Frame, FrameReader
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


class _Transport:
    """A connection's other end, which reads everything unless it is told otherwise."""

    def __init__(self, connection: Connection, address: str) -> None:
        self.address = address
        self.sent: list[bytes] = []
        self.unread = bytearray()
        self.is_reading = True
        self.peer_reads = True
        self._high = 0
        self._connection: Connection | None = connection
        self._is_closing = False

    def set_write_buffer_limits(self, high: int) -> None:
        assert high > 0
        self._high = high

    def get_extra_info(self, name: str) -> Any:
        return (self.address, 40_000) if name == "peername" else None

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return 0 if self.peer_reads else sum(map(len, self.sent))

    def write(self, data: bytes) -> None:
        if self._is_closing or self._connection is None:
            return
        was_full = self.get_write_buffer_size() > self._high
        self.sent.append(data)
        if not was_full and self.get_write_buffer_size() > self._high:
            self._connection.pause_writing()

    def close(self) -> None:
        if not self._is_closing and self._connection is not None:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)
            self._connection = None  # a transport of uvloop holds its protocol no longer than this, either

    abort = close

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True
        asyncio.get_running_loop().call_soon(self._deliver)

    def receive(self, data: bytes) -> None:
        """The peer sends bytes, which wait while the connection does not read."""
        self.unread += data
        self._deliver()

    def _deliver(self) -> None:
        while self.unread and self.is_reading and self._connection is not None:
            buffer = self._connection.get_buffer(-1)
            data = self.unread[: len(buffer)]
            buffer[: len(data)] = data
            del self.unread[: len(data)]
            self._connection.buffer_updated(len(data))


class SocketlessFront:
    """A name server with everything but gRPC and sockets. Must be made and used inside one event loop."""

    def __init__(self, folder: Path) -> None:
        """Makes one without brokers, whose database is in a folder."""
        self.shares = FairShares.of()
        self.memory = FrameMemory(self.shares.request_bytes)
        self.time = LoopTime(self._nanos)
        self.frame_nanos = 0
        """What each look at the time takes."""
        self._now = 0
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.broken_by: list[str] = []
        """Why connections were ended."""
        self.told: list[tuple[int, Refused | None]] = []
        """The code of each request that was answered, and what was wrong with it."""
        self.owing: set[Connection] = set()
        """Connections whose peers did not read."""
        self.open_ones: set[Connection] = set()
        self.fleet = Fleet()
        self._database = Database(folder)
        self.calls = self._calls()
        self._others = asyncio.all_tasks()
        self._removing = asyncio.get_running_loop().create_task(self._channels.remove_brokers_of_ended())

    def _calls(self) -> Calls:
        routes, clock, settings = self.fleet.routes, self.fleet.clock, NamesrvSettings.load(None, {})
        state, reader = routes.state, Worker("reader")
        in_force = SettingsInForce(settings)
        self._writer = writer = TableWriter()
        self._operators = Operators(
            routes,
            writer,
            self._database,
            in_force,
            apply_settings=lambda *_: None,
            wall_millis=clock.wall_millis,
        )
        warm_up = WarmUp(state, clock, 0)
        self._channels = ChannelStreams(routes, writer, StallDetector(clock, routes.heartbeats.grant_more_time, 0))
        gate = Gate(Grade, None)
        json = RouteJson(state)
        return calls_of(
            LookupCalls(json, warm_up),
            ListCalls(state, json, reader),
            RegistrationCalls(routes, writer, self._channels, RegistrationCounter(), gate, shares=self.shares),
            OperatorCalls(state, Administration(routes, writer, self._operators)),
            gate,
            shares=self.shares,
        )

    def _nanos(self) -> int:
        self._now += self.frame_nanos
        return self._now

    def state(self) -> object:
        """Everything that a refused request must leave as it was."""
        state = self.fleet.state
        tables = state.tables
        held = {topic: dict(queues) for topic, queues in tables.held_queue_table.items()}
        by_broker = {key: tuple(topics) for key, topics in tables.topics_by_broker.items()}
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
            await self._writer.apply_own(Nothing(self.fleet.state))

    async def end(self) -> None:
        """Ends what runs, also after a failure: nothing of it may be there in the next life."""
        running = asyncio.all_tasks() - self._others - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._operators.close(CLOSE_SECONDS)
        await self._database.close(CLOSE_SECONDS)

    # As the home of connections

    def opened(self, connection: Connection) -> None:
        self.open_ones.add(connection)

    def asked(self, connection: Connection) -> None:
        """Nothing to do."""

    def closed(self, connection: Connection) -> None:
        self.open_ones.discard(connection)

    def owes(self, connection: Connection) -> None:
        self.owing.add(connection)

    def broken(self, _peer: str, problem: str) -> None:
        self.broken_by.append(problem)

    def refused(self, code: int, peer: str, problem: str, grade: str | None = None) -> None:
        """Logs nothing."""

    def answered(self, code: int, began: float, problem: Refused | None) -> None:
        self.told.append((code, problem))


class SocketlessClient:
    """A connection to it."""

    def __init__(self, front: SocketlessFront, address: str = "127.0.0.1") -> None:
        self._front = front
        self.connection = Connection(front, front.fleet.clock)
        self._transport = _Transport(self.connection, address)
        self.connection.connection_made(cast("asyncio.Transport", self._transport))
        self.is_open = True

    async def send(self, pieces: list[bytes]) -> list[Frame]:
        """Sends bytes, waits until all that can be answered is answered, and returns the answers."""
        for piece in pieces:
            self.receive(piece)
        await self.settle()
        answers = FrameReader()
        answers.feed(b"".join(self._transport.sent))
        self._transport.sent.clear()
        self.is_open = not self._transport.is_closing()
        return list(iter(answers.next, None))

    def receive(self, data: bytes) -> None:
        """Sends bytes, and waits for nothing."""
        self._transport.receive(data)

    async def settle(self) -> None:
        """Waits until the connection answers nothing more."""
        for _ in range(SETTLE_TURNS):
            if self._is_quiet():
                return
            await asyncio.sleep(0)
        raise AssertionError("what was asked was never answered")

    @property
    def is_read_from(self) -> bool:
        """Whether more bytes are read."""
        return self._transport.is_reading

    @property
    def sent_count(self) -> int:
        """Answers that were written and not taken yet."""
        return b"".join(self._transport.sent).count(b'"opaque":')

    @property
    def held(self) -> int:
        """Bytes that are held until the rest of their frame comes."""
        return self.connection._frames.held

    @property
    def unsent(self) -> int:
        """Bytes that the peer has not read."""
        return self._transport.get_write_buffer_size()

    def stop_reading(self) -> None:
        self._transport.peer_reads = False

    def read_again(self) -> None:
        self._transport.peer_reads = True
        self.connection.resume_writing()

    async def close(self) -> None:
        """Ends the connection, and waits until its brokers have left."""
        self._transport.close()
        await self._front.settled()

    def _is_quiet(self) -> bool:
        connection = self.connection
        is_idle = connection._worker is None or connection._worker.done()
        is_read = not self._transport.unread or not self._transport.is_reading
        return is_idle and (self._transport.is_closing() or (is_read and not connection._waits_for_time))
