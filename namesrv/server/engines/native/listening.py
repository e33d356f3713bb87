"""Sockets that a server listens on: TCP at every address of a host, or a Unix socket."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from groundwork.endpoints import Endpoint
from groundwork.files import disk

BACKLOG = 4_096
"""Connections that may wait to be accepted; the system may allow fewer."""

_UNIX = "unix:"


def listen(target: str) -> tuple[list[socket.socket], int]:
    """Listens at ``HOST:PORT`` or ``unix:PATH``.

    Args:
        target: Where; port 0 takes any free one.

    Returns:
        The sockets, and the port; 1 for a Unix socket, as grpcio has it.

    Raises:
        OSError: The address is in use, or not of this machine.
    """
    if target.startswith(_UNIX):
        return [_unix(target.removeprefix(_UNIX))], 1
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


def _unix(path: str) -> socket.socket:
    disk.remove(Path(path))
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        one.bind(path)
        one.listen(BACKLOG)
    except OSError:
        one.close()
        raise
    return one
