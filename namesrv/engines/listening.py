"""Listening sockets, bound by the name server or handed over by systemd, and certificates: how the engine gets them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterable

import namesrv_engine

from namesrv.settings import RemotingTlsMode
from namesrv_common.endpoints import Endpoint
from namesrv_common.files.watched_file import CHECK_SECONDS
from namesrv_common.tls.listener_tls import ListenerTls

# Sockets that a server listens on: TCP at every address of a host.

BACKLOG = 4_096
"""Connections that may wait to be accepted; the system may allow fewer."""


def listen(target: str) -> list[socket.socket]:
    """Listens at ``HOST:PORT``, and returns the sockets, all of one port; port 0 takes any free one. Raises OSError."""
    with contextlib.ExitStack() as opened:
        sockets: list[socket.socket] = []
        host, port = Endpoint.parse(target, allow_port_zero=True)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            one = opened.enter_context(socket.socket(family, kind, protocol))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
            one.bind((address[0], port, *address[2:]))
            port = port or one.getsockname()[1]
            one.listen(BACKLOG)
            sockets.append(one)
        opened.pop_all()
    return sockets


Listening = tuple[socket.socket, RemotingTlsMode | None]
"""A socket that listens, and the TLS of RocketMQ's protocol if that is spoken there."""


def hand_over(sockets: Iterable[Listening], engine: namesrv_engine.Engine) -> None:
    """Gives the engine sockets, and closes them here."""
    with socket.socket(fileno=engine.handover()) as door:
        for one, mode in sockets:
            socket.send_fds(door, [b"\0"], [one.fileno()])
            engine.listen(mode)
            one.close()


# The certificates that the engine shows.


def show(tls: ListenerTls, engine: namesrv_engine.Engine) -> None:
    """Gives the engine the certificates. Raises ValueError if they cannot be used."""
    shown = tls.shown
    engine.set_tls(shown.pair.certificate, shown.pair.key, shown.authorities)


async def show_later(tls: ListenerTls, engine: namesrv_engine.Engine) -> None:
    """Gives the engine certificates that have been read again and found good. Runs until cancelled."""
    passed_on = tls.generation
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        if (generation := tls.generation) != passed_on:
            passed_on = generation
            show(tls, engine)
