"""Listening sockets: bound by the name server, or handed over by systemd."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import namesrv_engine

from namesrv.settings import RemotingTlsMode
from namesrv_common.endpoints import Endpoint
from namesrv_common.files.watched_file import CHECK_SECONDS
from namesrv_common.tls.listener_tls import ListenerTls

# Sockets that a server listens on: TCP at every address of a host.

BACKLOG = 4_096
"""Connections that may wait to be accepted; the system may allow fewer."""


def listen(target: str) -> tuple[list[socket.socket], int]:
    """Listens at ``HOST:PORT``, and returns the sockets and the port; port 0 takes any free one. Raises OSError."""
    with contextlib.ExitStack() as opened:
        sockets: list[socket.socket] = []
        host, port = Endpoint.parse(target, allow_port_zero=True)
        for family, kind, protocol, _, address in _addresses(host, port):
            one = opened.enter_context(socket.socket(family, kind, protocol))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
            one.bind((address[0], port, *address[2:]))
            port = port or one.getsockname()[1]
            one.listen(BACKLOG)
            sockets.append(one)
        opened.pop_all()
    return sockets, port


def _addresses(host: str, port: int) -> list[tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int]]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys(found))  # type: ignore[arg-type]  # of TCP, none has another address


# The entrance of a server: the sockets that it listens on until the engine has them, and the certificates it shows.


class Entrance:
    """Sockets and certificates, before the engine has them and, for certificates, whenever they have changed."""

    def __init__(self, tls: ListenerTls | None) -> None:
        self._tls = tls
        self._sockets: list[tuple[socket.socket, RemotingTlsMode | None]] = []
        self._secured = False

    def listen(self, address: str, *, with_tls: bool) -> int:
        """Listens at one more address; returns the port. Raises OSError."""
        sockets, port = listen(address)
        self._add(sockets)
        self._secured = self._secured or with_tls
        return port

    def adopt(self, sockets: list[socket.socket], *, with_tls: bool) -> int:
        """Takes sockets that listen already, all at one port; returns that."""
        self._secured = with_tls
        self._add(sockets)
        port: int = sockets[0].getsockname()[1]
        return port

    def listen_remoting(self, address: str, sockets: list[socket.socket], mode: RemotingTlsMode) -> int:
        """Listens for RocketMQ's protocol, at sockets that listen already if there are any; returns the port.

        Raises:
            OSError: The port is in use, or the address is not this machine's.
        """
        self._add(sockets or listen(address)[0], mode)
        port: int = self._sockets[-1][0].getsockname()[1]
        return port

    def _add(self, sockets: list[socket.socket], mode: RemotingTlsMode | None = None) -> None:
        self._sockets += [(one, mode) for one in sockets]

    def hand_over(self, engine: namesrv_engine.Engine) -> asyncio.Task[None] | None:
        """Gives the engine the sockets and the certificates.

        Returns:
            The task that passes on certificates that come later; None without TLS.

        Raises:
            ValueError: The certificates cannot be used.
        """
        with socket.socket(fileno=engine.handover()) as door:
            for one, mode in self._sockets:
                socket.send_fds(door, [b"\0"], [one.fileno()])
                engine.listen(mode)
        self.close()
        if self._tls is None or not self._secured:
            return None
        _show(self._tls, engine)
        return asyncio.create_task(_pass_on(self._tls, engine))

    def close(self) -> None:
        """Closes what the engine does not have."""
        for one, _ in self._sockets:
            one.close()
        self._sockets = []


def _show(tls: ListenerTls, engine: namesrv_engine.Engine) -> None:
    shown = tls.shown
    engine.set_tls(shown.pair.certificate, shown.pair.key, shown.authorities)


async def _pass_on(tls: ListenerTls, engine: namesrv_engine.Engine) -> None:
    """Gives the engine certificates that have been read again and found good. Runs until cancelled."""
    passed_on = tls.generation
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        if (generation := tls.generation) != passed_on:
            passed_on = generation
            _show(tls, engine)
