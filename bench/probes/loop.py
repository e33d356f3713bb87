"""A probe of an event loop: how late its timers come, and what held them up."""

from __future__ import annotations

import asyncio
import time
from array import array
from typing import NamedTuple

from bench.probes.pauses import Pauses

TICK_SECONDS = 0.001
"""How often the loop is asked. uvloop counts in whole milliseconds, so a tick of an idle loop is up to one late."""


class LoopFigures(NamedTuple):
    """What a probe has seen."""

    longest_delay_millis: float
    """The latest tick: how long a call that came at the worst moment waited before anything was done for it."""
    p99_delay_millis: float
    """99 of 100 ticks were not later, with those that a longer delay left out counted as if they had come."""
    longest_busy_millis: float
    """Most processor time of the loop's thread between two ticks: the part of a delay that is not the machine's."""
    longest_collection_millis: float
    """Longest garbage collection, in whichever thread."""


class LoopProbe:
    """A timer that notes how late it comes."""

    def __init__(self) -> None:
        self._delays = array("d")
        self._longest_busy = 0.0
        self._pauses = Pauses()

    async def watch(self) -> None:
        """Ticks in the loop that it is awaited in, until cancelled."""
        began, busy = time.perf_counter(), time.thread_time()
        with self._pauses:
            while True:
                await asyncio.sleep(TICK_SECONDS)
                self.tick(time.perf_counter() - began - TICK_SECONDS, time.thread_time() - busy)
                began, busy = time.perf_counter(), time.thread_time()

    def tick(self, late: float, busy: float) -> None:
        """Notes a tick.

        Args:
            late: How much later than planned it came, in seconds; uvloop's timers may also be a little early.
            busy: Processor time of the loop's thread since the tick before, in seconds.
        """
        self._longest_busy = max(self._longest_busy, busy)
        self._delays.append(max(0.0, late))
        # Others should have come while this one was late. Without them, a long delay is one tick of very many.
        while (late := late - TICK_SECONDS) > 0:
            self._delays.append(late)

    def take(self) -> LoopFigures:
        """The figures since this was called last."""
        delays = sorted(self._delays) or [0.0]
        figures = LoopFigures(
            longest_delay_millis=delays[-1] * 1000,
            p99_delay_millis=delays[len(delays) * 99 // 100] * 1000,
            longest_busy_millis=self._longest_busy * 1000,
            longest_collection_millis=self._pauses.longest_millis,
        )
        self._delays, self._longest_busy = array("d"), 0.0
        self._pauses.clear()
        return figures
