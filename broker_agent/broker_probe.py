"""The probe of the broker itself: an agent that outlives its broker must not keep it in the routes."""

from __future__ import annotations

import socket
from collections.abc import Callable

import structlog

from broker_agent.timing import PeriodicThread, Timing
from namesrv_common.endpoints import Endpoint

PERIOD_SECONDS = 1.0
"""Time from one look at the broker to the next. RocketMQ's broker logs each connection, in some lines."""
FAILURES = 3
"""Failed looks in a row after which a broker counts as dead: one may be a full backlog, or a quick restart."""

CONNECT_TIMEOUT_SECONDS = 1.0
"""Time for one attempt to connect; the broker is on this machine or next to it."""

Check = Callable[[], None]
"""Looks at the broker once; raises OSError, with what is wrong, if it is not there."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def connect_to(addr: Endpoint) -> None:
    """Connects to the broker's address and closes the connection again. Raises OSError."""
    with socket.create_connection(addr, CONNECT_TIMEOUT_SECONDS) as connection:
        # With nobody listening, a connection to a port that the system gives to clients can reach itself.
        if connection.getsockname() == connection.getpeername():
            raise ConnectionRefusedError("nobody listens")


class BrokerProbe(PeriodicThread):
    """Looks at the broker again and again, and says when it has died and when it is back.

    At first the broker counts as alive, unless ``first_look`` has found otherwise.
    """

    def __init__(self, check: Check | None, timing: Timing, failures: int = FAILURES) -> None:
        """Creates it; the broker is not looked at before ``start``.

        Args:
            check: One look; None to take the broker for alive whatever happens.
            failures: Failed looks in a row that are the broker's death.
        """
        super().__init__("broker-agent-probe", self._look, timing)
        self._check = check
        self._failures_of_the_dead = failures
        self._failures = 0
        self.is_up = True
        """Whether the broker counts as alive."""
        self.on_down: Callable[[], None] = lambda: None
        """Called in the thread when it has died; must return quickly."""
        self.on_up: Callable[[], None] = lambda: None
        """Called when it is back, likewise."""

    def first_look(self) -> bool:
        """Looks once, before ``start``, and says whether the broker is there; takes a second at most for an address.

        Here one failure is enough. A broker that starts together with its agent may not listen yet: it is in no route
        that clients could lose, and must not get into one. ``on_up`` is called when it is there.
        """
        if self._check is None:
            return True
        try:
            self._check()
        except OSError as error:
            self.is_up, self._failures = False, self._failures_of_the_dead
            _log.warning("broker_not_up", error=str(error))
        return self.is_up

    def start(self) -> None:
        """Looks at the broker from now on, if there is a way to look."""
        if self._check is not None:
            super().start()

    def _look(self) -> float:
        """Looks once. Returns the seconds to the next time, counted from the beginning of this one."""
        assert self._check is not None
        started = self._timing.clock()
        try:
            self._check()
        except OSError as error:
            self._failures += 1
            if self.is_up and self._failures >= self._failures_of_the_dead:
                self.is_up = False
                _log.warning("broker_down", failures=self._failures, error=str(error))
                self.on_down()
        else:
            self._failures = 0
            if not self.is_up:
                self.is_up = True
                _log.info("broker_up")
                self.on_up()
        return max(0.0, PERIOD_SECONDS - (self._timing.clock() - started))
