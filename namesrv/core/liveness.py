"""Liveness of brokers: when each was last seen, and which channel it is bound to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from namesrv.core.errors import Reason, Refused
from namesrv.core.model import BrokerLiveInfo, LiveKey
from namesrv.core.pace import belongs_to_loop, paced
from namesrv.core.policy import Clock

# The times at which brokers and channels were last seen, and those silent for too long.

KeyT = TypeVar("KeyT")


def _overdue(deadlines: Mapping[KeyT, float], now: float) -> dict[KeyT, float]:
    """The keys whose deadline has passed, with it. Keys may be added and removed during the pauses."""
    found = {}
    for key in paced(tuple(deadlines)):
        if (due := deadlines.get(key, now)) < now:
            found[key] = due
    return found


class Liveness:
    """Deadlines go by the monotonic clock; the wall clock is only kept to be reported."""

    def __init__(self, clock: Clock, expired_time: float) -> None:
        """Takes the clock, and how long a channel may be silent, in seconds."""
        self._clock = clock
        self._expired_time = expired_time
        self._brokers: dict[LiveKey, float] = {}
        """Until when each broker may be silent."""
        self._channels: dict[str, float] = {}
        """Until when the brokers of each channel may be silent."""
        self.longest_overdue = 0.0
        """By how many seconds the most overdue broker was overdue at the last search; 0 if none was."""
        self.last_update_millis: dict[LiveKey, int] = {}
        """When each live broker was last seen, by the wall clock, milliseconds since the Unix epoch."""

    def renew(self, live: BrokerLiveInfo, open_channel_id: str | None) -> None:
        """A broker sent something. The channel that it is bound to counts as seen too, if that is open."""
        belongs_to_loop()
        now = self._clock.monotonic()
        due = now + live.timeout_seconds
        if live.unconfirmed:  # it has more time than its timeout, from the start or from the guard
            due = max(due, self._brokers.get(live.key, due))
        self._brokers[live.key] = due
        self.last_update_millis[live.key] = self._clock.wall_millis()
        if open_channel_id is not None:
            self._channels[open_channel_id] = now + self._expired_time

    def channel_opened(self, channel_id: str) -> None:
        """A channel is there; until a broker registers over it, its own time runs."""
        belongs_to_loop()
        self._channels[channel_id] = self._clock.monotonic() + self._expired_time

    def channel_ended(self, channel_id: str) -> None:
        belongs_to_loop()
        self._channels.pop(channel_id, None)

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
        found = _overdue(self._brokers, now)
        self.longest_overdue = now - min(found.values(), default=now)
        return list(found)

    def is_overdue(self, key: LiveKey) -> bool:
        """Whether a broker has been silent for longer than its timeout."""
        now = self._clock.monotonic()
        return self._brokers.get(key, now) < now

    def idle_channels(self) -> list[str]:
        """The channels none of whose brokers was seen for the expiry time."""
        overdue = _overdue(self._channels, self._clock.monotonic())
        now = self._clock.monotonic()
        return [channel_id for channel_id in overdue if self._channels.get(channel_id, now) < now]

    def grant_more_time(self, seconds: float) -> None:
        belongs_to_loop()
        self._brokers = {key: due + seconds for key, due in self._brokers.items()}
        self._channels = {channel_id: due + seconds for channel_id, due in self._channels.items()}


# The open channels, and which brokers registered over each.


class ChannelTable:
    """Open channels by id. A broker is bound to at most one: that of its current registration."""

    def __init__(self, new_channel_id: Callable[[], str]) -> None:
        self._new_channel_id = new_channel_id
        self._open: dict[str, set[LiveKey]] = {}
        self._unused: set[str] = set()
        self._ended: dict[str, set[LiveKey]] = {}
        """Brokers of channels that have ended, until they are taken to be removed."""

    def __contains__(self, channel_id: str) -> bool:
        return channel_id in self._open

    def open(self) -> str:
        belongs_to_loop()
        channel_id = self._new_channel_id()
        self._open[channel_id] = set()
        self._unused.add(channel_id)
        return channel_id

    @property
    def unused(self) -> int:
        """How many channels are open over which no broker has registered yet."""
        return len(self._unused)

    def check_open(self, channel_id: str) -> None:
        if channel_id not in self._open:
            text = f"channel {channel_id[:64]!r} is not open here; open one, then register again"
            raise Refused(Reason.CHANNEL_GONE, text, channel_id=channel_id[:64])

    def bind(self, channel_id: str, key: LiveKey) -> None:
        belongs_to_loop()
        self._open[channel_id].add(key)
        self._unused.discard(channel_id)

    def unbind(self, channel_id: str, key: LiveKey) -> None:
        """A broker left, or registered over another channel."""
        belongs_to_loop()
        if channel_id in self._open:
            self._open[channel_id].discard(key)
        elif channel_id in self._ended:
            self._ended[channel_id].discard(key)

    def bound(self, channel_id: str) -> frozenset[LiveKey]:
        return frozenset(self._open.get(channel_id, ()))

    def end(self, channel_id: str) -> None:
        """Ends a channel. A channel that has ended stays ended."""
        belongs_to_loop()
        self._unused.discard(channel_id)
        bound = self._open.pop(channel_id, None)
        if bound:
            self._ended[channel_id] = bound

    def take_bound(self, channel_id: str) -> list[LiveKey]:
        """The brokers that were bound to an ended channel, once."""
        belongs_to_loop()
        return sorted(self._ended.pop(channel_id, ()))
