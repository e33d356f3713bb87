"""Channels: the open streams of brokers, their holders, and the notices sent to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import structlog
from namesrv_api.v1 import registration_service_pb2 as pb

from namesrv.app.event_log import log_removed
from namesrv.app.quotas import FairShares
from namesrv.app.stall_detector import StallDetector
from namesrv.app.writer import TableWriter
from namesrv.core.changes import Change, GroupChange, KvChange
from namesrv.core.heartbeats import Heartbeats
from namesrv.core.model import BrokerData, BrokerLiveInfo, Doubt, Member
from namesrv.core.removals import on_channel_destroy
from namesrv.core.state import RouteState
from namesrv.limits import MAX_CHANNEL_EVENTS
from namesrv_common.server.shares import MACHINE, Sharer, Shares

# The streams behind channels: events to their holders, and what happens when one ends.

DOUBTED_SECONDS = 60.0
"""Time that a broker has to register again after we ended its channel: the longest period of agents."""

REOPEN_MILLIS = 1_000
"""Time after which holders may open their channels again at a name server that ends: a restart takes a second."""

_log = structlog.get_logger(__name__)

_Events = asyncio.Queue[pb.OpenChannelResponse]


class ChannelStreams:
    """Opens, feeds and closes the streams of channels, and removes the brokers of those that ended."""

    def __init__(
        self,
        state: RouteState,
        writer: TableWriter,
        stall_detector: StallDetector,
        shares: Shares | None = None,
    ) -> None:
        self._state = state
        self._heartbeats = Heartbeats(state)
        self._writer = writer
        self._stall_detector = stall_detector
        self._shares = shares or FairShares.of().channels
        self._sharers: dict[str, Sharer] = {}
        """The caller that holds each channel."""
        self._events: dict[str, _Events] = {}
        self._connections: dict[str, Callable[[], None]] = {}
        """Channels that are connections of another protocol, with what closes each; they get no events."""
        self._doubts: dict[str, Doubt] = {}
        """Channels that this name server ends itself, or served late: their brokers have done nothing wrong."""
        self._ended: asyncio.Queue[tuple[str, Sharer]] = asyncio.Queue()
        """Channels that have ended. They hold their shares until their brokers are removed, which bounds the queue."""

    @asynccontextmanager
    async def open(
        self, holder: str, sharer: Sharer = MACHINE, doubt: Callable[[], Doubt | None] = lambda: None
    ) -> AsyncIterator[tuple[str, _Events]]:
        """Opens a channel for as long as the context lasts.

        Args:
            doubt: Why the end of its stream says nothing about its holder. Called at that end.

        Raises:
            LIMIT_EXCEEDED: Too many channels are open, in total or by the caller.
            SHUTTING_DOWN: The name server takes no more.
        """
        channel_id = self._new_channel(sharer)
        self._events[channel_id] = asyncio.Queue(MAX_CHANNEL_EVENTS)
        _log.debug("channel_opened", channel=channel_id[:8], holder=holder)
        try:
            yield channel_id, self._events[channel_id]
        finally:
            del self._events[channel_id]
            if why := doubt():
                self._doubts.setdefault(channel_id, why)
            self._end(channel_id)
            _log.debug("channel_ended", channel=channel_id[:8], holder=holder)

    def connect(self, holder: str, close: Callable[[], None], sharer: Sharer = MACHINE) -> str:
        """Opens a channel for a connection of another protocol, and returns its id. ``disconnected`` must follow.

        Raises:
            LIMIT_EXCEEDED: Too many channels are open.
            SHUTTING_DOWN: The name server takes no more.
        """
        channel_id = self._new_channel(sharer)
        self._connections[channel_id] = close
        _log.debug("channel_opened", channel=channel_id[:8], holder=holder)
        return channel_id

    def disconnected(self, channel_id: str, doubt: Doubt | None = None) -> None:
        """The connection that is a channel has ended, however that was.

        Args:
            doubt: Why its end says nothing about its brokers.
        """
        del self._connections[channel_id]
        if doubt is not None:
            self._doubts.setdefault(channel_id, doubt)
        self._end(channel_id)

    async def remove_brokers_of_ended(self) -> None:
        """Removes the brokers of channels that have ended, as they end. Runs until cancelled."""
        while True:
            ended = [await self._ended.get()]
            while not self._ended.empty():  # the guard judges ends that come together as one loss
                ended.append(self._ended.get_nowait())
            lost = [channel_id for channel_id, _ in ended if not await self._may_come_back(channel_id)]
            for gone in await self._writer.apply_each(on_channel_destroy(self._state, lost)):
                log_removed(gone)
            for _, sharer in ended:
                self._shares.give_back(sharer)

    async def _may_come_back(self, channel_id: str) -> bool:
        """Whether the end of a channel says nothing about its brokers; these get time to register again."""
        doubt = self._doubts.pop(channel_id, None)
        if self._state.channels.was_handed_over(channel_id):
            seconds, why = self._state.behaviour.channel_grace_seconds, Doubt.HANDED_OVER
        elif doubt is not None:
            seconds, why = DOUBTED_SECONDS, doubt
        elif self._stall_detector.channel_ends_are_doubtful():
            seconds, why = DOUBTED_SECONDS, Doubt.OWN_STALL
        else:
            return False
        if brokers := self._heartbeats.doubt_channel_end(channel_id, seconds, why):
            _log.warning("channel_end_doubted", why=why.label, channel=channel_id[:8], brokers=brokers, seconds=seconds)
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
        self._doubts[channel_id] = Doubt.CLOSED_HERE
        if close_connection is not None:
            close_connection()
        if events is None:
            return
        while events.full():
            events.get_nowait()
        closing = pb.ChannelClosing(reason=reason)
        if reason == pb.ChannelClosing.REASON_SHUTDOWN:
            closing.retry_delay_millis = REOPEN_MILLIS
        events.put_nowait(pb.OpenChannelResponse(closing=closing))

    def close_all(self, reason: pb.ChannelClosing.Reason) -> None:
        for channel_id in (*self._events, *self._connections):
            self.close(channel_id, reason)

    def _new_channel(self, sharer: Sharer) -> str:
        self._shares.take(sharer)
        try:
            channel_id = self._heartbeats.open_channel()
        except BaseException:
            self._shares.give_back(sharer)
            raise
        self._sharers[channel_id] = sharer
        return channel_id

    def _end(self, channel_id: str) -> None:
        self._heartbeats.end_channel(channel_id)
        self._ended.put_nowait((channel_id, self._sharers.pop(channel_id)))


# Notices to channels: a group's lowest broker id, or the ordered-topic configuration has changed.

ORDER_NOTICE_PAUSE_SECONDS = 1.0
"""Shortest time between two notices of a changed ordered-topic configuration: operators set many keys in a row, and
each notice goes to every channel.
"""

CHANNEL_SLICE = 500
"""Channels that are notified before yielding: about a millisecond."""


class ChannelNotices:
    """Listens to the change log and tells the channels concerned."""

    def __init__(self, state: RouteState, channels: ChannelStreams) -> None:
        self._state = state
        self._channels = channels
        self._order_config_changed = asyncio.Event()
        state.change_log.listen(self._on_change)

    async def tell_order_config_changes(self) -> None:
        """Tells every channel that the ordered-topic configuration changed, if brokers get it. Runs until cancelled."""
        while True:
            await self._order_config_changed.wait()
            self._order_config_changed.clear()
            if self._state.behaviour.return_order_topic_config_to_broker:
                event = pb.OpenChannelResponse(order_topic_config_changed=pb.OrderTopicConfigChanged())
                for count, channel_id in enumerate(self._channels.open_ids(), 1):
                    self._channels.send(channel_id, event)
                    if count % CHANNEL_SLICE == 0:
                        await asyncio.sleep(0)
            await asyncio.sleep(ORDER_NOTICE_PAUSE_SECONDS)

    def _on_change(self, change: Change) -> None:
        for row in change.rows:
            if isinstance(row, GroupChange) and self._state.behaviour.notify_min_broker_id_changed:
                self._tell_min_id_change(row.before, row.after)
            elif isinstance(row, KvChange) and row.ordered_topic is not None:
                self._order_config_changed.set()

    def _tell_min_id_change(self, before: BrokerData | None, after: BrokerData | None) -> None:
        """Tells the group's brokers of its lowest id (RocketMQ 5: NOTIFY_MIN_BROKER_ID_CHANGE, 905).

        As in RocketMQ, a group's first broker causes no notice, and a lost one only where a slave may stand in. Unlike
        in RocketMQ, a lowest broker that gets a higher id causes one, too.
        """
        if before is None or after is None or after.min_id == before.min_id:
            return
        came = after.min_id < before.min_id
        if not came and not after.enable_acting_master:
            return
        left_addr = before.members[0].broker_addr
        first, *others = after.members
        lowest = self._live(after, first)
        event = pb.OpenChannelResponse(
            min_broker_id_changed=pb.MinBrokerIdChanged(
                cluster_name=after.key.cluster_name,
                broker_name=after.key.broker_name,
                min_broker_id=after.min_id,
                min_broker_addr=first.broker_addr,
                offline_broker_addr=None if came or left_addr in after.addrs.values() else left_addr,
                ha_broker_addr=lowest.ha_server_addr,
            )
        )
        for member in others if came and others else after.members:
            channel_id = self._live(after, member).channel_id
            if channel_id is not None:
                self._channels.send(channel_id, event)

    def _live(self, group: BrokerData, member: Member) -> BrokerLiveInfo:
        return self._state.tables.broker_live_table[group.live_key(member)]
