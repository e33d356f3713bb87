"""Kinds of attacks by hand, which need only bytes to be attacks: floods, holders, and those that trickle or repeat."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

from tests.support.hostile.frames import connections

Function = Callable[[int, float], None]
"""Attacks a port for some seconds."""

MOST_CONNECTIONS = 300
FLOOD_CONNECTIONS = 10_000
AT_ONCE = 100
"""Connections that are opened between two looks at the time."""


class ByHand(NamedTuple):
    """An attack by hand."""

    attack: Function
    bound: str
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


def hold(greeting: bytes, count: int, hold_seconds: float = 3_600.0, *, half_open: bool = False) -> Function:
    """Opens connections, says something, and is silent; again and again, if it is held for less than the attack.

    Half-open connections are closed for writing.
    """

    def attack(port: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with ExitStack() as opened:
                for begun in range(0, count, AT_ONCE):
                    if time.monotonic() < until:
                        some = opened.enter_context(connections(port, min(AT_ONCE, count - begun), greeting))
                        for sock in some if half_open else ():
                            with suppress(OSError):
                                sock.shutdown(socket.SHUT_WR)
                time.sleep(max(0.0, min(until - time.monotonic(), hold_seconds)))

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
