"""A TCP proxy on loopback that plays a bad network between two programs: one link for each pair of them.

Each direction of a link can be cut, which is what lost packets are to TCP. Bytes wait, also the end of a connection.
After the cut heals, they flow again. A link can be slow, narrow, and lossy: some bytes come as late as if
they had been sent again. A link's connections can be reset, or lost for one side only (half open).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from namesrv_common.endpoints import Endpoint
from tests.faults.history import History

CHUNK_BYTES = 64 * 1024
QUEUED_CHUNKS = 64
"""Chunks on their way at most, a direction; more wait at the sender, as beyond a full window."""
RESENT_SECONDS = 0.2
"""How late lost bytes come: Linux's shortest time before it sends again, doubled each time they are lost once more."""
MOST_LOSSES = 5
CALL_SECONDS = 10.0


@dataclass(frozen=True)
class Disturbance:
    """How bad a way is."""

    delay_seconds: float = 0.0
    jitter_seconds: float = 0.0
    loss: float = 0.0
    """Part of the chunks that are lost."""
    bits_per_second: float = math.inf


@dataclass
class Direction:
    """How bytes travel one way."""

    disturbance: Disturbance = Disturbance()
    """Counts for what sets out from now on."""
    open: asyncio.Event = field(default_factory=asyncio.Event)
    """Clear while it is cut, which counts for what is on its way, too."""

    def seconds_on_the_way(self, rng: random.Random) -> float:
        """How long the next chunk takes once it has been sent."""
        bad = self.disturbance
        late = max(0.0, bad.delay_seconds + rng.uniform(-bad.jitter_seconds, bad.jitter_seconds))
        losses = 0
        while losses < MOST_LOSSES and rng.random() < bad.loss:
            late += RESENT_SECONDS * 2**losses
            losses += 1
        return late


class Flow:
    """One direction of one connection: bytes in order, each not before its time, and none while the way is cut."""

    def __init__(self, way: Direction, rng: random.Random) -> None:
        self._way = way
        self._rng = rng
        self._queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUED_CHUNKS)

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Takes what comes until the sender ends; its end is an empty chunk."""
        clock = asyncio.get_running_loop().time
        chunk, sent = b"-", clock()
        while chunk:
            try:
                chunk = await reader.read(CHUNK_BYTES)
            except ConnectionError:
                chunk = b""
            sent = max(sent, clock()) + len(chunk) * 8 / self._way.disturbance.bits_per_second
            await self._queue.put((sent + self._way.seconds_on_the_way(self._rng), chunk))

    async def write(self, writer: asyncio.StreamWriter) -> None:
        """Forwards what has come. Returns after the sender's end, or when nobody takes anything."""
        clock = asyncio.get_running_loop().time
        with contextlib.suppress(ConnectionError):
            while True:
                due, chunk = await self._queue.get()
                await asyncio.sleep(due - clock())
                await self._way.open.wait()
                if not chunk:
                    return
                writer.write(chunk)
                await writer.drain()


