"""Sockets to listen with, bound here or by systemd, and states that systemd is told: sd_listen_fds(3), sd_notify(3)."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Mapping, MutableMapping

import structlog

from namesrv_common.endpoints import Endpoint
from namesrv_common.files.watched_file import request_reload

FIRST_DESCRIPTOR = 3
"""The number of the first descriptor that is handed over; the others follow it."""

WATCHDOG_MESSAGES = 4
"""Messages within the time after which systemd takes a service for stalled: one that comes late does no harm."""

_log = structlog.get_logger(__name__)


def bound_socket(listen: Endpoint) -> socket.socket:
    """A socket that listens.

    Raises:
        OSError: The port is in use, or the address is not this machine's; the text says which.
    """
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        return socket.create_server(listen, family=family)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]
        raise OSError(f"cannot listen on {listen}: {reason}") from error


def check_bindable(listen: Endpoint) -> None:
    """Binds once without gRPC, whose engines write lines of their own and do not say what is wrong. Raises OSError."""
    bound_socket(listen).close()


def listeners_handed_over(
    listens: Mapping[str, Endpoint], environment: MutableMapping[str, str] = os.environ, first: int = FIRST_DESCRIPTOR
) -> dict[str, list[socket.socket]]:
    """Returns the listening sockets that systemd, or another starter, has handed to this process, by setting.

    Each socket belongs to the setting that has its address. A setting without a socket has an empty list. The variables
    are removed, so that processes started from here do not take the sockets for their own.

    Args:
        listens: Settings and their addresses, which the checks of settings have allowed. Port 0 stands for any port.

    Raises:
        ValueError: A descriptor is not a listening socket, or no setting has its address. The text names it.
    """
    taken: dict[str, list[socket.socket]] = {name: [] for name in listens}
    process, count_text, names_text = (
        environment.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
    )
    if process != str(os.getpid()) or not count_text:
        return taken
    if not (count_text.isascii() and count_text.isdigit()):
        raise ValueError(f"LISTEN_FDS is {count_text!r:.40}, not the number of sockets that are handed over")
    names = names_text.split(":") if names_text else []
    sockets: list[socket.socket] = []
    try:
        for index in range(int(count_text)):
            name = names[index] if index < len(names) else "unknown"
            sockets.append(_listener(first + index, name))
            taken[_setting_of(sockets[-1], name, listens)].append(sockets[-1])
    except ValueError:
        for one in sockets:
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


def reload_on_hangup() -> None:
    """Makes SIGHUP reload certificates, permits and other watched files. Call it in the main thread.

    Each file is read again within a second, by the part of the program that uses it, and that part logs the result.
    """

    def requested(_number: int, _frame: object) -> None:
        request_reload()
        _log.info("reload_requested", signal="SIGHUP")

    signal.signal(signal.SIGHUP, requested)


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


def _setting_of(one: socket.socket, name: str, listens: Mapping[str, Endpoint]) -> str:
    """Returns the setting that has the address of a socket. Raises ValueError."""
    settings = " and ".join(f"{setting} is {listen}" for setting, listen in listens.items())
    if one.family not in {socket.AF_INET, socket.AF_INET6}:
        raise ValueError(f"{name} is not of TCP, but {settings}: write such an address after ListenStream=")
    host, port = one.getsockname()[:2]
    for setting, listen in listens.items():
        if (host, port if listen.port else 0) in _addresses(setting, listen):
            return setting
    raise ValueError(f"{name} listens at {Endpoint(host, port)}, but {settings}")


def _addresses(setting: str, listen: Endpoint) -> set[tuple[str, int]]:
    try:
        found = socket.getaddrinfo(*listen, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(f"the host of {setting}, {listen.host}, has no address: {error.strerror}") from error
    return {(str(address[0]), int(address[1])) for *_, address in found}
