"""Virtual time for threads that wait: it stands still until the test moves it on."""

from __future__ import annotations

import random
import threading

from broker_agent.timing.clock import Timing
from support.fakes.registering_name_server import DEADLINE

RELEASED = -1.0


class VirtualTime:
    """Hands ``clock`` and ``wait`` to code under test; ``advance`` lets each waiter run at the moment it asked for."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self._moved = threading.Condition()
        self._waiting: dict[int, float] = {}  # thread -> when it wants to go on
        self.timing = Timing(clock=lambda: self.now, wall_clock=lambda: self.now, rng=random.Random(1))

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """``threading.Event.wait`` on this clock."""
        me = threading.get_ident()
        with self._moved:
            self._waiting[me] = self.now + seconds
            self._moved.notify_all()
            while not event.is_set() and self._waiting[me] != RELEASED:
                self._moved.wait(0.005)  # setting the event wakes nobody here
            del self._waiting[me]
            self._moved.notify_all()
        return event.is_set()

    def settle(self, waiters: int) -> None:
        """Waits until so many threads wait for time to pass, which is all that run."""
        with self._moved:
            assert self._moved.wait_for(lambda: len(self._sleeping()) == waiters, DEADLINE), self._waiting

    def advance(self, seconds: float, waiters: int = 1) -> None:
        """Moves time on; each waiter that is due runs, one at a time, until all wait again."""
        end = self.now + seconds
        self.settle(waiters)
        while (due := min(self._sleeping().values(), default=end + 1)) <= end:
            with self._moved:
                self.now = max(self.now, due)
                self._waiting[min(self._waiting, key=lambda thread: self._waiting[thread])] = RELEASED
                self._moved.notify_all()
                assert self._moved.wait_for(lambda: RELEASED not in self._waiting.values(), DEADLINE)
            self.settle(waiters)
        self.now = end

    def _sleeping(self) -> dict[int, float]:
        return {thread: due for thread, due in self._waiting.items() if due != RELEASED}
