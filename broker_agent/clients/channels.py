"""The channels of clients: open streams, and the stand-in for clients that hold none."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from broker_agent_api.v1 import client_service_pb2 as pb

from broker_agent.clients.limits import CLIENT_SILENCE_SECONDS, MAX_CHANNELS, MAX_PENDING_NOTICES
from broker_agent.errors import channel_gone, shutting_down
from groundwork.shares import MACHINE, Sharer, ShareRules, Shares


@dataclass(frozen=True, slots=True)
class PlainClient:
    """A client without a channel: known by its id, told nothing, gone by timeout only."""

    client_id: str
    remote_addr: str = field(compare=False)

    @property
    def is_active(self) -> bool:
        """Never: there is no way to it."""
        return False

    def notify_consumer_ids_changed(self, group: str) -> None:
        """It cannot be told."""


class StreamChannel:
    """An open stream to a client. Equal only to itself. Thread-safe."""

    def __init__(self, channel_id: str, holder: str, remote_addr: str, now: float, wake: Callable[[], None]) -> None:
        """Makes an open channel.

        Args:
            now: Monotonic seconds.
            wake: Makes the stream take what is pending; called by any thread, but for notices only once until it has.
        """
        self.channel_id = channel_id
        self.holder = holder
        self._remote_addr = remote_addr
        self.last_heard = now
        """When the client last called over it, or opened it: monotonic seconds."""
        self._wake = wake
        self._lock = threading.Lock()
        self._pending: dict[str, None] = {}
        self._closing: pb.ClientChannelClosing.Reason | None = None
        self._woken = False
        self._overflown = False
        self._ended = False

    @property
    def remote_addr(self) -> str:
        return self._remote_addr

    @property
    def is_active(self) -> bool:
        """Whether the stream is open and not about to end."""
        with self._lock:
            return not self._ended and self._closing is None

    @property
    def overflown(self) -> bool:
        """Whether more was to be told than may wait: the client does not read."""
        return self._overflown

    def notify_consumer_ids_changed(self, group: str) -> None:
        """Tells the client that a group changed; once, however often it does before the client takes it."""
        with self._lock:
            if self._ended or group in self._pending:
                return
            if len(self._pending) >= MAX_PENDING_NOTICES:
                self._overflown = True
                self._wake()
            else:
                self._pending[group] = None
                self._wake_once()

    def close(self, reason: pb.ClientChannelClosing.Reason) -> None:
        """Tells the client why, then ends the stream. What is pending is dropped: the client comes back anyhow."""
        with self._lock:
            if not self._ended and self._closing is None:
                self._pending.clear()
                self._closing = reason
                self._wake()

    def take(self) -> list[pb.OpenClientChannelResponse]:
        """What is to be sent now; a closing is the last. Called by the stream."""
        with self._lock:
            self._woken = False
            messages = [
                pb.OpenClientChannelResponse(consumer_ids_changed=pb.ConsumerIdsChanged(consumer_group=group))
                for group in self._pending
            ]
            self._pending.clear()
            if self._closing is not None:
                closing = pb.ClientChannelClosing(reason=self._closing)
                messages.append(pb.OpenClientChannelResponse(closing=closing))
            return messages

    def end(self) -> None:
        """The stream has ended: nothing is told any more."""
        with self._lock:
            self._ended = True
            self._pending.clear()

    def _wake_once(self) -> None:
        if not self._woken:
            self._woken = True
            self._wake()


class ClientChannels:
    """The open channels by their ids. Thread-safe."""

    def __init__(self, clock: Callable[[], float], max_channels: int = MAX_CHANNELS) -> None:
        """Starts without any; one address has half of ``max_channels``. ``clock`` gives monotonic seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[str, StreamChannel] = {}
        self._shares = Shares("open client channels", max_channels, ShareRules(kept_percent=0))
        self._sharers: dict[str, Sharer] = {}
        """The callers that opened them, by the same ids."""
        self._shutting_down = False

    def __len__(self) -> int:
        return len(self._open)

    def open(self, holder: str, remote_addr: str, wake: Callable[[], None], sharer: Sharer = MACHINE) -> StreamChannel:
        """Opens a channel; see ``StreamChannel`` for the arguments. It takes a share of the sharer's until its end.

        Raises:
            LIMIT_EXCEEDED: Too many are open, or too many of the sharer's.
            SHUTTING_DOWN: The agent is at its end.
        """
        with self._lock:
            if self._shutting_down:
                raise shutting_down()
            self._shares.take(sharer)
            channel = StreamChannel(secrets.token_urlsafe(18), holder, remote_addr, self._clock(), wake)
            self._open[channel.channel_id], self._sharers[channel.channel_id] = channel, sharer
            return channel

    def heard(self, channel_id: str) -> StreamChannel:
        """The channel that a client calls over; it is not idle now. Raises CHANNEL_GONE if it is not open."""
        with self._lock:
            channel = self._open.get(channel_id)
            if channel is None or not channel.is_active:
                raise channel_gone()
            channel.last_heard = self._clock()
            return channel

    def find(self, channel_id: str) -> StreamChannel | None:
        with self._lock:
            return self._open.get(channel_id)

    def end(self, channel: StreamChannel) -> bool:
        """The channel's stream has ended, or is about to. Returns whether that is news."""
        with self._lock:
            known = self._open.pop(channel.channel_id, None)
            if known is not None:
                self._shares.give_back(self._sharers.pop(channel.channel_id))
        channel.end()
        return known is not None

    def idle(self) -> list[StreamChannel]:
        """The channels over which nothing has been heard for too long."""
        with self._lock:
            oldest_kept = self._clock() - CLIENT_SILENCE_SECONDS
            return [channel for channel in self._open.values() if channel.last_heard < oldest_kept]

    def close_all(self, reason: pb.ClientChannelClosing.Reason) -> None:
        """Closes every channel and opens no more."""
        with self._lock:
            self._shutting_down = True
            channels = list(self._open.values())
        for channel in channels:
            channel.close(reason)
