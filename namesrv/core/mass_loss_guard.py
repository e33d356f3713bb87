"""Tells the loss of a few brokers from that of a fleet, which is rather the network's fault or ours."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from namesrv.core.behaviour import Behaviour
from namesrv.core.clock import Clock
from namesrv.core.records import BrokerData, BrokerLiveInfo, LiveKey, QueueData


class LostBroker(NamedTuple):
    """A broker that was removed without having unregistered, with all that it takes to bring it back."""

    at: float
    """When, seconds of the monotonic clock."""
    live: BrokerLiveInfo
    group: BrokerData
    """Its group before it left."""
    queues: Mapping[str, QueueData]
    """The group's queues by topic if it was the last of its group, else none. Those of held topics are among them."""
    filter_servers: tuple[str, ...]


class MassLossGuard:
    """Counts losses within a window; one that is too large is not believed.

    What it counts are confirmed brokers that vanish without unregistering, whether their channel ended or their time
    was up. The first of them are removed before anybody can know that more follow, so they are kept in mind and come
    back when the guard trips.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._recent: deque[LostBroker] = deque()

    def trips(self, behaviour: Behaviour, losing: int, live: int) -> bool:
        """Whether so many losses more are too many.

        Args:
            behaviour: Holds the numbers.
            losing: Brokers that would be removed now.
            live: Confirmed live brokers, those included.
        """
        self._forget_old(behaviour.mass_loss_window_seconds)
        lost = losing + len(self._recent)
        before = live + len(self._recent)
        return lost >= behaviour.mass_loss_min_brokers and lost * 100 > before * behaviour.mass_loss_percent

    def lost(self, brokers: list[LostBroker]) -> None:
        """These were removed."""
        self._recent.extend(brokers)

    def came_back(self, key: LiveKey) -> None:
        """A broker registered: if it was lost a moment ago, it does not count any more."""
        if self._recent and any(lost.live.key == key for lost in self._recent):
            self._recent = deque(lost for lost in self._recent if lost.live.key != key)

    def recent(self) -> list[LostBroker]:
        """The losses within the window, oldest first."""
        return list(self._recent)

    def forget(self) -> None:
        """The losses within the window have been undone."""
        self._recent.clear()

    def _forget_old(self, window_seconds: float) -> None:
        now = self._clock.monotonic()
        while self._recent and self._recent[0].at + window_seconds < now:
            self._recent.popleft()
