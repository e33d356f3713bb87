"""Signs of life: questions, heartbeats, and the channels that brokers hold open."""

from __future__ import annotations

from namesrv.core.errors import BrokerNotRegistered
from namesrv.core.model import BrokerKey, BrokerLiveInfo, DataVersion, LiveKey
from namesrv.core.slices import Sliced
from namesrv.core.state import RouteState

DOUBT_SLICE = 250
"""Brokers of a channel that are given time before giving way: about a millisecond."""


class Heartbeats(RouteState):
    """What renews a broker's time, and what ends it. Nothing here changes a table."""

    def query_data_version(
        self, broker: BrokerKey, broker_id: int, broker_addr: str, data_version: DataVersion
    ) -> tuple[bool, DataVersion | None]:
        """Compares a broker's version with the one held (RocketMQ: QUERY_DATA_VERSION). Renews liveness if equal.

        Returns:
            Whether a registration is needed, and the version held; no version if there is no such broker here. An
            unconfirmed broker needs one, so that it is bound to its channel again, and so does one whose last
            registration was topic by topic, for which the version does not vouch.
        """
        live = self._live_broker(broker, broker_id, broker_addr)
        if live is None:
            return True, None
        if not version_matches(live, data_version):
            return True, live.data_version
        self._heard(live)
        return False, live.data_version

    def broker_heartbeat(self, broker: BrokerKey, broker_id: int, broker_addr: str) -> None:
        """Renews liveness (RocketMQ 5: BROKER_HEARTBEAT). Raises BrokerNotRegistered also for an unconfirmed broker."""
        live = self._live_broker(broker, broker_id, broker_addr)
        if live is None or live.unconfirmed:
            raise BrokerNotRegistered(broker.cluster_name, broker.broker_name, broker_addr)
        self._heard(live)

    def row_of(self, broker: BrokerKey, broker_id: int, broker_addr: str) -> BrokerLiveInfo | None:
        """The row of a live broker that says of itself that it is this one; None if there is no such broker here."""
        return self._live_broker(broker, broker_id, broker_addr)

    def heard_again(self, live: BrokerLiveInfo) -> bool:
        """Renews liveness of a broker that a heartbeat or an equal version renewed before, when this was its row.

        Returns:
            Whether it still is. Else nothing is renewed: what the broker says has to be looked at once more.
        """
        if self.tables.broker_live_table.get(live.key) is not live:
            return False
        self._heard(live)
        return True

    def query_by_address(
        self, broker: BrokerKey, broker_id: int, broker_addr: str, data_version: DataVersion
    ) -> tuple[bool, DataVersion | None]:
        """Answers the same question as RocketMQ 5 does, for its own brokers: the address alone says who asks.

        Whatever the answer, a broker that registered topic by topic lives: with an acting master it asks each second
        instead of a heartbeat, and has 10 s. One that is unconfirmed stays so, but no less long for having spoken. A
        broker that an agent registered is asked by ``query_data_version``: its agent speaks for it.

        Returns:
            Whether a registration is needed, and the version held, as ``query_data_version``. One is needed also while
            all that the broker has said is one topic, which may be an increment of a table that nobody here knows.
        """
        live = self.tables.broker_live_table.get(LiveKey(broker.cluster_name, broker_addr))
        if live is None or not live.topic_by_topic:
            return self.query_data_version(broker, broker_id, broker_addr, data_version)
        self._heard(live)
        is_same = (live.broker, live.broker_id, live.data_version) == (broker, broker_id, data_version)
        return not is_same or live.unconfirmed or live.key in self._possibly_partial, live.data_version

    def heartbeat_by_address(self, key: LiveKey) -> bool:
        """Renews liveness of a broker that registered topic by topic (RocketMQ 5: BROKER_HEARTBEAT, without an id).

        Returns:
            Whether there is such a broker at this address. RocketMQ ignores heartbeats of others.
        """
        live = self.tables.broker_live_table.get(key)
        if live is None or not live.topic_by_topic:
            return False
        self._heard(live)
        return True

    def open_channel(self) -> str:
        """Opens a channel and returns its id. Raises ShuttingDown if the tables are frozen."""
        self._check_not_frozen()
        channel_id = self.channels.open()
        self._liveness.channel_opened(channel_id)
        return channel_id

    def hand_over_channel(self, channel_id: str) -> int:
        """Notes that a channel's holder is about to end it and that another process takes its brokers over.

        Returns:
            How many brokers are bound to it now.

        Raises:
            ChannelGone: The channel is not open.
        """
        self.channels.hand_over(channel_id)
        return len(self.channels.bound(channel_id))

    def doubt_channel_end(self, channel_id: str, seconds: float) -> Sliced[int]:
        """Gives the brokers of a channel that has ended some seconds to register again, instead of removing them.

        For ends that may be this name server's own fault.

        Returns:
            How many brokers that is.
        """
        keys = self.channels.take_bound(channel_id)
        for count, key in enumerate(keys, 1):
            live = self.tables.broker_live_table.get(key)
            if live is not None and live.channel_id == channel_id:  # it has neither left nor come back meanwhile
                self._liveness.give(key, seconds)
            if count % DOUBT_SLICE == 0:
                yield
        return len(keys)

    def end_channel(self, channel_id: str) -> None:
        """Ends a channel at once: registrations that name it are refused from now on."""
        self.channels.end(channel_id)
        self._liveness.channel_ended(channel_id)

    def idle_channels(self) -> Sliced[list[str]]:
        """Finds the channels that are to be closed: none of their brokers was heard of for the expiry time."""
        return (yield from self._liveness.idle_channels())

    def grant_more_time(self, seconds: float) -> None:
        """Moves all deadlines: the name server itself did not run for so long, so nobody could reach it."""
        self.granted_seconds += seconds
        self._liveness.grant_more_time(seconds)

    def last_heard(self) -> dict[LiveKey, int]:
        """When each live broker was last heard of, by the wall clock, milliseconds since the Unix epoch."""
        return self._liveness.all_last_updates()

    def _live_broker(self, broker: BrokerKey, broker_id: int, broker_addr: str) -> BrokerLiveInfo | None:
        live = self.tables.broker_live_table.get(LiveKey(broker.cluster_name, broker_addr))
        if live is None or live.broker != broker or live.broker_id != broker_id:
            return None
        return live

    def _heard(self, live: BrokerLiveInfo) -> None:
        channel_id = live.channel_id
        is_open = channel_id is not None and channel_id in self.channels
        self._liveness.heard(live, channel_id if is_open else None)


def version_matches(live: BrokerLiveInfo, data_version: DataVersion) -> bool:
    """Whether what is held of a broker is the table that a version is of."""
    return not live.unconfirmed and not live.topic_by_topic and live.data_version == data_version
