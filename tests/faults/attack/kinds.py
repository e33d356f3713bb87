"""Kinds of attacks by hand, which need only bytes to be attacks: floods, holders, and those that trickle or repeat."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

from tests.support.hostile.frames import Windowed, connections, hello

Function = Callable[[int, float], None]
"""Attacks a port for some seconds."""

Request = tuple[bytes, bytes]
"""A block of fields, and the bytes of the call."""

MOST_CONNECTIONS = 300
FLOOD_CONNECTIONS = 10_000
SOCKET_SECONDS = 5.0


class ByHand(NamedTuple):
    """An attack by hand."""

    attack: Function
    bound: str = ""
    """What holds it."""
    agents: bool = False
    """Whether the listeners of agents, which are grpcio's, withstand it as well."""
    own_address: bool = False
    """Whether the attacker needs an address that is not the machine's own."""


class _Peer:
    """A connection over which whole pieces go, however little of them is taken at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.turn = 0
        self.rest = b""

    def step(self, again: Callable[[int], bytes]) -> bool:
        """Sends what can be sent at once, and reads what has come. False if the server has ended the connection."""
        if not self.rest:
            self.rest, self.turn = again(self.turn), self.turn + 1
        try:
            with suppress(BlockingIOError):
                self.rest = self.rest[self.sock.send(self.rest) :]
            with suppress(BlockingIOError):
                return self.sock.recv(65_536) != b""
        except OSError:
            return False
        return True


def flood(again: Callable[[int], bytes], greeting: bytes = b"", count: int = 4) -> Function:
    """Floods some connections, each with the bytes of its next turn; all are opened anew when the last has ended."""

    def attack(port: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with connections(port, count, greeting) as opened:
                left = [_Peer(sock) for sock in opened]
                while left and time.monotonic() < until:
                    left = [one for one in left if one.step(again)]

    return attack


def hold(greeting: bytes, count: int, hold_seconds: float = 3_600.0) -> Function:
    """Opens connections, says something, and is silent; again and again, if it is held for less than the attack."""

    def attack(port: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            with connections(port, count, greeting):
                time.sleep(min(left, hold_seconds))

    return attack


def say_no_more(greeting: bytes) -> Function:
    """Opens connections, says something, closes them for writing, and keeps them open without reading."""

    def attack(port: int, seconds: float) -> None:
        with connections(port, MOST_CONNECTIONS, greeting) as opened:
            for sock in opened:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_WR)
            time.sleep(seconds)

    return attack


def half_silent(greeting: bytes) -> Function:
    """Holds connections: half of them send nothing, the others the first bytes of a request."""

    def attack(port: int, seconds: float) -> None:
        with connections(port, MOST_CONNECTIONS // 2, b""):
            hold(greeting, MOST_CONNECTIONS // 2)(port, seconds)

    return attack


def crowd(greeting: bytes) -> Function:
    """Opens connections as fast as it can, up to thousands that stay."""

    def attack(port: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        with ExitStack() as opened:
            for _ in range(FLOOD_CONNECTIONS // 100):
                if time.monotonic() < until:
                    opened.enter_context(connections(port, 100, greeting))
            time.sleep(max(0.0, until - time.monotonic()))

    return attack


def trickle(greeting: bytes, pieces: Sequence[bytes], count: int, turns: int) -> Function:
    """Sends a piece now and then, so many in the time of the attack, over many connections, which stay."""

    def attack(port: int, seconds: float) -> None:
        with connections(port, count, greeting) as opened:
            until, left = time.monotonic() + seconds, [_Peer(sock) for sock in opened]
            while left and time.monotonic() < until:
                left = [one for one in left if (one.rest or one.turn < len(pieces)) and one.step(pieces.__getitem__)]
                time.sleep(seconds / turns)
            time.sleep(max(0.0, until - time.monotonic()))

    return attack


def repeat(make: Callable[[], bytes], count: int, pause_seconds: float = 0.0) -> Function:
    """Opens connections, says all, reads what comes, and ends them; again and again."""

    def attack(port: int, seconds: float) -> None:
        said, until = make(), time.monotonic() + seconds
        while time.monotonic() < until:
            with connections(port, count, said) as opened:
                for sock in opened:
                    sock.settimeout(2)
                    with suppress(OSError):
                        sock.recv(65_536)
                time.sleep(min(pause_seconds, max(0.0, until - time.monotonic())))

    return attack


def ask(some: Callable[[int], Request], count: int) -> Function:
    """Makes large calls over connections of a thread each, as the windows allow; the next one after an answer."""

    def attack(port: int, seconds: float) -> None:
        until = time.monotonic() + seconds

        def again() -> None:
            while time.monotonic() < until:
                with connections(port, 1, hello()) as opened, suppress(OSError):
                    for sock in opened:
                        sock.settimeout(SOCKET_SECONDS)
                        server = Windowed(sock)
                        for turn in range(100):
                            if time.monotonic() > until:
                                return
                            server.send(2 * turn + 1, *some(turn))
                            server.wait(2 * turn + 1)

        threads = [threading.Thread(target=again, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    return attack
