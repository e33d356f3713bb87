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
DATA, HEADERS, SETTINGS, PING, CONTINUATION = 0x0, 0x1, 0x4, 0x6, 0x9
END_STREAM, END_HEADERS = 0x1, 0x4
INITIAL_WINDOW_SIZE = 0x4
FRAME_BYTES = 16_384


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
