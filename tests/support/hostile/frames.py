"""HTTP/2 by hand, for what no library would send: frames, blocks of fields, connections."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

HOST = os.environ.get("ATTACKED_AT", "127.0.0.1")
"""The address that attacks dial. It is also their own address, because both ends are on this machine."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0x0, 0x1, 0x3, 0x4, 0x6, 0x8, 0x9
GOAWAY = 0x7
ACK, END_STREAM, END_HEADERS = 0x1, 0x1, 0x4
INITIAL_WINDOW_SIZE = 0x4
FRAME_BYTES = 16_384
WINDOW_BYTES = 65_535
"""Of a stream and of a connection, until the other end says otherwise."""


class Calls(NamedTuple):
    """Calls of a listener that attacks make."""

    lookup: str
    """Is answered at once."""
    watch: str
    """A stream that lasts."""
    snapshot: str
    """A stream, or a large answer."""
    register: str
    """Has a large request."""


OF_LISTENERS = {
    "namesrv": Calls(
        "/namesrv_api.v1.RouteService/GetTopicRoute",
        "/namesrv_api.v1.RouteService/WatchTopicRoutes",
        "/namesrv_api.v1.RouteService/StreamRouteSnapshot",
        "/namesrv_api.v1.RegistrationService/RegisterBroker",
    ),
    "agent": Calls(
        "/broker_agent_api.v1.BrokerAgentService/GetAgentStatus",
        "/grpc.health.v1.Health/Watch",
        "/broker_agent_api.v1.TopicConfigService/ListTopics",
        "/broker_agent_api.v1.TopicConfigService/CreateOrUpdateTopic",
    ),
    "clients": Calls(
        "/broker_agent_api.v1.ClientService/ListConsumerIds",
        "/broker_agent_api.v1.ClientService/OpenClientChannel",
        "/broker_agent_api.v1.ClientService/OpenClientChannel",
        "/broker_agent_api.v1.ClientService/Heartbeat",
    ),
}
"""By what is attacked: the variable ATTACKED says which, of a process that attacks."""
LOOKUP, WATCH, SNAPSHOT, REGISTER = OF_LISTENERS[os.environ.get("ATTACKED", "namesrv")]
ROUTE = b"\n\x09TopicTest"
"""A request for the route of a topic that there is, and for a watch of it."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """An HTTP/2 frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def headers(path: str, *more: tuple[str, str]) -> bytes:
    """A header block of a gRPC call: literals that are not indexed (HPACK), so that each block stands alone."""
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "attack")]
    fields += [("te", "trailers"), ("content-type", "application/grpc"), *more]
    return b"".join(field(name, value) for name, value in fields)


def field(name: str, value: str) -> bytes:
    """A literal field of HPACK that does not go into the table."""
    return b"\0" + _string(name) + _string(value)


def call(path: str, stream: int, message: bytes | None = b"", *more: tuple[str, str]) -> bytes:
    """The frames of a call; without a message it is never finished."""
    begun = frame(HEADERS, END_HEADERS, stream, headers(path, *more))
    return begun if message is None else begun + frame(DATA, END_STREAM, stream, prefixed(message))


def prefixed(message: bytes, flag: bytes = b"\0") -> bytes:
    """A message as gRPC sends it: whether it is compressed, its length, its bytes."""
    return flag + len(message).to_bytes(4, "big") + message


class Windowed:
    """A connection that keeps to the windows of the server, for messages larger than these."""

    def __init__(self, sock: socket.socket) -> None:
        """Takes a connection that has said hello."""
        self._sock = sock
        self._unread = b""
        self._initial = WINDOW_BYTES
        self._windows = {0: WINDOW_BYTES}
        self.ended: set[int] = set()
        """Streams that the server has ended or reset."""

    def send(self, stream: int, block: bytes, body: bytes) -> None:
        """Makes a call, unless the server ends it before all of the body is sent. Raises OSError."""
        self._sock.sendall(frame(HEADERS, END_HEADERS, stream, block))
        self._windows[stream] = self._initial
        at = 0
        while at < len(body) and stream not in self.ended:
            size = min(FRAME_BYTES, len(body) - at, self._windows[0], self._windows[stream])
            if size <= 0:
                self.read()
                continue
            is_last = at + size == len(body)
            self._sock.sendall(frame(DATA, END_STREAM * is_last, stream, body[at : at + size]))
            self._windows[0] -= size
            self._windows[stream] -= size
            at += size

    def wait(self, stream: int) -> None:
        """Waits until the server has ended a call. Raises OSError."""
        while stream not in self.ended:
            self.read()

    def read(self) -> None:
        """Takes what has come, and waits for it. Raises OSError, also at the end of the connection."""
        came = self._sock.recv(WINDOW_BYTES)
        if not came:
            raise ConnectionResetError("the server has closed the connection")
        self._unread += came
        while len(self._unread) >= 9 and len(self._unread) >= (end := 9 + int.from_bytes(self._unread[:3], "big")):
            head, payload, self._unread = self._unread[:9], self._unread[9:end], self._unread[end:]
            self._take(head[3], head[4], int.from_bytes(head[5:], "big"), payload)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == GOAWAY:
            raise ConnectionResetError("the server says GOAWAY")
        if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
            self.ended.add(stream)
        elif kind == WINDOW_UPDATE and stream in self._windows:
            self._windows[stream] += int.from_bytes(payload, "big")
        elif kind == PING and not flags & ACK:
            self._sock.sendall(frame(PING, ACK, 0, payload))
        elif kind == SETTINGS and not flags & ACK:
            self._sock.sendall(frame(SETTINGS, ACK, 0))
            for at in range(0, len(payload), 6):
                if int.from_bytes(payload[at : at + 2], "big") == INITIAL_WINDOW_SIZE:
                    self._widen(int.from_bytes(payload[at + 2 : at + 6], "big"))
        if kind == DATA and payload:
            self._sock.sendall(frame(WINDOW_UPDATE, 0, 0, len(payload).to_bytes(4, "big")))

    def _widen(self, initial: int) -> None:
        for stream in self._windows.keys() - {0}:
            self._windows[stream] += initial - self._initial
        self._initial = initial


@contextmanager
def connections(port: int, count: int, greeting: bytes) -> Iterator[list[socket.socket]]:
    """Open connections that have sent something. Those that the server refuses or cuts are left out."""
    with ExitStack() as opened:
        found = []
        for _ in range(count):
            with suppress(OSError):
                sock = opened.enter_context(socket.create_connection((HOST, port), timeout=2))
                sock.sendall(greeting)
                sock.setblocking(False)
                found.append(sock)
        yield found


def hello(*settings: tuple[int, int]) -> bytes:
    """What a client begins with."""
    payload = b"".join(key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in settings)
    return PREFACE + frame(SETTINGS, 0, 0, payload)


def _string(text: str) -> bytes:
    """A string of HPACK with its length as an integer of a prefix of seven bits."""
    raw, rest = text.encode(), len(text.encode()) - 127
    if rest < 0:
        return bytes((len(raw),)) + raw
    length = bytearray((127,))
    while rest >= 128:
        length.append(rest % 128 + 128)
        rest //= 128
    return bytes((*length, rest)) + raw
