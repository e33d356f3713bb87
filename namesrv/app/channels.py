"""Channels: the open streams of brokers, their holders, the notices sent to them, and stalls that end them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import structlog
from namesrv_api.v1 import registration_service_pb2 as pb

from namesrv.app.access import FairShares
from namesrv.app.event_log import log_removed
from namesrv.app.writer import TableWriter, run_cooperatively
from namesrv.core.changes import Change, GroupChange, KvChange
from namesrv.core.model import BrokerData, BrokerLiveInfo, Doubt, Member
from namesrv.core.pace import each_in_slices
from namesrv.core.removals import on_channel_destroy
from namesrv.core.state import RouteState
from namesrv.limits import MAX_CHANNEL_EVENTS
from namesrv_common.server.shares import MACHINE, Sharer, Shares

# Stalls of this process, so that no broker is removed for not having reached it.

TICK_SECONDS = 0.25
"""Time between two checks that the event loop runs."""

STALL_SECONDS = 1.0
"""A tick that comes later than this is a stall: the process was stopped, or starved of its processor."""

DELAYS_SECONDS = 60.0
"""How long the delay of a tick is remembered, for status calls."""

_log = structlog.get_logger(__name__)


class StallDetector:
    """Measures stalls of the event loop.

    During a stall, pings of peers are unanswered, and peers close sound connections. For a while afterwards, ends of
    channels say nothing about the brokers behind them.
    """

    def __init__(
        self, monotonic: Callable[[], float], on_stall: Callable[[float], None], doubtful_seconds: float
    ) -> None:
        """Measures from now on, or from ``begin``.

        Args:
            on_stall: Called with the length of each stall in seconds, before other code can draw conclusions.
            doubtful_seconds: How long after a stall the ends of channels say nothing.
        """
        self._monotonic = monotonic
        self._on_stall = on_stall
        self._doubtful_seconds = doubtful_seconds
        self._last_tick = monotonic()
        self._doubtful_until = self._last_tick
        self._next_tick = self._last_tick + TICK_SECONDS
        self._delays: deque[tuple[float, float]] = deque(maxlen=round(DELAYS_SECONDS / TICK_SECONDS))
        """The time of each tick, and its delay."""

    def begin(self) -> None:
        """Measures from now on: a start that took long has cut off nobody, as nobody was connected."""
        self._last_tick = self._monotonic()
        self._next_tick = self._last_tick + TICK_SECONDS

    def check(self) -> None:
        """Takes a stall into account that nobody has noticed yet. Call it before drawing conclusions from silence."""
        now = self._monotonic()
        late = now - self._last_tick - TICK_SECONDS
        self._last_tick = now
        if late > STALL_SECONDS:
            _log.warning("own_stall", seconds=round(late, 3))
            self._doubtful_until = now + self._doubtful_seconds
            self._on_stall(late)

    def channel_ends_are_doubtful(self) -> bool:
        """Whether a channel that ends now may have ended because of us."""
        self.check()
        return self._monotonic() < self._doubtful_until

    async def watch(self) -> None:
        """Checks again and again. Runs until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.tick()

    def tick(self) -> None:
        """Notes how late a tick comes, and checks."""
        now = self._monotonic()
        self._delays.append((now, now - self._next_tick))
        self._next_tick = now + TICK_SECONDS
        self.check()

    def longest_delay(self) -> float:
        """Longest delay of a tick during the last minute, in seconds; one that is overdue right now counts, too."""
        now = self._monotonic()
        delays = tuple(self._delays)  # the event loop ticks while the thread of the metrics reads
        recent = (late for at, late in delays if at >= now - DELAYS_SECONDS)
        return max(0.0, now - self._next_tick, *recent)


# The channels, and what their holders are told.

DOUBTED_SECONDS = 60.0
"""Time that a broker has to register again after we ended its channel: the longest period of agents."""

REOPEN_MILLIS = 1_000
"""Time after which holders may open their channels again at a name server that ends: a restart takes a second."""

ORDER_NOTICE_PAUSE_SECONDS = 1.0
"""Shortest time between two notices of a changed ordered-topic configuration: operators set many keys in a row, and
each notice goes to every channel."""

_Events = asyncio.Queue[pb.OpenChannelResponse]


@dataclass(slots=True, eq=False)
class _Channel:
    sharer: Sharer
    """The caller that holds it."""
    events: _Events | None = None
    """Events to its holder; None if it is a connection of another protocol."""
    close_connection: Callable[[], None] | None = None
    """Closes that connection."""
    doubt: Doubt | None = None
    """Why its end says nothing about its brokers: they have done nothing wrong."""


