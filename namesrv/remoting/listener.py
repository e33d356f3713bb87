"""The listener of RocketMQ's protocol: accepts connections, keeps their bounds, ends those that are overdue."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections import OrderedDict
from typing import Literal

from groundwork.endpoints import Endpoint
from groundwork.flood_log import FloodLog
from groundwork.shares import EVERYBODY, Sharer, Shares, sharer_at
from groundwork.shutdown import in_daemon_thread
from groundwork.watched_file import CHECK_SECONDS
from namesrv.app.counters import RemotingCounter
from namesrv.app.event_log import LINE_BURST, LINE_SECONDS
from namesrv.core.errors import Refused
from namesrv.remoting.calls import Calls
from namesrv.remoting.connection import READ_BYTES, Connection
from namesrv.remoting.limits import HANDSHAKE_SECONDS, IDLE_SECONDS, MAX_ALL_UNSENT_BYTES, MAX_CONNECTIONS
from namesrv.remoting.memory import FrameMemory, UnsentAnswers
from namesrv.remoting.scheduling import LoopTime
from namesrv.remoting.tls import CLIENT_HELLO, Handshakes, RemotingTls, handshake_problem
from namesrv.remoting.wire.codes import RequestCode
from namesrv.remoting.wire.foreign import TELLING_BYTES, foreign

SWEEP_SECONDS = 5.0
"""Pause between two looks for connections that are overdue."""

SWEPT_AT_ONCE = 2_000
"""Connections that are looked at in one iteration of the event loop: a millisecond."""

FULL_PAUSE_SECONDS = 0.1
"""Pause before the next connection is taken where no share is left."""

_NAMES: dict[int, str] = {code: code.name for code in RequestCode}
_BACKLOG = 1_024
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""A host that vanishes is noticed within a minute, also if nothing is sent to it."""

TlsMode = Literal["disabled", "permissive", "enforcing"]


