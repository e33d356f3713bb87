"""The attacks on each listener, each with the bound that holds it."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from groundwork.endpoints import Endpoint
from tests.faults.attack import addresses, sources
from tests.faults.attack import on_remoting as attacks_on_remoting
from tests.faults.attack.on_grpc import (
    ACCOUNT_ATTACKS,
    ACCOUNT_ATTACKS_ON_TLS,
    ATTACKS,
    ATTACKS_ON_TLS,
    COMPRESSED_ATTACKS,
    FRAME_ATTACKS,
    SHARE_ATTACKS,
)
from tests.faults.attack.runner import MOST_SECONDS, Attack
from tests.support.hostile import http_peers as hostile_http

ON_AGENTS = (
    *("random-bytes", "other-protocol", "random-frames", "declared-sizes", "many-streams", "slow-readers"),
    *("slow-writers", "pings", "settings", "endless-headers", "idle-connections", "connection-flood"),
    *("half-messages", "slow-bodies", "requests-unread", "bad-metadata", "half-open"),
    *("empty-members", "truncated-gzip", "wrong-encodings", "malformed-messages", "health-watches", "health-checks"),
)
"""Slow, silent, flooding, half-open and never-reading peers; what grpcio itself does not withstand is left out."""
LIST_SECONDS = 15.0
"""An agent asks its address server a second time after ten seconds."""
REVOCATION_SECONDS = 10.0
"""A name server looks at its permits every second, and takes what has looked the same twice."""
EXTRA_SECONDS = 10.0
"""What attacks that end by themselves may take beyond their time."""

_FRAMES = "2,000 frames a second, 64 a turn, 5 s of flood"
_UNREAD = "128 MiB of answers that wait"
_NO_HTTP_2 = "what is no HTTP/2 ends the connection"
_FIELDS = "32 KiB of fields"
_PLACES = "connections by address, a deadline for the request"
BOUNDS = {
    **dict.fromkeys(("random-bytes", "other-protocol", "random-frames"), _NO_HTTP_2),
    **dict.fromkeys(("pings", "settings", "tiny-windows", "window-flips", "updates", "tiny-data"), _FRAMES),
    **dict.fromkeys(("slow-readers", "zero-windows", "requests-unread", "unread-snapshots"), _UNREAD),
    **dict.fromkeys(("large-metadata", "endless-headers", "references"), _FIELDS),
    "unknown-frames": _FRAMES,
    "wrong-methods": "64 calls a turn",
    "declared-sizes": "16 MiB, from the prefix",
    "gzip-bomb": "unpacked in pieces to 16 MiB",
    "many-streams": "200 calls a connection",
    "half-open": "silent connections end",
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
    **dict.fromkeys(("empty-blocks", "many-empty-blocks"), "steps of 4 KiB, one message at a time"),
    "empty-members": "16 members a message",
    "many-bombs": "64 MiB of requests an address, decompressed",
    **dict.fromkeys(("truncated-gzip", "wrong-encodings"), "the call ends"),
    "health-watches": "12,500 calls of health an address",
    "health-checks": "12,500 calls of health an address",
    "reflection-calls": "100 calls of reflection an address",
    "malformed-messages": "200 calls a connection",
    "bodiless-calls": "64 MiB of requests an address",
    "large-requests": "64 MiB of requests an address",
    "requests-while-blocked": "64 MiB of requests an address",
    "silent-handshakes": "2,048 handshakes an address, 10 s",
    "revocation": "open calls end a slice at a time",
    "many-small-holders": "64 MiB of answers that wait an address; it loses its connections first",
}
_ON_REMOTING = {
    **dict.fromkeys(("random-bytes", "other-protocols", "broken-frames"), "what is no frame ends the connection"),
    **dict.fromkeys(("lookup-flood", "unknown-requests", "one-way-flood"), "32 requests a connection, in turns"),
    "declared-sizes": "64 KiB ahead of the bytes, 64 MiB an address",
    "zlib-bombs": "40 MiB unpacked",
    "never-readers": "1 MiB unsent a connection, 256 MiB of all",
    "half-open": "silent connections end",
    "slow-writers": "10 s without a byte, 30 s a frame",
    "registration-flood": "4,000,000 topics under way",
    "silent-connections": "120 s, 20,000 connections",
    "connection-flood": "20,000 connections",
}
_OF_SOURCES = {
    **dict.fromkeys(sources.LISTS, "64 KiB, declared length and time; it changes nothing"),
    **dict.fromkeys(sources.FILES, "regular files of 1 GiB; the last good table stays"),
}


def on_grpc(listener: str, port: int, seconds: float) -> Iterable[Attack]:
    """Attacks on a listener of gRPC.

    Args:
        listener: ``namesrv``, ``agent`` or ``clients``: whose calls they make.
        port: Where it is.
        seconds: How long each lasts.
    """
    of_accounts = ACCOUNT_ATTACKS if addresses.are_here() else ()
    for name in (*ATTACKS, *FRAME_ATTACKS, *SHARE_ATTACKS, *COMPRESSED_ATTACKS, *of_accounts):
        if listener == "namesrv" or name in ON_AGENTS:
            yield _grpc_attack(name, port, seconds, listener)


def on_tls(port: int, seconds: float) -> Iterable[Attack]:
    """Attacks on a listener with TLS."""
    of_accounts = ACCOUNT_ATTACKS_ON_TLS if addresses.are_here() else ()
    for name in (*ATTACKS_ON_TLS, *of_accounts):
        yield _grpc_attack(name, port, seconds)


def while_blocked(port: int, process: int, seconds: float) -> Attack:
    """The attack on a name server whose event loop sleeps when it is told to."""
    return _grpc_attack("requests-while-blocked", port, seconds, ATTACKED_PID=str(process))


def by_revocation(port: int, folder: str) -> Attack:
    """The attack on a name server by a caller whose permit comes and goes; its files are in a folder."""
    return _grpc_attack("revocation", port, REVOCATION_SECONDS, ATTACKED_FOLDER=folder)


def on_http(endpoint: Endpoint, seconds: float) -> Iterable[Attack]:
    """Attacks on a listener of HTTP."""
    for name in hostile_http.ATTACKS:
        command = (sys.executable, "-m", "tests.support.hostile.http_peers", name, str(endpoint))
        yield Attack(name.replace("_", "-"), _PLACES, command, seconds)


def on_remoting(port: int, seconds: float) -> Iterable[Attack]:
    """Attacks on the port that speaks RocketMQ's protocol."""
    for name in attacks_on_remoting.ATTACKS:
        command = (sys.executable, "-m", "tests.faults.attack.on_remoting", name, str(port), str(seconds))
        yield Attack(name, _ON_REMOTING[name], command, seconds + EXTRA_SECONDS, _addresses())


