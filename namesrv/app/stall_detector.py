"""The detector of stalls of this process, so that no broker is removed for not having reached it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import structlog

TICK_SECONDS = 0.25
"""Time between two checks that the event loop runs."""

STALL_SECONDS = 1.0
"""A tick that comes later than this is a stall: the process was stopped, or starved of its processor."""

DELAYS_SECONDS = 60.0
"""How long the delay of a tick is remembered, for status calls."""

_log = structlog.get_logger(__name__)


class StallDetector:
    """Measures stalls of the event loop.

    During a stall, pings of peers are unanswered, and peers close sound connections. For a while afterwards, ends of
    channels say nothing about the brokers behind them.
    """

    def __init__(
        self, monotonic: Callable[[], float], on_stall: Callable[[float], None], doubtful_seconds: float
    ) -> None:
        """Measures from now on, or from ``begin``.

        Args:
            on_stall: Called with the length of each stall in seconds, before other code can draw conclusions.
            doubtful_seconds: How long after a stall the ends of channels say nothing.
        """
        self._monotonic = monotonic
        self._on_stall = on_stall
        self._doubtful_seconds = doubtful_seconds
        self._last_tick = monotonic()
        self._doubtful_until = self._last_tick
        self._next_tick = self._last_tick + TICK_SECONDS
        self._delays: deque[tuple[float, float]] = deque(maxlen=round(DELAYS_SECONDS / TICK_SECONDS))
        """The time of each tick, and its delay."""

    def begin(self) -> None:
        """Measures from now on: a start that took long has cut off nobody, as nobody was connected."""
        self._last_tick = self._monotonic()
        self._next_tick = self._last_tick + TICK_SECONDS

    def check(self) -> None:
        """Takes a stall into account that nobody has noticed yet. Call it before drawing conclusions from silence."""
        now = self._monotonic()
        late = now - self._last_tick - TICK_SECONDS
        self._last_tick = now
        if late > STALL_SECONDS:
            _log.warning("own_stall", seconds=round(late, 3))
            self._doubtful_until = now + self._doubtful_seconds
            self._on_stall(late)

    def channel_ends_are_doubtful(self) -> bool:
        """Whether a channel that ends now may have ended because of us."""
        self.check()
        return self._monotonic() < self._doubtful_until

    async def watch(self) -> None:
        """Checks again and again. Runs until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.tick()

    def tick(self) -> None:
        """Notes how late a tick comes, and checks."""
        now = self._monotonic()
        self._delays.append((now, now - self._next_tick))
        self._next_tick = now + TICK_SECONDS
        self.check()

    def longest_delay(self) -> float:
        """Longest delay of a tick during the last minute, in seconds; one that is overdue right now counts, too."""
        now = self._monotonic()
        delays = tuple(self._delays)  # the event loop ticks while the thread of the metrics reads
        recent = (late for at, late in delays if at >= now - DELAYS_SECONDS)
        return max(0.0, now - self._next_tick, *recent)
