"""Attacks on the account of an address: each takes as much of one resource as the server gives, and keeps it."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
from broker_agent_api.v1 import broker_agent_service_pb2, client_service_pb2, topic_config_service_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from namesrv_api.v1 import admin_service_pb2, registration_service_pb2, route_service_pb2

from groundwork.program import use_all_descriptors
from tests.faults.attack.by_frames import flood_frames
from tests.faults.attack.registry import on
from tests.support.hostile.frames import (
    DATA,
    HOST,
    INITIAL_WINDOW_SIZE,
    LOOKUP,
    REGISTER,
    ROUTE,
    WATCH,
    Windowed,
    call,
    connections,
    frame,
    headers,
    hello,
    hold,
    prefixed,
)
from tests.support.programs.processes import Client
from tests.support.registrations import identity, registration
from tests.support.secured.fleet import TOKENS, permits

HEALTH_CHECK, HEALTH_WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
CALLS = 200
"""That a connection may have open."""
FLOODING = 300
"""Connections of a flood: 60,000 calls."""
HOLD_SECONDS = 2.0
BODILESS_CONNECTIONS = 150
LARGE_FIELDS = tuple((f"x-{number}", "v" * 3_950) for number in range(3))
"""12 kB of metadata, below what a call may have."""
LARGE_CONNECTIONS, LARGE_TOPICS = 8, 20_000
BLOCKED_CONNECTIONS, BLOCKED_BYTES, BLOCK_PAUSE_SECONDS = 40, 16_000, 0.5
SILENT_CONNECTIONS = 3_000
WATCHING_CONNECTIONS = 25
THOUSANDS = 10_000
WIDE_TOPIC, WIDE_GROUPS = "TopicOfManyGroups", 150
READ_BYTES, READ_SECONDS, READ_LOOKUPS = 4_096, 0.02, 50
SOCKET_SECONDS = 10.0

FILES = {
    "namesrv": (admin_service_pb2, registration_service_pb2, route_service_pb2, reflection_pb2),
    "agent": (broker_agent_service_pb2, topic_config_service_pb2),
    "clients": (client_service_pb2,),
}[os.environ.get("ATTACKED", "namesrv")]
METHODS = [
    f"/{service.full_name}/{method.name}"
    for file in (*FILES, health_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
MALFORMED = (
    b"\xff" * 20,
    b"\n\xff\xff\xff\xff\x0f",
    b"\n\x7f",
    b"\x0b" * 5_000,
    b"\n\x02\xc3\x28",
    b"\n\x06" * 3_000,
    b"\x07\x07\x07",
)
"""Endless varints, lengths beyond the message, nested groups, text that is no UTF-8, unknown wire types."""


@on("grpc", "12,500 calls of health an address", agents=True, own_address=True)
def health_watches(port: int, seconds: float) -> None:
    """Watches of health, 60,000 at a time, which all end at once, again and again."""
    _open_again(port, seconds, lambda stream: call(HEALTH_WATCH, stream))


@on("grpc", "12,500 calls of health an address", agents=True, own_address=True)
def health_checks(port: int, seconds: float) -> None:
    """Checks of health as fast as they can be sent, on many connections."""
    flood_frames(
        port, seconds, hello(), lambda turn: b"".join(call(HEALTH_CHECK, 20 * turn + 2 * n + 1) for n in range(10)), 50
    )


@on("grpc", "100 calls of reflection an address", own_address=True)
def reflection_calls(port: int, seconds: float) -> None:
    """Calls of reflection that ask for a file each and stay open, 60,000 at a time."""
    asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol="namesrv_api.v1.RouteService")
    body = prefixed(asked.SerializeToString())
    _open_again(port, seconds, lambda stream: call(REFLECTION, stream, None) + frame(DATA, 0, stream, body))


@on("grpc", "200 calls a connection", agents=True, own_address=True)
def malformed_messages(port: int, seconds: float) -> None:
    """Messages that cannot be read, to every method of every service."""

    def some(turn: int) -> bytes:
        bodies = [*MALFORMED, os.urandom(200)]
        streams = range(20 * turn + 1, 20 * turn + 21, 2)
        return b"".join(call(METHODS[at // 2 % len(METHODS)], at, bodies[at // 2 % len(bodies)]) for at in streams)

    flood_frames(port, seconds, hello(), some)


@on("grpc", "64 MiB of requests an address", own_address=True)
def bodiless_calls(port: int, seconds: float) -> None:
    """Calls with 12 kB of metadata, whose messages never come."""
    begun = b"".join(call(LOOKUP, stream, None, *LARGE_FIELDS) for stream in _streams())
    hold(port, seconds, BODILESS_CONNECTIONS, hello() + begun)


@on("grpc", "64 MiB of requests an address", own_address=True)
def large_requests(port: int, seconds: float) -> None:
    """Complete registrations of 20,000 topics each, as fast as possible, which the server reads and refuses."""
    broker = identity(name="not\tprintable")
    body = prefixed(registration([f"topic-{number}" for number in range(LARGE_TOPICS)], broker).SerializeToString())
    block = headers(REGISTER)

    def send(server: Windowed) -> None:
        for stream in _streams():
            server.send(stream, block, body)

    _in_threads(port, seconds, LARGE_CONNECTIONS, send)


@on("blocked", "64 MiB of requests an address")
def requests_while_blocked(port: int, seconds: float) -> None:
    """Complete requests while the event loop does nothing: the server sleeps in it whenever it gets SIGUSR1."""
    process, until = int(os.environ["ATTACKED_PID"]), time.monotonic() + seconds
    block, body = headers(REGISTER), prefixed(bytes(BLOCKED_BYTES))

    def keep_asleep() -> None:
        while time.monotonic() < until:
            os.kill(process, signal.SIGUSR1)
            time.sleep(BLOCK_PAUSE_SECONDS)

    def send(server: Windowed) -> None:
        for stream in _streams():
            server.send(stream, block, body)

    threading.Thread(target=keep_asleep, daemon=True).start()
    _in_threads(port, seconds, BLOCKED_CONNECTIONS, send)


@on("tls", "2,048 handshakes an address, 10 s", own_address=True)
def silent_handshakes(port: int, seconds: float) -> None:
    """Whole greetings of TLS after which nothing comes, and connections that send nothing."""
    with connections(port, SILENT_CONNECTIONS // 2, b""):
        hold(port, seconds, SILENT_CONNECTIONS // 2, client_hello())


@on("permits", "open calls end a slice at a time")
def revocation(port: int, seconds: float) -> None:
    """Thousands of open watches while their caller's permit is taken away and given back."""
    place = Path(os.environ["ATTACKED_FOLDER"])
    context = ssl.create_default_context(cafile=str(place / "ca.pem"))
    context.set_alpn_protocols(["h2"])
    token = ("authorization", f"Bearer {TOKENS['client']}")
    watches = hello() + b"".join(call(WATCH, stream, ROUTE, token) for stream in _streams())
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with ExitStack() as stack:
            for sock in stack.enter_context(connections(port, WATCHING_CONNECTIONS, b"")):
                sock.settimeout(SOCKET_SECONDS)
                with suppress(OSError):
                    stack.enter_context(context.wrap_socket(sock, server_hostname=HOST)).sendall(watches)
            for change in ({"client": {"look_up": False}}, {}):
                (place / "permits.json").write_text(json.dumps(permits(**change)), encoding="utf-8")
                time.sleep(seconds / 2)


