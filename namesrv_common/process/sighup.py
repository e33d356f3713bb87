"""SIGHUP: reloads certificates, permits and other watched files, instead of ending the process."""

from __future__ import annotations

import signal

import structlog

from namesrv_common.files.watched_file import request_reload

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def reload_on_hangup() -> None:
    """Makes SIGHUP request a reload from now on. Call it in the main thread.

    Each file is read again within a second, by the part of the program that uses it, and that part logs the result.
    """
    signal.signal(signal.SIGHUP, lambda _number, _frame: _requested())


def _requested() -> None:
    request_reload()
    _log.info("reload_requested", signal="SIGHUP")
