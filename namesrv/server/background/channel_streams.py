"""The streams behind channels: events to their holders, and what happens when one ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import structlog
from namesrv_api.v1 import registration_service_pb2 as pb

from groundwork.shares import MACHINE, Sharer, Shares
from namesrv.config.limits import MAX_CHANNEL_EVENTS
from namesrv.core.registrations import RouteInfoManager
from namesrv.server.auth.fair_shares import FairShares
from namesrv.server.background.stall_detector import StallDetector
from namesrv.server.background.table_writer import TableWriter, run_cooperatively
from namesrv.server.route_logging import log_removed

DOUBTED_SECONDS = 60.0
"""Time that a broker has to register again after we ended its channel: the longest period of agents."""

_log = structlog.get_logger(__name__)

_Events = asyncio.Queue[pb.OpenChannelResponse]


class ChannelStreams:
    """Opens, feeds and closes the streams of channels, and removes the brokers of those that ended."""

    def __init__(
        self,
        manager: RouteInfoManager,
        writer: TableWriter,
        stall_detector: StallDetector,
        shares: Shares | None = None,
    ) -> None:
        self._manager = manager
        self._writer = writer
        self._stall_detector = stall_detector
        self._shares = shares or FairShares.of().channels
        self._sharers: dict[str, Sharer] = {}
        """Who holds each channel."""
        self._events: dict[str, _Events] = {}
        self._connections: dict[str, Callable[[], None]] = {}
        """Channels that are connections of another protocol, with what closes each; they get no events."""
        self._closed_here: set[str] = set()
        """Channels that this name server closes itself: their brokers have done nothing wrong."""
        self._ended: asyncio.Queue[str] = asyncio.Queue()  # bounded by the number of channels

    @asynccontextmanager
    async def open(self, holder: str, sharer: Sharer = MACHINE) -> AsyncIterator[tuple[str, _Events]]:
        """Opens a channel for as long as the context lasts.

        Raises:
            LimitExceeded: Too many channels are open, or of whoever it takes a share of.
            ShuttingDown: The name server takes no more.
        """
        channel_id = self._new_channel(sharer)
        self._events[channel_id] = asyncio.Queue(MAX_CHANNEL_EVENTS)
        _log.debug("channel_opened", channel=channel_id[:8], holder=holder)
        try:
            yield channel_id, self._events[channel_id]
        finally:
            del self._events[channel_id]
            self._end(channel_id)
            _log.debug("channel_ended", channel=channel_id[:8], holder=holder)

    def connect(self, holder: str, close: Callable[[], None], sharer: Sharer = MACHINE) -> str:
        """Opens a channel that is a connection of another protocol; ``disconnected`` must follow when that has ended.

        Args:
            holder: Who is at the other end.
            close: Ends the connection.
            sharer: Whose share it takes.

        Returns:
            The id of the channel.

        Raises:
            LimitExceeded: Too many channels are open.
            ShuttingDown: The name server takes no more.
        """
        channel_id = self._new_channel(sharer)
        self._connections[channel_id] = close
        _log.debug("channel_opened", channel=channel_id[:8], holder=holder)
        return channel_id

    def disconnected(self, channel_id: str) -> None:
        """The connection that is a channel has ended, however that was."""
        del self._connections[channel_id]
        self._end(channel_id)

    async def remove_brokers_of_ended(self) -> None:
        """Removes the brokers of channels that have ended, as they end. Runs until cancelled."""
        while True:
            ended = [await self._ended.get()]
            while not self._ended.empty():  # the guard judges ends that come together as one loss
                ended.append(self._ended.get_nowait())
            lost = [channel_id for channel_id in ended if not await self._may_come_back(channel_id)]
            for gone in await self._writer.apply_unbounded(self._manager.on_channel_destroy(lost)):
                log_removed(gone)

    async def _may_come_back(self, channel_id: str) -> bool:
        """Whether the end of a channel says nothing about its brokers; these get time to register again."""
        closed_here = channel_id in self._closed_here
        self._closed_here.discard(channel_id)
        if self._manager.channels.was_handed_over(channel_id):
            seconds, why = self._manager.behaviour.channel_grace_seconds, "handed_over"
        elif closed_here:
            seconds, why = DOUBTED_SECONDS, "closed_here"
        elif self._stall_detector.channel_ends_are_doubtful():
            seconds, why = DOUBTED_SECONDS, "own_stall"
        else:
            return False
        if brokers := await run_cooperatively(self._manager.doubt_channel_end(channel_id, seconds)):
            _log.warning("channel_end_doubted", why=why, channel=channel_id[:8], brokers=brokers, seconds=seconds)
        return True

    def open_ids(self) -> list[str]:
        """The open channels whose holders get events."""
        return list(self._events)

    def send(self, channel_id: str, event: pb.OpenChannelResponse) -> None:
        """Sends an event to a channel's holder. A channel whose reader is too far behind is closed."""
        events = self._events.get(channel_id)
        if events is None:
            return
        if events.full():
            self.close(channel_id, pb.ChannelClosing.REASON_SLOW_READER)
        else:
            events.put_nowait(event)

    def close(self, channel_id: str, reason: pb.ChannelClosing.Reason) -> None:
        """Tells a channel's holder why, then ends the stream. The stream of a holder that does not read ends, too."""
        events, close_connection = self._events.get(channel_id), self._connections.get(channel_id)
        if events is None and close_connection is None:
            return
        self._closed_here.add(channel_id)
        if close_connection is not None:
            close_connection()
        if events is None:
            return
        while events.full():
            events.get_nowait()
        events.put_nowait(pb.OpenChannelResponse(closing=pb.ChannelClosing(reason=reason)))

    def close_all(self, reason: pb.ChannelClosing.Reason) -> None:
        """Closes every channel."""
        for channel_id in (*self._events, *self._connections):
            self.close(channel_id, reason)

    def _new_channel(self, sharer: Sharer) -> str:
        self._shares.take(sharer)
        try:
            channel_id = self._manager.open_channel()
        except BaseException:
            self._shares.give_back(sharer)
            raise
        self._sharers[channel_id] = sharer
        return channel_id

    def _end(self, channel_id: str) -> None:
        self._shares.give_back(self._sharers.pop(channel_id))
        self._manager.end_channel(channel_id)
        self._ended.put_nowait(channel_id)