@on("grpc", "64 MiB of answers that wait an address; it loses its connections first", own_address=True)
def many_small_holders(port: int, seconds: float) -> None:
    """Ten thousand connections that each leave an answer unread. An honest slow reader next to them is not cut."""
    use_all_descriptors()
    wide = route_service_pb2.GetTopicRouteRequest(topic=WIDE_TOPIC).SerializeToString()
    with grpc.insecure_channel(f"{HOST}:{port}") as channel:
        client = Client(channel)
        for number in range(WIDE_GROUPS):
            broker = identity(f"127.0.0.1:{number + 20_000}", name=f"wide-{number}")
            client.registration.RegisterBroker(registration([WIDE_TOPIC], broker), timeout=SOCKET_SECONDS)
    unread = hello((INITIAL_WINDOW_SIZE, 0)) + call(LOOKUP, 1, wide)
    until = time.monotonic() + seconds
    with socket.create_connection((os.environ["HONEST_AT"], port), timeout=SOCKET_SECONDS) as sock:
        sock.sendall(hello() + b"".join(call(LOOKUP, stream, wide) for stream in _streams(READ_LOOKUPS)))
        reader = Windowed(sock)
        crowd = threading.Thread(target=_hold_until, args=(port, THOUSANDS, unread, until), daemon=True)
        crowd.start()
        try:
            while crowd.is_alive() and len(reader.ended) < READ_LOOKUPS - 1:
                reader.read(READ_BYTES)
                time.sleep(READ_SECONDS)
            crowd.join()
            while len(reader.ended) < READ_LOOKUPS:
                reader.read()
        except OSError as error:
            sys.exit(f"the slow reader was cut after {len(reader.ended)} of {READ_LOOKUPS} answers: {error}")


def client_hello() -> bytes:
    """The first message of a TLS handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    handshake = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        handshake.do_handshake()
    return outgoing.read()


def _streams(count: int = CALLS) -> range:
    return range(1, 2 * count, 2)


def _open_again(port: int, seconds: float, begun: Callable[[int], bytes]) -> None:
    """Opens calls on many connections, holds them, and ends them with their connections."""
    greeting = hello() + b"".join(begun(stream) for stream in _streams())
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        hold(port, min(left, HOLD_SECONDS), FLOODING, greeting)


def _hold_until(port: int, count: int, greeting: bytes, until: float) -> None:
    with connections(port, count, greeting):
        time.sleep(max(0.0, until - time.monotonic()))


def _in_threads(port: int, seconds: float, count: int, send: Callable[[Windowed], None]) -> None:
    """Has each of some connections send something in a thread of its own, again and again."""
    until = time.monotonic() + seconds

    def again() -> None:
        while time.monotonic() < until:
            with connections(port, 1, hello()) as opened, suppress(OSError):
                for sock in opened:
                    sock.settimeout(SOCKET_SECONDS)
                    send(Windowed(sock))

    threads = [threading.Thread(target=again, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
