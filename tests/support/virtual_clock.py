"""Time that passes only when a test says so."""

from __future__ import annotations

import random
import threading

from broker_agent.timing import Timing

RELEASED = -1.0
REAL_SECONDS = 30.0
"""How long threads may take, in real time, until all wait again; on a busy machine."""


class VirtualClock:
    """A monotonic and a wall clock that stand still, and waits that end when these clocks say so.

    Code that only asks for the time gets the clock itself, or ``monotonic``, ``wall`` or ``wall_millis``. A thread gets
    ``wait`` and a coroutine ``sleep``. ``advance`` moves time on. ``run`` does, too, and lets each thread that waits go
    on at the moment it asked for.
    """

    def __init__(self, seconds: float = 1_000.0) -> None:
        self.seconds = seconds
        """What the monotonic clock says."""
        self.wall_ahead = 1_700_000_000.0
        """How much more the wall clock says, seconds: more or less than before is a wall clock that was set."""
        self.pauses: list[float] = []
        """How long coroutines slept, seconds."""
        self._moved = threading.Condition()
        self._waiting: dict[int, float] = {}  # thread -> when it wants to continue

    def __call__(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    def wall(self) -> float:
        return self.wall_ahead + self.seconds

    def wall_millis(self) -> int:
        return int(self.wall() * 1000)

    def advance(self, seconds: float) -> None:
        self.seconds += seconds

    async def sleep(self, seconds: float) -> None:
        """``asyncio.sleep`` on this clock: time passes by it."""
        self.pauses.append(seconds)
        self.seconds += seconds

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """``threading.Event.wait`` on this clock: somebody else has to ``run`` it."""
        me = threading.get_ident()
        with self._moved:
            self._waiting[me] = self.seconds + seconds
            self._moved.notify_all()
            while not event.is_set() and self._waiting[me] != RELEASED:
                self._moved.wait(0.005)  # setting the event wakes nobody here
            del self._waiting[me]
            self._moved.notify_all()
        return event.is_set()

    def settle(self, waiters: int) -> None:
        """Waits until so many threads wait for time to pass, which is all that run."""
        with self._moved:
            assert self._moved.wait_for(lambda: len(self._sleeping()) == waiters, REAL_SECONDS), self._waiting

    def run(self, seconds: float, waiters: int = 1) -> None:
        """Moves time on; each of so many threads that is due continues, one at a time, until all wait again."""
        end = self.seconds + seconds
        self.settle(waiters)
        while (due := min(self._sleeping().values(), default=end + 1)) <= end:
            with self._moved:
                self.seconds = max(self.seconds, due)
                self._waiting[min(self._waiting, key=lambda thread: self._waiting[thread])] = RELEASED
                self._moved.notify_all()
                assert self._moved.wait_for(lambda: RELEASED not in self._waiting.values(), REAL_SECONDS)
            self.settle(waiters)
        self.seconds = end

    def _sleeping(self) -> dict[int, float]:
        return {thread: due for thread, due in self._waiting.items() if due != RELEASED}


def agent_timing(clock: VirtualClock) -> Timing:
    """What an agent takes time and chance from: this clock, and a chance of its own that is the same each time."""
    return Timing(clock, clock.wall, random.Random(1), clock.wait)
