"""Sockets to listen with, and states that systemd is told: sd_notify(3)."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Mapping

import structlog

from namesrv_common.endpoints import Endpoint
from namesrv_common.files.watched_file import request_reload

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
