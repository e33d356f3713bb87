"""A TCP proxy on loopback that plays a bad network between two programs: one link for each pair of them.

Each direction of a link can be cut, which is what lost packets are to TCP. Bytes wait, also the end of a connection.
After the cut heals, they flow again. A link can be slow, narrow, and lossy: some bytes come as late as if
they had been sent again. A link's connections can be reset, or lost for one side only (half open).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from namesrv_common.endpoints import Endpoint
from namesrv_common.process.shutdown import LoopThread
from tests.faults.history import History

CHUNK_BYTES = 64 * 1024
RESENT_SECONDS = 0.2
"""How late lost bytes come: Linux's shortest time before it sends again, doubled each time they are lost once more."""
MOST_LOSSES = 5

Delay = Callable[[random.Random, int], float]
"""Seconds that a chunk of so many bytes takes; those behind it wait."""
Side = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def slow(rng: random.Random, _: int) -> float:
    """75 ms, 50 more or less."""
    return rng.uniform(0.025, 0.125)


def narrow(_: random.Random, size: int) -> float:
    """One megabit a second."""
    return size * 8 / 1_000_000


def lossy(rng: random.Random, _: int) -> float:
    """Each chunk is lost by a chance of one half, also when it is sent again."""
    losses = 0
    while losses < MOST_LOSSES and rng.random() < 0.5:
        losses += 1
    return RESENT_SECONDS * ((1 << losses) - 1)


@dataclass
class Direction:
    """How bytes travel one way."""

    delay: Delay | None = None
    open: asyncio.Event = field(default_factory=asyncio.Event)
    """Clear while it is cut, which counts for what is on its way, too."""

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random) -> None:
        """Forwards what comes, and returns after the sender's end, or when nobody takes anything."""
        chunk = b"-"
        with contextlib.suppress(ConnectionError):
            while chunk:
                try:
                    chunk = await reader.read(CHUNK_BYTES)
                except ConnectionError:
                    chunk = b""
                if self.delay is not None:
                    await asyncio.sleep(self.delay(rng, len(chunk)))
                await self.open.wait()
                writer.write(chunk)
                await writer.drain()


@dataclass(eq=False)
class Connection:
    """A connection of a client, and the one to the server that goes with it."""

    client: Side
    server: Side
    ignorant: Side | None = None
    """The side that does not know that the other one is lost."""

    def reset(self) -> None:
        """Resets both sides."""
        for _, writer in (self.client, self.server):
            _reset(writer)

    def half_open(self, *, server_knows: bool) -> None:
        """Resets one side, and leaves the other one without any sign of it."""
        self.ignorant = self.client if server_knows else self.server
        _reset((self.server if server_knows else self.client)[1])

    async def carry(self, up: Direction, down: Direction, rng: random.Random) -> None:
        """Carries bytes both ways until either side ends. Then the ignorant side ends when it gives up by itself."""
        ways = [
            asyncio.create_task(up.carry(self.client[0], self.server[1], rng)),
            asyncio.create_task(down.carry(self.server[0], self.client[1], rng)),
        ]
        try:
            # Programs of ours never end one direction alone.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        if self.ignorant is not None:
            with contextlib.suppress(ConnectionError):
                while await self.ignorant[0].read(CHUNK_BYTES):
                    pass  # goes nowhere


def _reset(side: asyncio.StreamWriter) -> None:
    connection = side.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    side.transport.abort()


class Link:
    """The way from clients of one program to one server. All but ``listen`` belongs to the network's event loop."""

    def __init__(self, target: Endpoint, rng: random.Random) -> None:
        self.listen: Endpoint
        self.up = Direction()
        """Towards the server."""
        self.down = Direction()
        self.connections: set[Connection] = set()
        self._target = target
        self._rng = rng
        self._tasks: set[asyncio.Task[None]] = set()
        self.heal()

    async def start(self) -> None:
        """Listens on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.listen = Endpoint("127.0.0.1", self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Ends the listener and all connections."""
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def heal(self) -> None:
        """Ends all faults but those of connections that are lost already."""
        for way in (self.up, self.down):
            way.delay = None
            way.open.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await self.up.open.wait()  # a first packet is lost as any other
            server = await asyncio.open_connection(self._target.host, self._target.port)
        except (OSError, asyncio.CancelledError):
            _reset(writer)
            return
        connection = Connection((reader, writer), server)
        self.connections.add(connection)
        try:
            await connection.carry(self.up, self.down, self._rng)
        except asyncio.CancelledError:
            _reset(writer)
        finally:
            self.connections.discard(connection)
            for side in (writer, server[1]):
                side.close()


class Network:
    """Links between clients and servers by their names, on an event loop in a thread of its own.

    Faults are recorded before they begin and after they end. The methods are for other threads.
    """

    def __init__(self, seed: int, history: History | None = None) -> None:
        self._rng = random.Random(seed)
        self._history = history
        self._loop = LoopThread("network")
        self._links: dict[tuple[str, str], Link] = {}
        self._making = threading.Lock()

    def __enter__(self) -> Self:
        self._loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        for link in self._links.values():
            self._loop.run(link.stop())
        self._loop.stop(asyncio.sleep(0))

    def way(self, client: str, server: str, endpoint: Endpoint) -> Endpoint:
        """Returns the address of a link to the endpoint: one link for each client and server."""
        with self._making:
            if (client, server) not in self._links:
                link = Link(endpoint, self._rng)
                self._loop.run(link.start())
                self._links[client, server] = link
            return self._links[client, server].listen

    def cut(self, client: str, server: str, *, up: bool = True, down: bool = True) -> None:
        """Loses everything from client to server (up), or back (down), until healed."""
        link = self._note(client, server, "cut", up=up, down=down)
        for way, is_cut in ((link.up, up), (link.down, down)):
            if is_cut:
                self._do(way.open.clear)

    def disturb(self, client: str, server: str, delay: Delay) -> None:
        """Makes the way slow, narrow or lossy until healed."""
        link = self._note(client, server, "disturbed")
        for way in (link.up, link.down):
            way.delay = delay

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

        self._loop.run(work())
