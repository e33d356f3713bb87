"""Liveness: when brokers were last seen, over which channels, and which losses are not believed."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from namesrv.core.errors import Reason, Refused
from namesrv.core.model import Behaviour, BrokerData, BrokerLiveInfo, Clock, LiveKey, QueueData
from namesrv.core.pace import belongs_to_loop, paced

# The times at which brokers and channels were last seen, and those silent for too long.


class Liveness:
    """Deadlines go by the monotonic clock; the wall clock is only kept to be reported.

    A broker is bound to at most one channel: that of its current registration.
    """

    def __init__(self, clock: Clock, expired_time: float, new_channel_id: Callable[[], str]) -> None:
        """Takes the clock, how long a channel may be silent, in seconds, and what makes the ids of channels."""
        self._clock = clock
        self._expired_time = expired_time
        self._new_channel_id = new_channel_id
        self._brokers: dict[LiveKey, float] = {}
        """Until when each broker may be silent."""
        self._channels: dict[str, float] = {}
        """Until when the brokers of each open channel may be silent."""
        self._bound: dict[str, set[LiveKey]] = {}
        """Brokers of open channels, and of those that have ended until they are taken to be removed."""
        self.unused: set[str] = set()
        """Open channels over which no broker has registered yet."""
        self.longest_overdue = 0.0
        """By how many seconds the most overdue broker was overdue at the last search; 0 if none was."""
        self.last_update_millis: dict[LiveKey, int] = {}
        """When each live broker was last seen, by the wall clock, milliseconds since the Unix epoch."""

    def renew(self, live: BrokerLiveInfo) -> None:
        """A broker sent something. The channel that it is bound to counts as seen too, if that is open."""
        belongs_to_loop()
        now = self._clock.monotonic()
        due = now + live.timeout_seconds
        if live.unconfirmed:  # it has more time than its timeout, from the start or from the guard
            due = max(due, self._brokers.get(live.key, due))
        self._brokers[live.key] = due
        self.last_update_millis[live.key] = self._clock.wall_millis()
        if live.channel_id in self._channels:
            self._channels[live.channel_id] = now + self._expired_time

    def give(self, key: LiveKey, seconds: float) -> None:
        """Gives a broker that much time from now, instead of the time that it had left."""
        belongs_to_loop()
        self._brokers[key] = self._clock.monotonic() + seconds
        self.last_update_millis.setdefault(key, self._clock.wall_millis())

    def ends_at_millis(self, key: LiveKey) -> int:
        """When a broker's time is over, milliseconds since the Unix epoch."""
        return self._clock.wall_millis() + round((self._brokers[key] - self._clock.monotonic()) * 1000)

    def forget(self, key: LiveKey) -> None:
        belongs_to_loop()
        self._brokers.pop(key, None)
        self.last_update_millis.pop(key, None)

    def overdue_brokers(self) -> list[LiveKey]:
        """The brokers that have been silent for longer than their timeout. Ask ``is_overdue`` before removing one."""
        now = self._clock.monotonic()
        found = {key: due for key, due in paced(tuple(self._brokers.items())) if due < now}
        self.longest_overdue = now - min(found.values(), default=now)
        return list(found)

    def is_overdue(self, key: LiveKey) -> bool:
        """Whether a broker has been silent for longer than its timeout."""
        now = self._clock.monotonic()
        return self._brokers.get(key, now) < now

    def idle_channels(self) -> list[str]:
        """The channels none of whose brokers was seen for the expiry time."""
        now = self._clock.monotonic()
        found = [channel_id for channel_id, due in paced(tuple(self._channels.items())) if due < now]
        return [channel_id for channel_id in found if self._channels.get(channel_id, now) < now]  # seen while it looked

    def grant_more_time(self, seconds: float) -> None:
        belongs_to_loop()
        self._brokers = {key: due + seconds for key, due in self._brokers.items()}
        self._channels = {channel_id: due + seconds for channel_id, due in self._channels.items()}

    # Channels.

    def open_channel(self) -> str:
        """Returns the id of a new channel; until a broker registers over it, its own time runs."""
        belongs_to_loop()
        channel_id = self._new_channel_id()
        self._channels[channel_id] = self._clock.monotonic() + self._expired_time
        self._bound[channel_id] = set()
        self.unused.add(channel_id)
        return channel_id

    def check_open(self, channel_id: str) -> None:
        if channel_id not in self._channels:
            text = f"channel {channel_id[:64]!r} is not open here; open one, then register again"
            raise Refused(Reason.CHANNEL_GONE, text, channel_id=channel_id[:64])

    def bind(self, live: BrokerLiveInfo) -> None:
        belongs_to_loop()
        if live.channel_id is not None:
            self._bound[live.channel_id].add(live.key)
            self.unused.discard(live.channel_id)

    def unbind(self, live: BrokerLiveInfo) -> None:
        """A broker left, or registered over another channel."""
        belongs_to_loop()
        if live.channel_id in self._bound:
            self._bound[live.channel_id].discard(live.key)

    def bound(self, channel_id: str) -> frozenset[LiveKey]:
        """The brokers of a channel that is open."""
        return frozenset(self._bound[channel_id]) if channel_id in self._channels else frozenset()

    def end_channel(self, channel_id: str) -> None:
        """Ends a channel for good, and at once: registrations that name it are refused from now on."""
        belongs_to_loop()
        self.unused.discard(channel_id)
        self._channels.pop(channel_id, None)

    def take_bound(self, channel_id: str) -> list[LiveKey]:
        """The brokers that are bound to a channel that has ended, once."""
        belongs_to_loop()
        return sorted(self._bound.pop(channel_id, ()))


# The mass-loss guard keeps brokers in the routes when so many vanish at once that the network is the likely cause.


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
        self._brokers[principal] -= 1
        if self._losses.pop(key, None) is not None:
            self._lost[principal] -= 1

    def _forget_old(self, behaviour: Behaviour) -> None:
        begin = self._clock.monotonic() - behaviour.mass_loss_window_seconds
        for key, _ in list(itertools.takewhile(lambda item: item[1].at < begin, self._losses.items())):
            self._forget(key)
