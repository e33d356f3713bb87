"""The mass-loss guard: keeps brokers in the routes when so many vanish at once that the network is the likely cause."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from namesrv.core.model import BrokerData, BrokerLiveInfo, LiveKey, QueueData
from namesrv.core.pace import paced
from namesrv.core.policy import Behaviour, Clock


@dataclass(frozen=True, slots=True)
class LostBroker:
    """A broker that was removed without having unregistered, with all that is needed to bring it back."""

    live: BrokerLiveInfo
    group: BrokerData
    """Its group before it left."""
    queues: dict[str, QueueData]
    """The group's queues by topic if the group left in the same change, else none. They include held topics."""
    filter_servers: tuple[str, ...]


@dataclass(slots=True)
class _Loss:
    at: float
    """When, seconds of the monotonic clock."""
    removed: LostBroker | None
    """None if the guard holds the broker."""


class MassLossGuard:
    """Counts the losses of each principal within a window, and does not believe them if they are too many.

    It counts confirmed brokers that vanish without unregistering, by the end of their channel or by silence. The first
    are removed before their number shows a mass loss, so the guard remembers them to bring them back. Brokers that it
    holds count as lost until the window has passed, so the rest of a fleet that vanishes little by little is held, too.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._principals: dict[LiveKey, str] = {}
        """The principal that registered each broker that is confirmed or was lost within the window."""
        self._brokers: Counter[str] = Counter()
        """How many of those each principal has."""
        self._losses: dict[LiveKey, _Loss] = {}
        """Lost brokers, oldest first."""
        self._lost: Counter[str] = Counter()
        """How many of those each principal has."""

    def distrusted(self, behaviour: Behaviour, losing: Iterable[LiveKey]) -> frozenset[str]:
        """The principals of these confirmed brokers that lose too many if these are lost now."""
        self._forget_old(behaviour)
        more = Counter(self._principals[key] for key in paced(losing))
        return frozenset(
            principal
            for principal, count in more.items()
            if (lost := self._lost[principal] + count) >= behaviour.mass_loss_min_brokers
            and lost * 100 > self._brokers[principal] * behaviour.mass_loss_percent
        )

    def principal_of(self, key: LiveKey) -> str:
        """Returns who registered a confirmed broker; empty without permits."""
        return self._principals[key]

    def confirmed(self, key: LiveKey, principal: str, behaviour: Behaviour) -> None:
        """A broker registered. If it was lost within the window, it stops counting as lost."""
        self._forget_old(behaviour)
        self._forget(key)
        self._principals[key] = principal
        self._brokers[principal] += 1

    def left(self, key: LiveKey) -> None:
        """A broker has left the tables, for whatever reason. If it was lost, it still counts as lost."""
        if key not in self._losses:
            self._forget(key)

    def removed(self, brokers: Iterable[LostBroker]) -> None:
        for lost in brokers:
            self._lose(lost.live.key, lost)

    def recently_removed(self, principals: Collection[str]) -> list[LostBroker]:
        """What some principals lost within the window, and was removed, oldest first."""
        losses = ((self._principals[key], loss.removed) for key, loss in self._losses.items())
        return [lost for principal, lost in losses if lost is not None and principal in principals]

    def held(self, keys: Iterable[LiveKey], removed_before: Iterable[LostBroker]) -> None:
        """These brokers were lost and are held. The ones removed right before have been brought back or replaced."""
        for lost in removed_before:
            self._losses[lost.live.key].removed = None
        for key in keys:
            self._lose(key, None)

    def topic_deleted(self, topic: str, cluster_name: str | None) -> None:
        """An operator deleted a topic, in one cluster or in all: it does not come back with what was removed."""
        for loss in self._losses.values():
            if loss.removed is not None and cluster_name in (None, loss.removed.live.broker.cluster_name):
                loss.removed.queues.pop(topic, None)

    def _lose(self, key: LiveKey, removed: LostBroker | None) -> None:
        self._losses[key] = _Loss(self._clock.monotonic(), removed)
        self._lost[self._principals[key]] += 1

    def _forget(self, key: LiveKey) -> None:
        principal = self._principals.pop(key, None)
        if principal is None:
            return
        _decrement(self._brokers, principal)
        if self._losses.pop(key, None) is not None:
            _decrement(self._lost, principal)

    def _forget_old(self, behaviour: Behaviour) -> None:
        begin = self._clock.monotonic() - behaviour.mass_loss_window_seconds
        for key, _ in list(itertools.takewhile(lambda item: item[1].at < begin, self._losses.items())):
            self._forget(key)


def _decrement(counter: Counter[str], principal: str) -> None:
    counter[principal] -= 1
    if not counter[principal]:
        del counter[principal]