class ChannelStreams:
    """Opens, feeds and closes the streams of channels, and removes the brokers of those that ended.

    It listens to the change log, and notifies the channels that a change concerns.
    """

    def __init__(
        self, state: RouteState, writer: TableWriter, stall_detector: StallDetector, shares: Shares | None = None
    ) -> None:
        self._state = state
        self._writer = writer
        self._stall_detector = stall_detector
        self._shares = shares or FairShares().channels
        self._channels: dict[str, _Channel] = {}
        """The open channels."""
        self._ended: asyncio.Queue[tuple[str, _Channel]] = asyncio.Queue()
        """Channels that have ended. They hold their shares until their brokers are removed, which bounds the queue."""
        self._order_config_changed = asyncio.Event()
        state.change_log.listen(self._on_change)

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
        events: _Events = asyncio.Queue(MAX_CHANNEL_EVENTS)
        channel_id = self._open(holder, _Channel(sharer, events))
        try:
            yield channel_id, events
        finally:
            self.disconnected(channel_id, doubt())
            _log.debug("channel_ended", channel=channel_id[:8], holder=holder)

    def connect(self, holder: str, close: Callable[[], None], sharer: Sharer = MACHINE) -> str:
        """Opens a channel for a connection of another protocol, and returns its id. ``disconnected`` must follow.

        Raises:
            LIMIT_EXCEEDED: Too many channels are open.
            SHUTTING_DOWN: The name server takes no more.
        """
        return self._open(holder, _Channel(sharer, close_connection=close))

    def disconnected(self, channel_id: str, doubt: Doubt | None = None) -> None:
        """The connection or the stream that is a channel has ended, however that was.

        Args:
            doubt: Why its end says nothing about its brokers.
        """
        channel = self._channels.pop(channel_id)
        channel.doubt = channel.doubt or doubt
        self._state.liveness.end_channel(channel_id)
        self._ended.put_nowait((channel_id, channel))

    def hand_over(self, channel_id: str) -> int:
        """Notes that a channel's holder is about to end it and that another process takes its brokers over.

        Returns:
            How many brokers are bound to it now.

        Raises:
            CHANNEL_GONE: The channel is not open.
        """
        self._state.liveness.check_open(channel_id)
        self._channels[channel_id].doubt = Doubt.HANDED_OVER
        return len(self._state.liveness.bound(channel_id))

    async def remove_brokers_of_ended(self) -> None:
        """Removes the brokers of channels that have ended, as they end. Runs until cancelled."""
        while True:
            ended = [await self._ended.get()]
            while not self._ended.empty():  # the guard judges ends that come together as one loss
                ended.append(self._ended.get_nowait())
            lost = [channel_id for channel_id, channel in ended if not self._may_come_back(channel_id, channel.doubt)]
            log_removed(await self._writer.apply_each(on_channel_destroy(self._state, lost)))
            for _, channel in ended:
                self._shares.give_back(channel.sharer)

    def _may_come_back(self, channel_id: str, why: Doubt | None) -> bool:
        """Whether the end of a channel says nothing about its brokers; these get time to register again."""
        if why is None and self._stall_detector.channel_ends_are_doubtful():
            why = Doubt.OWN_STALL
        if why is None:
            return False
        handed_over = why is Doubt.HANDED_OVER
        seconds = self._state.behaviour.channel_grace_seconds if handed_over else DOUBTED_SECONDS
        if brokers := self._state.doubt_channel_end(channel_id, seconds, why):
            label = why.name.lower()
            _log.warning("channel_end_doubted", why=label, channel=channel_id[:8], brokers=brokers, seconds=seconds)
        return True

    def close(self, channel_id: str, reason: pb.ChannelClosing.Reason) -> None:
        """Tells a channel's holder why, then ends the stream. The stream of a holder that does not read ends, too."""
        channel = self._channels.get(channel_id)
        if channel is None:
            return
        channel.doubt = channel.doubt or Doubt.CLOSED_HERE
        if channel.close_connection is not None:
            channel.close_connection()
        if (events := channel.events) is None:
            return
        while events.full():
            events.get_nowait()
        closing = pb.ChannelClosing(reason=reason)
        if reason == pb.ChannelClosing.REASON_SHUTDOWN:
            closing.retry_delay_millis = REOPEN_MILLIS
        events.put_nowait(pb.OpenChannelResponse(closing=closing))

    def close_all(self, reason: pb.ChannelClosing.Reason) -> None:
        for channel_id in tuple(self._channels):
            self.close(channel_id, reason)

    def _open(self, holder: str, channel: _Channel) -> str:
        self._shares.take(channel.sharer)
        try:
            channel_id = self._state.open_channel()
        except BaseException:
            self._shares.give_back(channel.sharer)
            raise
        self._channels[channel_id] = channel
        _log.debug("channel_opened", channel=channel_id[:8], holder=holder)
        return channel_id

    # Notices: a group's lowest broker id, or the ordered-topic configuration has changed.

    async def notify_of_order_config(self) -> None:
        """Notifies all channels of a changed ordered-topic configuration, if brokers get it. Runs until cancelled."""
        while True:
            await self._order_config_changed.wait()
            self._order_config_changed.clear()
            if self._state.behaviour.return_order_topic_config_to_broker:
                event = pb.OpenChannelResponse(order_topic_config_changed=pb.OrderTopicConfigChanged())
                await run_cooperatively(each_in_slices(tuple(self._channels), partial(self._send, event=event)))
            await asyncio.sleep(ORDER_NOTICE_PAUSE_SECONDS)

    def _on_change(self, change: Change) -> None:
        for row in change.rows:
            if isinstance(row, GroupChange) and self._state.behaviour.notify_min_broker_id_changed:
                self._notify_of_min_id(row.before, row.after)
            elif isinstance(row, KvChange) and row.ordered_topic is not None:
                self._order_config_changed.set()

    def _notify_of_min_id(self, before: BrokerData | None, after: BrokerData | None) -> None:
        """Notifies the group's brokers of its lowest id (RocketMQ 5: NOTIFY_MIN_BROKER_ID_CHANGE, 905).

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
                self._send(channel_id, event)

    def _send(self, channel_id: str, event: pb.OpenChannelResponse) -> None:
        """Sends an event to a channel's holder. A channel whose reader is too far behind is closed."""
        channel = self._channels.get(channel_id)
        if channel is None or channel.events is None:
            return
        if channel.events.full():
            self.close(channel_id, pb.ChannelClosing.REASON_SLOW_READER)
        else:
            channel.events.put_nowait(event)

    def _live(self, group: BrokerData, member: Member) -> BrokerLiveInfo:
        return self._state.tables.broker_live_table[group.live_key(member)]
