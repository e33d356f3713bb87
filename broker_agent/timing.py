"""Clocks, periods and pauses, injected so that tests run on virtual time."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

JOIN_SECONDS = 2.0
"""Time for threads to end."""
JITTER = 0.1
"""Share of a period that may be added to it or taken off, so that a fleet that started at once spreads."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The agent's clocks, waits and source of randomness."""

    clock: Callable[[], float] = time.monotonic
    """Monotonic seconds: every deadline and delay goes by it."""
    wall_clock: Callable[[], float] = time.time
    """Seconds since the Unix epoch: only ever reported."""
    rng: random.Random = field(default_factory=random.Random)
    """Source of jitter."""
    wait: Callable[[threading.Event, float], bool] = threading.Event.wait
    """Waits until the event is set or that many seconds have passed, and says whether it is set."""

    def wall_millis(self) -> int:
        """Milliseconds since the Unix epoch."""
        return int(self.wall_clock() * 1000)

    def jittered(self, seconds: float, share: float = JITTER) -> float:
        """A period, longer or shorter by up to a share of it."""
        return seconds * self.rng.uniform(1 - share, 1 + share)


_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

AFTER_BUG_SECONDS = 10.0
"""Pause after the work has raised an unexpected error: too long to fill the log, short enough to recover."""


class PeriodicThread:
    """Runs a piece of work, waits as long as the work says, and runs it again.

    A daemon, so that work that hangs in the operating system (a name lookup) cannot keep the process from ending.
    """

    def __init__(self, name: str, work: Callable[[], float], timing: Timing, first_delay: float = 0.0) -> None:
        """Creates it; nothing runs before ``start``. ``work`` returns the seconds until it is due again."""
        self._work = work
        self._timing = timing
        self._first_delay = first_delay
        self._stopping, self._woken = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread. A thread that was told to stop before does nothing."""
        self._thread.start()

    def cancel(self) -> None:
        """Tells the thread to end after the work that it may be at; does not wait for that."""
        self._stopping.set()
        self.wake()

    def stop(self) -> None:
        """Tells the thread to end, and waits for that, 2 s at most."""
        self.cancel()
        self.join()

    def wake(self) -> None:
        """Makes the work due at once."""
        self._woken.set()

    def join(self, seconds: float = JOIN_SECONDS) -> None:
        """Waits until the thread has ended, at most so long."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, seconds))

    def _run(self) -> None:
        delay = self._first_delay
        while True:
            if delay > 0:
                self._timing.wait(self._woken, delay)
            self._woken.clear()
            if self._stopping.is_set():
                return
            try:
                delay = self._work()
            except Exception:  # noqa: BLE001 - the boundary of a thread: nobody else would ever see the error
                _log.exception("periodic_work_failed", thread=self._thread.name)
                delay = AFTER_BUG_SECONDS


# Many changes within a moment make one registration (upstream's #3407 was one for each new topic).
QUIET_SECONDS = 0.1
"""Time from the last change to the registration. It is short because most changes come alone."""
LONGEST_SECONDS = 1.5
"""Longest time from the first change to the registration, however many changes follow."""
BETWEEN_SECONDS = 1.0
"""Time from one such registration to the next one."""


class ChangeThread(PeriodicThread):
    """Calls once for many changes, also for those before its start."""

    def __init__(self, register: Callable[[], None], timing: Timing) -> None:
        """Creates it; nothing is called before ``start``."""
        super().__init__("broker-agent-changes", self._register_if_due, timing)
        self._register = register
        self._lock = threading.Lock()  # guards all below
        self._first: float | None = None  # when the oldest change that is not registered was made
        self._last = 0.0
        self._not_before = 0.0  # when the next registration may begin

    def changed(self) -> None:
        """Something has changed. Returns at once."""
        with self._lock:
            self._last = self._timing.clock()
            if self._first is None:
                self._first = self._last
        self.wake()

    def _register_if_due(self) -> float:
        with self._lock:
            if self._first is None:
                return threading.TIMEOUT_MAX
            due = max(min(self._last + QUIET_SECONDS, self._first + LONGEST_SECONDS), self._not_before)
            if (now := self._timing.clock()) < due:
                return due - now
            self._first, self._not_before = None, now + BETWEEN_SECONDS
        try:
            self._register()
        except Exception:  # noqa: BLE001 - the boundary of a thread: the next change is registered
            _log.exception("registration_of_changes_failed")
        return 0.0


FIRST_DELAY_SECONDS = 10.0
"""Time from the registration at start to the first periodic one, if no period is shorter (RocketMQ: the same)."""


class RegistrationThread(PeriodicThread):
    """Calls at a jittered period, counted from one call's beginning to the next one's.

    A round that waits for a dead name server therefore does not put off the next one.
    """

    def __init__(self, register: Callable[[], object], period_seconds: float, timing: Timing) -> None:
        """Creates it; nothing is called before ``start``."""
        super().__init__("broker-agent-periodic", self._round, timing, min(FIRST_DELAY_SECONDS, period_seconds))
        self._register = register
        self._period = period_seconds

    @property
    def problem(self) -> str | None:
        """The problem if the thread has ended although nobody has stopped it; None if there is none."""
        ended = self._thread.ident is not None and not self._thread.is_alive() and not self._stopping.is_set()
        return "the thread that registers periodically has ended" if ended else None

    def _round(self) -> float:
        due = self._timing.clock() + self._timing.jittered(self._period)
        try:
            self._register()
        except Exception:  # noqa: BLE001 - the boundary of a thread; the next round may work (RocketMQ logs, too)
            _log.exception("round_of_registrations_failed")
        return max(0.0, due - self._timing.clock())
