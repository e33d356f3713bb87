"""The open channels, and which brokers registered over each."""

from __future__ import annotations

from collections.abc import Callable

from namesrv.core.errors import ChannelGone
from namesrv.core.records.rows import LiveKey


class ChannelTable:
    """Open channels by id. A broker is bound to at most one: that of its current registration."""

    def __init__(self, new_channel_id: Callable[[], str]) -> None:
        self._new_channel_id = new_channel_id
        self._open: dict[str, set[LiveKey]] = {}
        self._unused: set[str] = set()
        self._ended: dict[str, set[LiveKey]] = {}
        """Brokers of channels that have ended, until they are taken to be removed."""
        self._handed_over: set[str] = set()

    def __contains__(self, channel_id: str) -> bool:
        return channel_id in self._open

    def open(self) -> str:
        """Opens a channel and returns its id."""
        channel_id = self._new_channel_id()
        self._open[channel_id] = set()
        self._unused.add(channel_id)
        return channel_id

    @property
    def unused(self) -> int:
        """How many channels are open over which no broker has registered yet."""
        return len(self._unused)

    def check_open(self, channel_id: str) -> None:
        """Raises ChannelGone if the channel is not open."""
        if channel_id not in self._open:
            raise ChannelGone(channel_id)

    def bind(self, channel_id: str, key: LiveKey) -> None:
        """A broker registered over this channel."""
        self._open[channel_id].add(key)
        self._unused.discard(channel_id)

    def unbind(self, channel_id: str, key: LiveKey) -> None:
        """A broker left, or registered over another channel."""
        if channel_id in self._open:
            self._open[channel_id].discard(key)
        elif channel_id in self._ended:
            self._ended[channel_id].discard(key)

    def bound(self, channel_id: str) -> frozenset[LiveKey]:
        """The brokers that are bound to an open channel."""
        return frozenset(self._open.get(channel_id, ()))

    def end(self, channel_id: str) -> None:
        """Ends a channel. Ending one that is not open changes nothing."""
        self._unused.discard(channel_id)
        bound = self._open.pop(channel_id, None)
        if bound:
            self._ended[channel_id] = bound

    def hand_over(self, channel_id: str) -> None:
        """Notes that another process takes over what is bound. Raises ChannelGone if the channel is not open."""
        self.check_open(channel_id)
        self._handed_over.add(channel_id)

    def was_handed_over(self, channel_id: str) -> bool:
        """Whether the end of a channel was announced."""
        return channel_id in self._handed_over

    def take_bound(self, channel_id: str) -> list[LiveKey]:
        """The brokers that were bound to an ended channel, once."""
        self._handed_over.discard(channel_id)
        return sorted(self._ended.pop(channel_id, ()))
