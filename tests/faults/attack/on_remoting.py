"""Hostile clients of RocketMQ's protocol."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable
from itertools import count

from tests.faults.attack.kinds import (
    MOST_CONNECTIONS,
    ByHand,
    crowd,
    flood,
    half_silent,
    hold,
    repeat,
    say_no_more,
    trickle,
)
from tests.support.programs.rocketmq import broker_fields, data_version, frame, registration_body

LOOKUP, LIST, CLUSTERS = frame(105, {"topic": "TopicTest"}), frame(206), frame(106)
SIGN_OF_NOBODY = frame(904, broker_fields("nobody", "127.0.0.1:9"), flag=2)
OTHERS = (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
DECLARED = struct.pack(">II", (16 << 20) - 4, 2) + b"{}" + bytes(20)
"""The first 20 bytes of a frame that declares 16 MiB."""
BROKERS = count()
REPEATS = 1_500_000


def broken(turn: int) -> bytes:
    """A lookup, and one with one byte that is another."""
    at = turn % len(LOOKUP)
    return LOOKUP + LOOKUP[:at] + bytes([turn % 256]) + LOOKUP[at + 1 :]


def registered(_: int) -> bytes:
    """One of fifty brokers with twenty topics, which leave with their connections."""
    number = next(BROKERS)
    body = registration_body([f"flood-{topic}" for topic in range(20)], counter=number)
    return frame(103, broker_fields(f"flood-{number % 50}", f"127.0.0.1:{number % 50 + 1}"), body)


def bomb() -> bytes:
    """A registration that unpacks to 256 MiB."""
    return frame(103, broker_fields("bomb", "127.0.0.1:9"), zlib.compress(bytes(256 << 20)))


def repeated_topic() -> bytes:
    """A registration of RocketMQ 5 that has one topic 1,500,000 times, in 150 kB."""
    version, topic = json.dumps(data_version(1)).encode(), b"t 1 1 6 SINGLE_TAG {}"
    topics = (struct.pack(">i", len(topic)) + topic) * REPEATS
    plain = struct.pack(">i", len(version)) + version + struct.pack(">i", REPEATS) + topics + struct.pack(">i", 2)
    given = broker_fields("packed", "127.0.0.1:9") | {"compressed": "true", "haServerAddr": "127.0.0.1:10"}
    return frame(103, given, zlib.compress(plain + b"[]", 9))


def odd_json() -> tuple[bytes, ...]:
    """A body with 25,000 keys without quotes, a header with 170,000 objects, and one with 999 numbers."""
    keys = b"{" + b",".join(b"a%d:1" % number for number in range(25_000)) + b"}"
    numbers = b",".join(b'"a%d":%d' % (number, 10**9 + number) for number in range(999))
    members = b'"odd":[' + b"{}," * 170_000 + b"{}]", b'"extFields":{' + numbers + b"}"
    headers = [b'{"code":105,"flag":0,"language":"JAVA","opaque":1,"version":513,' + each + b"}" for each in members]
    framed = (struct.pack(">II", 4 + len(header), len(header)) + header for header in headers)
    return (frame(322, broker_fields(), keys), *framed)


ODD_JSON = odd_json()


def no_frames(again: Callable[[int], bytes]) -> ByHand:
    """A flood of what is no frame."""
    return ByHand(flood(again, count=20), "what is no frame ends the connection")


def in_turns(again: Callable[[int], bytes]) -> ByHand:
    """A flood of requests."""
    return ByHand(flood(again), "32 requests a connection, in turns")


REMOTING = {
    "random-bytes": no_frames(lambda _: os.urandom(2_000)),
    "other-protocols": no_frames(lambda turn: OTHERS[turn % 2]),
    "broken-frames": no_frames(broken),
    "declared-sizes": ByHand(hold(DECLARED, MOST_CONNECTIONS), "64 KiB ahead of the bytes, 64 MiB an address"),
    "zlib-bombs": ByHand(repeat(bomb, 2), "40 MiB unpacked"),
    "repeated-topics": ByHand(repeat(repeated_topic, 1), "40 MiB unpacked, one at a time"),
    "odd-json": ByHand(flood(lambda turn: ODD_JSON[turn % len(ODD_JSON)], count=6), "32 requests a connection"),
    # Lists with bodies of 60 kB whose answers are not taken.
    "queued-frames": ByHand(hold(frame(206, body=os.urandom(60_000)) * 32, 100), "32 requests a connection"),
    "never-readers": ByHand(
        hold((LIST + CLUSTERS) * 100, MOST_CONNECTIONS), "1 MiB unsent a connection, 256 MiB of all"
    ),
    "slow-writers": ByHand(
        trickle(b"", [bytes((byte,)) for byte in LOOKUP], 50, len(LOOKUP)), "10 s without a byte, 30 s a frame"
    ),
    "lookup-flood": in_turns(lambda _: LOOKUP * 50),
    "unknown-requests": in_turns(lambda turn: frame(30_000 + turn % 1_000) * 50),
    # Nobody answers them.
    "one-way-flood": in_turns(lambda _: SIGN_OF_NOBODY * 50),
    "registration-flood": ByHand(flood(registered, count=10), "4,000,000 topics under way"),
    "silent-connections": ByHand(half_silent(LOOKUP[:10]), "120 s, 20,000 connections"),
    # In the middle of a frame, after lists that are never taken.
    "half-open": ByHand(say_no_more(LIST * 20 + LOOKUP[:-1]), "silent connections end"),
    "connection-flood": ByHand(crowd(b""), "20,000 connections"),
}
"""The attacks on RocketMQ's protocol, by name."""