@dataclass(eq=False)
class Connection:
    """A connection of a client, and the one to the server that goes with it."""

    client: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    server: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    ignorant: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    """The side that does not know that the other one is lost."""

    def reset(self) -> None:
        """Resets both sides."""
        for _, writer in (self.client, self.server):
            _reset(writer)

    def half_open(self, *, server_knows: bool) -> None:
        """Resets one side, and leaves the other one without any sign of it."""
        self.ignorant = self.client if server_knows else self.server
        _reset((self.server if server_knows else self.client)[1])

    async def carry(self, up: Flow, down: Flow) -> None:
        """Carries bytes both ways until either side ends."""
        reads = [asyncio.create_task(up.read(self.client[0])), asyncio.create_task(down.read(self.server[0]))]
        writes = [asyncio.create_task(up.write(self.server[1])), asyncio.create_task(down.write(self.client[1]))]
        try:
            # Programs of ours never end one direction alone.
            await asyncio.wait(writes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in (*reads, *writes):
                pump.cancel()
            await asyncio.gather(*reads, *writes, return_exceptions=True)

    async def end(self) -> None:
        """Closes both sides, the ignorant one when it gives up by itself."""
        try:
            if self.ignorant is not None:
                with contextlib.suppress(ConnectionError):
                    while await self.ignorant[0].read(CHUNK_BYTES):
                        pass  # goes nowhere
        finally:
            for _, writer in (self.client, self.server):
                writer.close()


class Link:
    """The way from clients of one program to one server. All but ``listen`` belongs to the network's event loop."""

    def __init__(self, target: Endpoint, rng: random.Random) -> None:
        self.listen: Endpoint
        self.up = Direction()
        """Towards the server."""
        self.down = Direction()
        self._target = target
        self._rng = rng
        self.connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.heal()

    async def start(self) -> None:
        """Listens on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.listen = Endpoint("127.0.0.1", self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Ends the listener and all connections."""
        assert self._server is not None
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def heal(self) -> None:
        """Ends all faults but those of connections that are lost already."""
        for way in (self.up, self.down):
            way.disturbance = Disturbance()
            way.open.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await self._carry(reader, writer)
        except asyncio.CancelledError:
            _reset(writer)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.up.open.wait()  # a first packet is lost as any other
        try:
            server = await asyncio.open_connection(self._target.host, self._target.port)
        except OSError:
            _reset(writer)
            return
        connection = Connection((reader, writer), server)
        self.connections.add(connection)
        try:
            await connection.carry(Flow(self.up, self._rng), Flow(self.down, self._rng))
        finally:
            self.connections.discard(connection)
            await connection.end()


def _reset(side: asyncio.StreamWriter) -> None:
    connection = side.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    side.transport.abort()


class Network:
    """Links between clients and servers by their names, on an event loop in a thread of its own.

    Faults are recorded before they begin and after they end. The methods are for other threads.
    """

    def __init__(self, seed: int, history: History | None = None) -> None:
        self._rng = random.Random(seed)
        self._history = history
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._links: dict[tuple[str, str], Link] = {}
        self._making = threading.Lock()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for link in self._links.values():
            self._call(link.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_SECONDS)
        self._loop.close()

    def way(self, client: str, server: str, endpoint: Endpoint) -> Endpoint:
        """Returns the address of a link to the endpoint: one link for each client and server."""
        with self._making:
            if (client, server) not in self._links:
                link = Link(endpoint, self._rng)
                self._call(link.start())
                self._links[client, server] = link
            return self._links[client, server].listen

    def cut(self, client: str, server: str, *, up: bool = True, down: bool = True) -> None:
        """Loses everything from client to server (up), or back (down), until healed."""
        link = self._note(client, server, "cut", up=up, down=down)
        for way, is_cut in ((link.up, up), (link.down, down)):
            if is_cut:
                self._do(way.open.clear)

    def disturb(self, client: str, server: str, disturbance: Disturbance) -> None:
        """Makes the way slow, narrow or lossy until healed."""
        link = self._note(client, server, "disturbed", by=str(disturbance))
        for way in (link.up, link.down):
            way.disturbance = disturbance

    def reset(self, client: str, server: str) -> None:
        """Resets the connections of the two, for both sides."""
        for connection in tuple(self._note(client, server, "reset").connections):
            self._do(connection.reset)

    def half_open(self, client: str, server: str, *, server_knows: bool) -> None:
        """Loses the connections for one side; from then on the other one receives nothing, not even the loss."""
        for connection in tuple(self._note(client, server, "half open", server_knows=server_knows).connections):
            self._do(partial(connection.half_open, server_knows=server_knows))

    def heal(self, client: str, server: str) -> None:
        """Ends cuts and disturbances of a way."""
        self._do(self._links[client, server].heal)
        self._note(client, server, "healed")

    def _note(self, client: str, server: str, event: str, **details: object) -> Link:
        if self._history is not None:
            self._history.add("link", client=client, server=server, event=event, **details)
        return self._links[client, server]

    def _do(self, step: Callable[[], object]) -> None:
        async def work() -> None:
            step()

        self._call(work())

    def _call(self, work: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_SECONDS)
