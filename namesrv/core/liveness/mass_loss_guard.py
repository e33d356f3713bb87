"""The guard that tells the loss of a few brokers from that of a fleet, which the network or we have likely caused."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

from namesrv.core.behaviour import Behaviour
from namesrv.core.clock import Clock
from namesrv.core.records.rows import BrokerData, BrokerLiveInfo, LiveKey, QueueData


class LostBroker(NamedTuple):
    """A broker that was removed without having unregistered, with all that is needed to bring it back."""

    at: float
    """When, seconds of the monotonic clock."""
    live: BrokerLiveInfo
    group: BrokerData
    """Its group before it left."""
    queues: dict[str, QueueData]
    """The group's queues by topic if it was the last of its group, else none. They include those of held topics."""
    filter_servers: tuple[str, ...]


class MassLossGuard:
    """Counts losses within a window and does not believe one that is too large.

    What it counts are confirmed brokers that vanish without unregistering, whether their channel ended or their time
    was up. The first of them are removed before the guard can know that more follow. So it remembers them, and they
    come back when it trips. Brokers that it holds go on counting until the window has passed, so that the rest of a
    fleet that vanishes little by little is held as well.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._removed: dict[LiveKey, LostBroker] = {}
        """Lost within the window and removed, oldest first."""
        self._held: dict[LiveKey, float] = {}
        """Lost within the window and held, with the time of each loss, oldest first."""

    def trips(self, behaviour: Behaviour, losing: int, live: int) -> bool:
        """Whether the guard trips with so many more losses.

        Args:
            behaviour: Holds the numbers.
            losing: Brokers that would be removed now.
            live: Confirmed live brokers, those included.
        """
        self._forget_old(behaviour.mass_loss_window_seconds)
        recent = len(self._removed) + len(self._held)
        lost, before = losing + recent, live + recent
        return lost >= behaviour.mass_loss_min_brokers and lost * 100 > before * behaviour.mass_loss_percent

    def removed(self, brokers: list[LostBroker]) -> None:
        """These were lost and removed."""
        self._removed.update((lost.live.key, lost) for lost in brokers)

    def recently_removed(self) -> list[LostBroker]:
        """What was lost and removed within the window, oldest first."""
        return list(self._removed.values())

    def topic_deleted(self, topic: str, cluster_name: str | None) -> None:
        """An operator deleted a topic, in one cluster or in all: it does not come back with what was removed."""
        for lost in self._removed.values():
            if cluster_name in (None, lost.live.broker.cluster_name):
                lost.queues.pop(topic, None)

    def held(self, keys: Iterable[LiveKey]) -> None:
        """These were lost and are held; what was removed right before them has been brought back, or replaced."""
        self._held.update((key, lost.at) for key, lost in self._removed.items())
        self._removed.clear()
        self._held.update(dict.fromkeys(keys, self._clock.monotonic()))

    def came_back(self, key: LiveKey) -> None:
        """A broker registered: if it was lost within the window, it does not count any more."""
        self._removed.pop(key, None)
        self._held.pop(key, None)

    def _forget_old(self, window_seconds: float) -> None:
        begin = self._clock.monotonic() - window_seconds
        for key in list(itertools.takewhile(lambda key: self._removed[key].at < begin, self._removed)):
            del self._removed[key]
        for key in list(itertools.takewhile(lambda key: self._held[key] < begin, self._held)):
            del self._held[key]
