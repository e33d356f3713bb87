"""The channels of clients: open streams, and the stand-in for clients that hold none."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from broker_agent_api.v1 import client_service_pb2 as pb

from broker_agent import errors
from broker_agent.clients.limits import CLIENT_SILENCE_SECONDS, MAX_CHANNELS, MAX_PENDING_NOTICES
from namesrv_common.errors import Refused
from namesrv_common.server.shares import MACHINE, Sharer, ShareRules, Shares


@dataclass(frozen=True, slots=True)
class PlainClient:
    """A client without a channel. It is known by its id and gets no notices."""

    client_id: str
    remote_addr: str = field(compare=False)
    is_active: bool = field(default=False, init=False)

    def notify_consumer_ids_changed(self, group: str) -> None:
        """Does nothing: no stream leads to the client."""


@dataclass(eq=False, slots=True)
class StreamChannel:
    """An open stream to a client. Equal only to itself. Only the event loop changes it."""

    channel_id: str
    remote_addr: str
    sharer: Sharer  # the caller that opened it
    last_heard: float  # monotonic seconds
    is_active: bool = True  # open and not about to end
    pending: asyncio.Event = field(default_factory=asyncio.Event)  # set while something is to be sent
    ending: asyncio.Event = field(default_factory=asyncio.Event)  # set once the stream is to end without delay
    _groups: dict[str, None] = field(default_factory=dict)
    _closing: pb.ClientChannelClosing.Reason | None = None

    def notify_consumer_ids_changed(self, group: str) -> None:
        """Has the client notified of a change of the group (RocketMQ: Broker2Client.notifyConsumerIdsChanged)."""
        if self.is_active and group not in self._groups:
            if len(self._groups) == MAX_PENDING_NOTICES:
                self._end()
            self._groups[group] = None
            self.pending.set()

    def close(self, reason: pb.ClientChannelClosing.Reason) -> None:
        """Has the client notified of the reason, as the last message. Drops the notices that wait."""
        if self.is_active:
            self._closing = reason
            self._end()

    def take(self) -> list[pb.OpenClientChannelResponse]:
        """Returns the messages to send now; a closing is the last. Raises SLOW_READER if more would have to wait."""
        self.pending.clear()
        if self._closing is not None:
            return [pb.OpenClientChannelResponse(closing=pb.ClientChannelClosing(reason=self._closing))]
        if not self.is_active:
            raise errors.slow_reader()
        groups, self._groups = self._groups, {}
        notices = (pb.ConsumerIdsChanged(consumer_group=group) for group in groups)
        return [pb.OpenClientChannelResponse(consumer_ids_changed=notice) for notice in notices]

    def _end(self) -> None:
        self.is_active = False
        self.pending.set()
        self.ending.set()


ClientChannel = PlainClient | StreamChannel
"""The key of a client (RocketMQ: Channel)."""


class ClientChannels:
    """The open channels by their ids. ``ClientManagers`` owns it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[str, StreamChannel] = {}
        self._shares = Shares("open client channels", MAX_CHANNELS, ShareRules(kept_percent=0))
        self._shutting_down = False

    def __len__(self) -> int:
        return len(self._open)

    def open(self, remote_addr: str, sharer: Sharer = MACHINE) -> StreamChannel:
        """Opens a channel; ``end`` must follow. Raises LIMIT_EXCEEDED or SHUTTING_DOWN."""
        if self._shutting_down:
            raise errors.shutting_down()
        self._shares.take(sharer)
        channel = StreamChannel(secrets.token_urlsafe(18), remote_addr, sharer, self._clock())
        self._open[channel.channel_id] = channel
        return channel

    def is_open(self, channel_id: str) -> bool:
        return channel_id in self._open and self._open[channel_id].is_active

    def heard(self, channel_id: str) -> StreamChannel:
        """Returns the channel that a client calls over, which is not idle now. Raises CHANNEL_GONE."""
        if not self.is_open(channel_id):
            text = "channel_id names no open client channel of this agent: open another, send a heartbeat over it"
            raise Refused(errors.Reason.CHANNEL_GONE, text)
        channel = self._open[channel_id]
        channel.last_heard = self._clock()
        return channel

    def end(self, channel: StreamChannel) -> bool:
        """Takes out a channel whose stream ends. Reports whether it was in."""
        channel.is_active = False
        if self._open.pop(channel.channel_id, None) is None:
            return False
        self._shares.give_back(channel.sharer)
        return True

    def idle(self) -> list[StreamChannel]:
        oldest_kept = self._clock() - CLIENT_SILENCE_SECONDS
        return [channel for channel in self._open.values() if channel.last_heard < oldest_kept]

    def close_all(self, reason: pb.ClientChannelClosing.Reason) -> None:
        self._shutting_down = True
        for channel in self._open.values():
            channel.close(reason)
