"""Liveness: version queries, heartbeats, and the channels that brokers hold open."""

from __future__ import annotations

from namesrv.core.errors import broker_not_registered
from namesrv.core.model import BrokerKey, BrokerLiveInfo, DataVersion, Doubt, LiveKey
from namesrv.core.state import RouteState


class Heartbeats:
    """What renews a broker's time, and what ends it. Nothing here changes a table."""

    def __init__(self, state: RouteState) -> None:
        self._state = state

    def query_data_version(
        self, broker: BrokerKey, broker_id: int, broker_addr: str, data_version: DataVersion
    ) -> tuple[bool, DataVersion | None]:
        """Compares a broker's version with the one held (RocketMQ: QUERY_DATA_VERSION). Renews liveness if equal.

        Returns:
            Whether a registration is needed, and the version held; no version if there is no such broker here. An
            unconfirmed broker needs one, to be bound to its channel again. A broker whose last registration was a
            merging one needs one because its version guarantees nothing.
        """
        live = self._state.live_broker(broker, broker_id, broker_addr)
        if live is None:
            return True, None
        if not live.version_matches(data_version):
            return True, live.data_version
        self._state.renew(live)
        return False, live.data_version

    def broker_heartbeat(self, broker: BrokerKey, broker_id: int, broker_addr: str) -> None:
        """Renews liveness (RocketMQ 5: BROKER_HEARTBEAT). Raises BROKER_NOT_REGISTERED, also if unconfirmed."""
        live = self._state.live_broker(broker, broker_id, broker_addr)
        if live is None or live.unconfirmed:
            raise broker_not_registered(broker.cluster_name, broker.broker_name, broker_addr)
        self._state.renew(live)

    def renew_unchanged(self, live: BrokerLiveInfo) -> bool:
        """Renews liveness of a broker that a heartbeat or an equal version renewed before, when this was its row.

        Returns whether it still is. If not, nothing is renewed, and the request must be examined in full.
        """
        if self._state.tables.broker_live_table.get(live.key) is not live:
            return False
        self._state.renew(live)
        return True

    def query_by_address(
        self, broker: BrokerKey, broker_id: int, broker_addr: str, data_version: DataVersion
    ) -> tuple[bool, DataVersion | None]:
        """Answers the same question as RocketMQ 5 does, for its own brokers: the address alone says who asks.

        Whatever the answer, a broker with merging registrations lives: with an acting master it sends this query each
        second instead of a heartbeat, and has 10 s. An unconfirmed broker stays unconfirmed, and the query never
        shortens its time. For a broker that an agent registered, only the agent's ``query_data_version`` counts.

        Returns:
            Whether a registration is needed, and the version held, as ``query_data_version``. One is needed also while
            all that the broker has said is one topic, which may be an increment of a table that nobody here knows.
        """
        live = self._state.tables.broker_live_table.get(LiveKey(broker.cluster_name, broker_addr))
        if live is None or not live.topic_by_topic:
            return self.query_data_version(broker, broker_id, broker_addr, data_version)
        self._state.renew(live)
        is_same = (live.broker, live.broker_id, live.data_version) == (broker, broker_id, data_version)
        return not is_same or live.unconfirmed or live.key in self._state.possibly_partial, live.data_version

    def heartbeat_by_address(self, key: LiveKey) -> bool:
        """Renews liveness of a broker with merging registrations (RocketMQ 5: BROKER_HEARTBEAT, without an id).

        Returns whether there is such a broker at this address. RocketMQ ignores heartbeats of others.
        """
        live = self._state.tables.broker_live_table.get(key)
        if live is None or not live.topic_by_topic:
            return False
        self._state.renew(live)
        return True

    def open_channel(self) -> str:
        """Opens a channel and returns its id. Raises SHUTTING_DOWN if the tables are frozen."""
        self._state.check_not_frozen()
        return self._state.liveness.open_channel()

    def doubt_channel_end(self, channel_id: str, seconds: float, why: Doubt) -> int:
        """Gives the brokers of a channel that has ended some seconds to register again, instead of removing them.

        For ends that may be this name server's own fault. Returns how many brokers that is.
        """
        lives = map(self._state.tables.broker_live_table.get, self._state.liveness.take_bound(channel_id))
        doubted = [live.key for live in lives if live is not None and live.channel_id == channel_id]
        for key in doubted:
            self._state.doubt(key, why, seconds)
        return len(doubted)

    def end_channel(self, channel_id: str) -> None:
        """Ends a channel at once: registrations that name it are refused from now on."""
        self._state.liveness.end_channel(channel_id)

    def grant_more_time(self, seconds: float) -> None:
        """Moves all deadlines: the name server itself did not run for so long, so nobody could reach it."""
        self._state.granted_seconds += seconds
        self._state.liveness.grant_more_time(seconds)