def by_address_server(name: str) -> Attack:
    """An attack by an address server, which there is already: the agent asks it again while nothing else happens."""
    command = (sys.executable, "-c", f"import time; time.sleep({LIST_SECONDS})")
    return Attack(name, _OF_SOURCES[name], command, MOST_SECONDS)


def by_topics_file(name: str, path: str, seconds: float) -> Attack:
    """An attack by what stands in the place of topics.json."""
    command = (sys.executable, "-m", "tests.faults.attack.sources", name, str(seconds), path)
    return Attack(name, _OF_SOURCES[name], command, MOST_SECONDS)


def _grpc_attack(name: str, port: int, seconds: float, listener: str = "namesrv", **more: str) -> Attack:
    command = (sys.executable, "-m", "tests.faults.attack.on_grpc", name, str(port), str(seconds))
    bound = BOUNDS[name] if listener == "namesrv" else "grpcio's own (docs/limits.md)"
    environment = {"ATTACKED": listener, **_addresses(), **more}
    return Attack(name, bound, command, seconds + EXTRA_SECONDS, environment)


def _addresses() -> dict[str, str]:
    """The addresses that attackers and honest clients dial, as programs that attack read them."""
    if not addresses.are_here():
        return {}
    return {"ATTACKED_AT": addresses.ATTACKER, "HONEST_AT": addresses.HONEST}