class RemotingListener:
    """Connections of RocketMQ's brokers, clients and tools. Must be made inside the event loop that runs it."""

    def __init__(
        self,
        listen: Endpoint,
        calls: Calls,
        counter: RemotingCounter,
        *,
        tls: RemotingTls | None,
        tls_mode: TlsMode,
        slow_reader_seconds: float,
        request_bytes: Shares,
        shares: Shares | None = None,
        max_unsent_bytes: int = MAX_ALL_UNSENT_BYTES,
        handed_over: socket.socket | None = None,
    ) -> None:
        """Takes the port; connections are taken once it runs.

        Args:
            tls: What is shown over TLS; None where that is disabled.
            slow_reader_seconds: How long a peer may take no answers.
            request_bytes: Bytes of requests under way, of both protocols.
            shares: Connections of all addresses. The default is that of ``limits``.
            max_unsent_bytes: Most bytes on their way to peers that do not read, of all together.
            handed_over: Socket that listens at this address already, from systemd. None opens one.

        Raises:
            OSError: The port is in use, or the address is not this machine's.
        """
        self.calls = calls
        self.memory = FrameMemory(request_bytes)
        self.time = LoopTime()
        self.buffer = memoryview(bytearray(READ_BYTES))
        self._counter = counter
        self._tls = tls
        self._tls_mode = tls_mode
        self._slow_reader_seconds = slow_reader_seconds
        self._shares = shares or Shares("connections of RocketMQ's protocol", MAX_CONNECTIONS)
        self._sharers: dict[Connection, Sharer] = {}
        """Whose share each connection takes, also those that have not begun yet."""
        self._unsent: UnsentAnswers[Connection] = UnsentAnswers(
            max_unsent_bytes, lambda connection: connection.unsent_bytes, lambda connection: connection.address
        )
        self._connections: set[Connection] = set()
        self._silent: OrderedDict[Connection, None] = OrderedDict()
        """Connections that never sent a request, the oldest first."""
        self._all_closed = asyncio.Event()
        """Once no connection is left, after the last one was taken."""
        self._handshakes = Handshakes()
        self._greeting: OrderedDict[asyncio.Task[None], tuple[Connection, str]] = OrderedDict()
        """Connections that have not begun yet, in their order, and their peers."""
        self._clock = time.monotonic
        self._log, self._refusals = (
            FloodLog(event, LINE_SECONDS, self._clock, burst=LINE_BURST)
            for event in ("remoting_connection_ended", "request_refused")
        )
        family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        try:
            self._socket = handed_over or socket.create_server(listen, family=family, backlog=_BACKLOG)
        except OSError as error:
            reason = str(error.strerror).partition(" (while")[0]
            raise OSError(f"cannot listen on {listen}: {reason}") from error
        self._socket.setblocking(False)
        self.endpoint = listen._replace(port=self._socket.getsockname()[1])

    async def run(self) -> None:
        """Takes connections, and ends those that are overdue. Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._accept())
            tasks.create_task(self._sweep())
            if self._tls is not None:
                tasks.create_task(self._look_at_files(self._tls))

    async def close(self, grace_seconds: float) -> None:
        """Takes no more connections, and ends those that there are: at once, or after the time that answers take."""
        self._socket.close()
        for task in tuple(self._greeting):
            task.cancel()
        self._all_closed.clear()
        for connection in tuple(self._connections):
            connection.close()
        if self._connections:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_seconds):
                    await self._all_closed.wait()
        for connection in tuple(self._connections):
            connection.abort()

    # Of connections

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._silent[connection] = None
        self._counter.connections = len(self._connections)

    def asked(self, connection: Connection) -> None:
        """A connection has sent a request, so it is not closed for others."""
        self._silent.pop(connection, None)

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._silent.pop(connection, None)
        self._give_back(connection)
        self._unsent.forget(connection)
        self._counter.connections = len(self._connections)
        if not self._connections:
            self._all_closed.set()

    def owes(self, connection: Connection) -> None:
        """Bytes wait for the peer of a connection. Ends connections if all peers together are owed too much."""
        for worst, size in self._unsent.note(connection):
            self.broken(worst.peer, f"it is owed {size} bytes and does not read")
            worst.abort()

    def broken(self, peer: str, problem: str) -> None:
        """Logs that a connection was ended. A flood of them makes few lines."""
        self._log.tell(peer=peer, problem=problem)

    def answered(self, code: int, began: float, problem: Refused | None) -> None:
        self._counter.answered(code, self._clock() - began, is_refused=problem is not None)

    def refused(self, code: int, peer: str, problem: str, grade: str | None = None) -> None:
        """Logs that a request was refused. A flood of them makes few lines."""
        name = _NAMES.get(code, "UNKNOWN")
        fields = {} if grade is None else {"grade": grade, "remedy": f"add {grade} to remoting_allow"}
        self._refusals.tell(code=code, name=name, peer=peer, problem=problem, **fields)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connected, _ = await loop.sock_accept(self._socket)
            except OSError as error:  # out of file descriptors, or the peer has closed already
                self.broken("unknown", f"cannot be accepted: {error.strerror}")
                await asyncio.sleep(FULL_PAUSE_SECONDS)
                continue
            peer, connection = _peer(connected), Connection(self, self._clock)
            try:
                self._take_share(peer, connection)
            except Refused as error:
                self.broken(peer, error.text)
                connected.close()
                await asyncio.sleep(FULL_PAUSE_SECONDS if error.metadata["caller"] == EVERYBODY else 0)
                continue
            task = loop.create_task(self._greet(connected, peer, connection))
            self._greeting[task] = connection, peer
            task.add_done_callback(lambda ended: self._greeting.pop(ended, None))

    def _take_share(self, peer: str, connection: Connection) -> None:
        """Takes a share. Where none is left, it ends a connection that asked nothing. Raises LIMIT_EXCEEDED."""
        sharer = sharer_at(f"rocketmq:{peer}")
        try:
            self._shares.take(sharer)
        except Refused as error:
            if error.metadata["caller"] != EVERYBODY or not self._made_room(error.text):
                raise
            self._shares.take(sharer)
        self._sharers[connection] = sharer

    def _made_room(self, problem: str) -> bool:
        """Ends the oldest connection of those that never asked anything, if there is one."""
        problem = f"it asked nothing, and {problem}"
        if len(self._greeting) > len(self._connections):
            task, (greeted, peer) = self._greeting.popitem(last=False)
            self._give_back(greeted)
            self.broken(peer, problem)
            return task.cancel()
        if not self._silent:
            return False
        oldest, _ = self._silent.popitem(last=False)
        self._give_back(oldest)
        self.broken(oldest.peer, problem)
        oldest.abort()
        return True

    async def _greet(self, connected: socket.socket, peer: str, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        try:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                connected.setsockopt(socket.IPPROTO_TCP, option, value)
            with_tls = await self._wants_tls(connected)
            context = self._tls.context if with_tls and self._tls is not None else None
            if context is None:
                await loop.connect_accepted_socket(lambda: connection, connected)
                return
            owner = self._sharers[connection].name
            async with self._handshakes.one_of(owner):
                await self.time.begin(owner)
                await loop.connect_accepted_socket(
                    lambda: connection, connected, ssl=context, ssl_handshake_timeout=HANDSHAKE_SECONDS
                )
        except (OSError, ssl.SSLError, TimeoutError) as error:
            connected.close()
            self._give_back(connection)
            self.broken(peer, f"TLS: {handshake_problem(error)}")
        except BaseException:
            connected.close()
            self._give_back(connection)
            raise

    def _give_back(self, connection: Connection) -> None:
        sharer = self._sharers.pop(connection, None)
        if sharer is not None:
            self._shares.give_back(sharer)

    async def _wants_tls(self, connected: socket.socket) -> bool:
        """Whether a connection is to be with TLS. Raises ConnectionError if it should be and is not."""
        if self._tls_mode == "disabled":
            return False
        is_wanted = self._tls_mode == "enforcing"
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(connected, readable.set)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS if is_wanted else IDLE_SECONDS):
                await readable.wait()
        finally:
            loop.remove_reader(connected)
        begun = connected.recv(TELLING_BYTES, socket.MSG_PEEK)
        if is_wanted and begun and begun[0] != CLIENT_HELLO:
            raise ConnectionError(foreign(begun) or "it speaks none, which this port wants (--remoting-tls)")
        return is_wanted or begun[:1] == bytes([CLIENT_HELLO])

    async def _look_at_files(self, tls: RemotingTls) -> None:
        """Looks at the files in a thread: a disk that hangs must not block the event loop."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await in_daemon_thread("remoting-tls", tls.look)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = self._clock()
            for number, connection in enumerate(tuple(self._connections)):
                if number % SWEPT_AT_ONCE == 0:
                    await asyncio.sleep(0)
                problem = connection.overdue(now, IDLE_SECONDS, self._slow_reader_seconds)
                if problem is not None:
                    self.broken(connection.peer, problem)
                    connection.abort()


def _peer(connected: socket.socket) -> str:
    with contextlib.suppress(OSError):
        host, port = connected.getpeername()[:2]
        return f"{host}:{port}"
    return "unknown"
