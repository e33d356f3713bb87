"""Notices to channels: a group's lowest broker id, or the ordered-topic configuration has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from namesrv_api.v1 import registration_service_pb2 as pb

from namesrv.core.changes import Change, GroupPut, KvPut
from namesrv.core.model import ORDER_TOPIC_CONFIG, BrokerData, BrokerLiveInfo, LiveKey
from namesrv.core.registrations import RouteInfoManager
from namesrv.server.background.channel_streams import ChannelStreams

ORDER_NOTICE_PAUSE_SECONDS = 1.0
"""Shortest time between two notices of a changed ordered-topic configuration: operators set many keys in a row, and
each notice goes to every channel.
"""

CHANNEL_SLICE = 500
"""Channels that are told before giving way: about a millisecond."""


class ChannelNotices:
    """Listens to the change log and tells the channels concerned."""

    def __init__(self, manager: RouteInfoManager, channels: ChannelStreams) -> None:
        self._manager = manager
        self._channels = channels
        self._order_config_changed = asyncio.Event()
        manager.change_log.listen(self._on_change)

    async def tell_order_config_changes(self) -> None:
        """Tells every channel that the ordered-topic configuration changed, if brokers get it. Runs until cancelled."""
        while True:
            await self._order_config_changed.wait()
            self._order_config_changed.clear()
            if self._manager.behaviour.return_order_topic_config_to_broker:
                event = pb.OpenChannelResponse(order_topic_config_changed=pb.OrderTopicConfigChanged())
                for count, channel_id in enumerate(self._channels.open_ids(), 1):
                    self._channels.send(channel_id, event)
                    if count % CHANNEL_SLICE == 0:
                        await asyncio.sleep(0)
            await asyncio.sleep(ORDER_NOTICE_PAUSE_SECONDS)

    def _on_change(self, change: Change) -> None:
        for row in change.rows:
            if isinstance(row, GroupPut) and self._manager.behaviour.notify_min_broker_id_changed:
                self._tell_min_id_change(row.before, row.after)
            elif isinstance(row, KvPut) and row.namespace == ORDER_TOPIC_CONFIG:
                self._order_config_changed.set()

    def _tell_min_id_change(self, before: BrokerData | None, after: BrokerData) -> None:
        """Tells the group's brokers of its lowest id (RocketMQ 5: NOTIFY_MIN_BROKER_ID_CHANGE, 905).

        As in RocketMQ, a group's first broker causes no notice, and a lost one only where a slave may stand in. Unlike
        in RocketMQ, a lowest broker that gets a higher id causes one, too.
        """
        if before is None or after.min_id == before.min_id:
            return
        came = after.min_id < before.min_id
        if not came and not after.enable_acting_master:
            return
        left_addr = before.addrs[before.min_id]
        lowest = self._live(after, after.min_id)
        event = pb.OpenChannelResponse(
            min_broker_id_changed=pb.MinBrokerIdChanged(
                cluster_name=after.key.cluster_name,
                broker_name=after.key.broker_name,
                min_broker_id=after.min_id,
                min_broker_addr=after.addrs[after.min_id],
                offline_broker_addr=None if came or left_addr in after.addrs.values() else left_addr,
                ha_broker_addr=lowest.ha_server_addr,
            )
        )
        others = [broker_id for broker_id in after.addrs if broker_id != after.min_id]
        told: Iterable[int] = (others or after.addrs) if came else after.addrs
        for broker_id in told:
            channel_id = self._live(after, broker_id).channel_id
            if channel_id is not None:
                self._channels.send(channel_id, event)

    def _live(self, group: BrokerData, broker_id: int) -> BrokerLiveInfo:
        return self._manager.tables.broker_live_table[LiveKey(group.key.cluster_name, group.addrs[broker_id])]
