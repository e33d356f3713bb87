"""What systemd hands to a service, and what the service tells it: sd_listen_fds(3) and sd_notify(3)."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping, MutableMapping

import structlog

from groundwork.endpoints import Endpoint

FIRST_DESCRIPTOR = 3
"""The number of the first descriptor that is handed over; the others follow it."""

WATCHDOG_MESSAGES = 4
"""Messages within the time after which systemd takes a service for stalled: one that comes late does no harm."""

_log = structlog.get_logger(__name__)


def listeners_handed_over(
    listen: Endpoint, environment: MutableMapping[str, str] = os.environ, first: int = FIRST_DESCRIPTOR
) -> list[socket.socket]:
    """The listening sockets that systemd, or another starter, has handed to this process; empty if there are none.

    The variables that tell of them are removed, so that no process started from here takes them for its own.

    Args:
        listen: Where the setting ``listen`` says, and so what checks of it have allowed. Port 0 stands for any.

    Raises:
        ValueError: One of them is no listening socket, or not of that address. The text names it.
    """
    process, count_text, names_text = (
        environment.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
    )
    if process != str(os.getpid()) or not count_text:
        return []
    if not (count_text.isascii() and count_text.isdigit()):
        raise ValueError(f"LISTEN_FDS is {count_text!r:.40}, not the number of sockets that are handed over")
    names = names_text.split(":") if names_text else []
    meant = _addresses(listen)
    taken: list[socket.socket] = []
    try:
        for index in range(int(count_text)):
            name = names[index] if index < len(names) else "unknown"
            taken.append(_listener(first + index, name))
            _check_address(taken[-1], name, listen, meant)
    except ValueError:
        for one in taken:
            one.close()
        raise
    return taken


def tell_systemd(state: str) -> None:
    """Tells systemd a state, such as ``READY=1``, where it waits for one."""
    target = os.environ.get("NOTIFY_SOCKET")
    if not target:
        return
    abstract = target.startswith("@")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
            one.sendto(state.encode(), f"\0{target[1:]}" if abstract else target)
    except OSError as error:
        _log.warning("systemd_not_told", state=state, problem=str(error))


def watchdog_seconds(environment: Mapping[str, str] = os.environ) -> float | None:
    """After which silence systemd ends this process (``WatchdogSec=``); None if it does not watch it."""
    process, microseconds = (environment.get(name, "") for name in ("WATCHDOG_PID", "WATCHDOG_USEC"))
    if process not in {"", str(os.getpid())} or not (microseconds.isascii() and microseconds.isdigit()):
        return None
    return int(microseconds) / 1e6 or None


async def feed_watchdog(within_seconds: float) -> None:
    """Tells systemd again and again that this event loop runs. Runs until cancelled."""
    while True:
        tell_systemd("WATCHDOG=1")
        await asyncio.sleep(within_seconds / WATCHDOG_MESSAGES)


def _listener(number: int, name: str) -> socket.socket:
    """The socket of a descriptor, which programs started from here do not inherit."""
    try:
        os.set_inheritable(number, False)
        one = socket.socket(fileno=number)
    except OSError as error:
        raise ValueError(f"descriptor {number} ({name}) of LISTEN_FDS is no socket: {error.strerror}") from error
    if one.type != socket.SOCK_STREAM or not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        one.close()
        raise ValueError(f"descriptor {number} ({name}) of LISTEN_FDS does not listen: it needs ListenStream=")
    return one


def _check_address(one: socket.socket, name: str, listen: Endpoint, meant: set[tuple[str, int]]) -> None:
    if one.family not in {socket.AF_INET, socket.AF_INET6}:
        raise ValueError(f"{name} is not of TCP, but the setting listen is {listen}: write ListenStream={listen}")
    host, port = one.getsockname()[:2]
    if (host, port) not in meant and (listen.port or (host, 0) not in meant):
        raise ValueError(f"{name} listens at {Endpoint(host, port)}, but the setting listen is {listen}")


def _addresses(listen: Endpoint) -> set[tuple[str, int]]:
    try:
        found = socket.getaddrinfo(*listen, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(f"the host of the setting listen, {listen.host}, has no address: {error.strerror}") from error
    return {(str(address[0]), int(address[1])) for *_, address in found}
