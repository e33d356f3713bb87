"""The attacks on each listener, each with the bound that holds it."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from tests.faults.attack import sources
from tests.faults.attack.runner import MOST_SECONDS, Attack
from tests.faults.load import remoting_attacks
from tests.faults.load.attacks import ATTACKS, ATTACKS_ON_TLS, FRAME_ATTACKS, SHARE_ATTACKS
from tests.support.hostile import http_peers as hostile_http

NOT_HELD_BY_GRPCIO = frozenset(
    {
        *("large-metadata", "references", "small-references", "honest-bursts"),
        *("few-resets", "made-you-reset", "zero-windows"),
    }
)
"""What grpcio does not withstand, with no option: it is for a trusted network (docs/limits.md)."""
ON_AGENTS = (
    *("random-bytes", "other-protocol", "random-frames", "declared-sizes", "many-streams", "slow-readers"),
    *("slow-writers", "pings", "settings", "endless-headers", "idle-connections", "connection-flood"),
    *("half-messages", "slow-bodies", "requests-unread", "bad-metadata", "half-open"),
)
"""Slow, silent, flooding, half-open and never-reading peers; what grpcio itself does not withstand is left out."""
LIST_SECONDS = 15.0
"""An agent asks its address server a second time after ten seconds."""
EXTRA_SECONDS = 10.0
"""What attacks that end by themselves may take beyond their time."""

_FRAMES = "2,000 frames a second, 64 a turn, 5 s of flood"
_UNREAD = "128 MiB of answers that wait"
_NO_HTTP_2 = "what is no HTTP/2 ends the connection"
_FIELDS = "32 KiB of fields"
_PLACES = "places by address, a deadline for the request"
BOUNDS = {
    **dict.fromkeys(("random-bytes", "other-protocol", "random-frames"), _NO_HTTP_2),
    **dict.fromkeys(("pings", "settings", "tiny-windows", "window-flips", "updates", "tiny-data"), _FRAMES),
    **dict.fromkeys(("slow-readers", "zero-windows", "requests-unread", "unread-snapshots"), _UNREAD),
    **dict.fromkeys(("large-metadata", "endless-headers", "references"), _FIELDS),
    "unknown-frames": _FRAMES,
    "wrong-methods": "64 calls a turn",
    "declared-sizes": "4 MiB, from the prefix",
    "gzip-bomb": "unpacked in pieces to 4 MiB",
    "many-streams": "200 calls a connection",
    "half-open": "who says no more is let go",
    "slow-writers": "20 s a message",
    "slow-bodies": "20 s a message",
    "resets": "20 before they are looked at",
    "idle-connections": "10 s",
    "half-handshakes": "10 s",
    "connection-flood": "100,000 connections, 2,000 a second",
    "half-messages": "128 MiB of all connections",
    "resets-after-accept": "400 cancels",
    "few-resets": "4 new connections a turn",
    "small-references": "fields beyond 64 as control frames",
    "made-you-reset": "256 resets of ours",
    "pins": "a share for each caller",
    "wide-watches": "10,000 names a watch, a share for each caller",
    "bad-metadata": "no log line a call",
    "honest-bursts": "200 calls a connection; more are taken again by the client",
}
_ON_REMOTING = {
    **dict.fromkeys(("random-bytes", "other-protocols", "broken-frames"), "what is no frame ends the connection"),
    **dict.fromkeys(("lookup-flood", "unknown-requests", "one-way-flood"), "32 requests a connection, in turns"),
    "declared-sizes": "16 MiB a frame, 128 MiB of large ones",
    "zlib-bombs": "64 MiB unpacked",
    "never-readers": "1 MiB unsent a connection, 256 MiB of all",
    "half-open": "who says no more is let go",
    "slow-writers": "30 s a frame",
    "registration-flood": "4,000,000 topics under way",
    "silent-connections": "120 s, 20,000 connections",
    "connection-flood": "20,000 connections",
}
_OF_SOURCES = {
    **dict.fromkeys(sources.LISTS, "64 KiB, declared length and time; it changes nothing"),
    **dict.fromkeys(sources.FILES, "regular files of 1 GiB; the last good table stays"),
}


def on_grpc(listener: str, engine: str, port: int, seconds: float) -> Iterable[Attack]:
    """Attacks on a listener of gRPC.

    Args:
        listener: ``namesrv``, ``agent`` or ``clients``: whose calls they make.
        engine: What it runs on.
        port: Where it is.
        seconds: How long each lasts.
    """
    for name in (*ATTACKS, *FRAME_ATTACKS, *SHARE_ATTACKS):
        if listener != "namesrv" and name not in ON_AGENTS:
            continue
        if engine == "native" or name not in NOT_HELD_BY_GRPCIO:
            yield _grpc_attack(name, port, seconds, engine, listener)


def not_held(port: int, seconds: float) -> Iterable[Attack]:
    """Attacks on a name server on grpcio that no option of it withstands."""
    for name in sorted(NOT_HELD_BY_GRPCIO):
        yield _grpc_attack(name, port, seconds, "grpcio", "namesrv")


def on_tls(engine: str, port: int, seconds: float) -> Iterable[Attack]:
    """Attacks on a listener with TLS."""
    for name in ATTACKS_ON_TLS:
        yield _grpc_attack(name, port, seconds, engine, "namesrv")


def on_http(endpoint: str, seconds: float) -> Iterable[Attack]:
    """Attacks on a listener of HTTP."""
    for name in hostile_http.ATTACKS:
        command = (sys.executable, "-m", "tests.support.hostile.http_peers", name, endpoint)
        yield Attack(name.replace("_", "-"), _PLACES, command, seconds)


def on_remoting(port: int, seconds: float) -> Iterable[Attack]:
    """Attacks on the port that speaks RocketMQ's protocol."""
    for name in remoting_attacks.ATTACKS:
        command = (sys.executable, "-m", "tests.faults.load.remoting_attacks", name, str(port), str(seconds))
        yield Attack(name, _ON_REMOTING[name], command, seconds + EXTRA_SECONDS)


def by_address_server(name: str) -> Attack:
    """An attack by an address server, which there is already: the agent asks it again while nothing else happens."""
    command = (sys.executable, "-c", f"import time; time.sleep({LIST_SECONDS})")
    return Attack(name, _OF_SOURCES[name], command, MOST_SECONDS)


def by_topics_file(name: str, path: str, seconds: float) -> Attack:
    """An attack by what stands in the place of topics.json."""
    command = (sys.executable, "-m", "tests.faults.attack.sources", name, str(seconds), path)
    return Attack(name, _OF_SOURCES[name], command, MOST_SECONDS)


def _grpc_attack(name: str, port: int, seconds: float, engine: str, listener: str) -> Attack:
    command = (sys.executable, "-m", "tests.faults.load.attacks", name, str(port), str(seconds))
    bound = BOUNDS[name] if engine == "native" else "grpcio's own (docs/limits.md)"
    return Attack(name, bound, command, seconds + EXTRA_SECONDS, {"ATTACKED": listener})
