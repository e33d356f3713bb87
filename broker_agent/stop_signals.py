"""The signals that end the agent."""

from __future__ import annotations

import signal
import socket


class StopSignals:
    """Waits for SIGTERM or SIGINT; one that comes before the wait ends it at once.

    The interpreter writes each signal to a socket, so none is lost in the moment before the wait. Only a Python handler
    could wake a lock or an event, and it cannot run while the main thread waits.
    """

    def __init__(self) -> None:
        """Takes the signals from now on. Only the main thread may do it."""
        self._signals, self._interpreter = socket.socketpair()
        self._interpreter.setblocking(False)
        signal.set_wakeup_fd(self._interpreter.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: None)

    def wait(self) -> None:
        """Returns when a signal has come."""
        self._signals.recv(1)
