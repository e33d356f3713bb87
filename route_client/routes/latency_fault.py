"""Brokers to avoid for a while (RocketMQ: LatencyFaultToleranceImpl and MQFaultStrategy)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass

LATENCY_MAX_MILLIS = (50, 100, 550, 1_000, 2_000, 3_000, 15_000)
"""From each of these latencies on ..."""

NOT_AVAILABLE_MILLIS = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
"""... a broker is left alone for this long (RocketMQ 4.9)."""

ISOLATION_LATENCY_MILLIS = 30_000
"""The latency that a failed call counts as."""


def not_available_millis(latency_millis: float) -> int:
    """How long a broker that took so long is left alone."""
    for bound, duration in zip(reversed(LATENCY_MAX_MILLIS), reversed(NOT_AVAILABLE_MILLIS), strict=True):
        if latency_millis >= bound:
            return duration
    return 0


@dataclass(frozen=True, slots=True)
class FaultItem:
    """What is remembered about one broker."""

    name: str
    latency_millis: float
    available_from: float
    """By the clock, in seconds."""


class LatencyFaults:
    """The brokers that were slow or failed. May be used from any thread."""

    def __init__(self, clock: Callable[[], float], rng: random.Random) -> None:
        """Takes a monotonic clock, in seconds, and a source of randomness for ties between equal brokers."""
        self._clock = clock
        self._rng = rng
        self._items: dict[str, FaultItem] = {}
        self._which = itertools.count(rng.randrange(1 << 16))

    def update_fault_item(self, name: str, latency_millis: float, not_available_millis: float) -> None:
        """Remembers a broker's latency and leaves it alone for a time, in milliseconds."""
        self._items[name] = FaultItem(name, latency_millis, self._clock() + not_available_millis / 1000)

    def report(self, name: str, latency_millis: float, *, failed: bool = False) -> None:
        """Tells how a call to a broker went: how long it took, or that it failed."""
        counted = ISOLATION_LATENCY_MILLIS if failed else latency_millis
        self.update_fault_item(name, latency_millis, not_available_millis(counted))

    def is_available(self, name: str) -> bool:
        """Whether the broker need not be left alone (any more)."""
        item = self._items.get(name)
        return item is None or self._clock() >= item.available_from

    def remove(self, name: str) -> None:
        """Forgets a broker."""
        self._items.pop(name, None)

    def pick_one_at_least(self, among: Collection[str] | None = None) -> str | None:
        """One of the better half of the remembered brokers, in turn: available first, then by latency.

        Args:
            among: Only these. Upstream picks from the brokers of all topics, and forgets the fault of the one it picked
                if the topic at hand has no queue there.

        Returns:
            None if nothing is remembered about any of them.
        """
        items = [item for item in list(self._items.values()) if among is None or item.name in among]
        if not items:
            return None
        self._rng.shuffle(items)
        now = self._clock()
        items.sort(key=lambda item: (now < item.available_from, item.latency_millis, item.available_from))
        half = len(items) // 2
        return items[next(self._which) % half].name if half else items[0].name
