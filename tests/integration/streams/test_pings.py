"""Keepalive pings of clients, which gRPC's libraries send once a second at most."""

from __future__ import annotations

import socket

from tests.support.hostile.frames import ACK, GOAWAY, PING, PREFACE, SETTINGS, frame
from tests.support.programs.processes import NamesrvProcess

PINGS = 6
"""gRPC cuts a connection at its fourth ping that comes too early."""


def frames_within(sock: socket.socket, seconds: float) -> list[tuple[int, int]]:
    """Kinds and flags of the frames that come in a time; raises ConnectionError at the end of the connection."""
    sock.settimeout(seconds)
    unread = b""
    frames: list[tuple[int, int]] = []
    while True:
        try:
            came = sock.recv(65_536)
        except TimeoutError:
            return frames
        if not came:
            raise ConnectionError("the server has closed the connection")
        unread += came
        while len(unread) >= 9 and len(unread) >= (end := 9 + int.from_bytes(unread[:3], "big")):
            frames.append((unread[3], unread[4]))
            unread = unread[end:]


def test_a_client_may_ping_once_a_second() -> None:
    with NamesrvProcess() as namesrv, socket.create_connection(namesrv.endpoint) as sock:
        sock.sendall(PREFACE + frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0))
        for _ in range(PINGS):
            sock.sendall(frame(PING, 0, 0, bytes(8)))
            frames = frames_within(sock, 1.0)
            assert (PING, ACK) in frames
            assert GOAWAY not in [kind for kind, _ in frames]
