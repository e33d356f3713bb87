"""Peers of an HTTP listener that hold, trickle, flood or do not read: each is a process, and ends by itself."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from groundwork.endpoints import Endpoint

Attack = Callable[[Endpoint, threading.Event], None]

MOST_SECONDS = 120.0
"""An attack that nobody ends does so itself; longer than a test on a busy machine."""
SOCKETS = 60
"""Connections that an attack holds."""


@cache
def _tell_begun() -> None:
    """Once, when all connections are there."""
    sys.stdout.write("begun\n")
    sys.stdout.flush()


def _connect(endpoint: Endpoint) -> socket.socket:
    return socket.create_connection(endpoint, timeout=5)


def _hold(endpoint: Endpoint, stop: threading.Event, first: bytes, then: bytes, pause: float) -> None:
    """Keeps connections open that send something at first, and then now and then; opens others for those cut."""
    held: list[socket.socket] = []
    try:
        while not stop.is_set():
            kept = []
            for peer in held:
                try:
                    if then:
                        peer.send(then)
                    peer.setblocking(False)
                    with contextlib.suppress(BlockingIOError):
                        if not then and not peer.recv(1, socket.MSG_PEEK):
                            raise ConnectionError
                    kept.append(peer)
                except OSError:
                    peer.close()
            held = kept
            with contextlib.suppress(OSError):
                while len(held) < SOCKETS:
                    peer = _connect(endpoint)
                    held.append(peer)
                    peer.send(first)
            _tell_begun()
            stop.wait(pause)
    finally:
        for peer in held:
            peer.close()


def silent(endpoint: Endpoint, stop: threading.Event) -> None:
    """Connections that say nothing."""
    _hold(endpoint, stop, b"", b"", 0.05)


def trickling(endpoint: Endpoint, stop: threading.Event) -> None:
    """Slowloris: requests that come a byte at a time and never end."""
    _hold(endpoint, stop, b"GET /", b"a", 0.2)


def half_open(endpoint: Endpoint, stop: threading.Event) -> None:
    """Connections that have said that they say no more, in the middle of a request, and stay."""
    held: list[socket.socket] = []
    while not stop.is_set():
        with contextlib.suppress(OSError):
            peer = _connect(endpoint)
            held.append(peer)
            peer.send(b"POST /api/actions HTTP/1.1\r\nContent-Length: 9\r\n")
            peer.shutdown(socket.SHUT_WR)
        for old in held[:-SOCKETS]:
            old.close()
        held = held[-SOCKETS:]
        if len(held) == SOCKETS:
            _tell_begun()
        stop.wait(0.02)
    for peer in held:
        peer.close()


def not_reading(endpoint: Endpoint, stop: threading.Event) -> None:
    """Connections that ask for much and take nothing."""
    _hold(endpoint, stop, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20, b"", 0.1)


def flooding(endpoint: Endpoint, stop: threading.Event) -> None:
    """Connections as fast as they can be made, each with a request whose answer is not waited for."""
    while not stop.is_set():
        with contextlib.suppress(OSError), _connect(endpoint) as peer:
            peer.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        _tell_begun()


def garbage(endpoint: Endpoint, stop: threading.Event) -> None:
    """Bytes that are no HTTP, on one connection after the other."""
    while not stop.is_set():
        with contextlib.suppress(OSError), _connect(endpoint) as peer:
            peer.send(bytes(range(256)) * 8)
            peer.recv(64)
        _tell_begun()
        stop.wait(0.005)


ATTACKS: dict[str, Attack] = {
    attack.__name__: attack for attack in (silent, trickling, half_open, not_reading, flooding, garbage)
}


@contextmanager
def under(attack: str, endpoint: Endpoint) -> Iterator[None]:
    """Runs an attack, in a process of its own, for the time of the block; it has begun when the block does."""
    command = [sys.executable, "-m", __name__, attack, str(endpoint)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"begun\n"
            yield
            assert process.poll() is None, "the attack has ended by itself"
        finally:
            process.kill()


def _main(attack: str, endpoint: Endpoint) -> None:
    stop = threading.Event()
    limit = threading.Timer(MOST_SECONDS, stop.set)
    limit.daemon = True
    limit.start()
    ATTACKS[attack](endpoint, stop)


if __name__ == "__main__":
    _main(sys.argv[1], Endpoint.parse(sys.argv[2]))
