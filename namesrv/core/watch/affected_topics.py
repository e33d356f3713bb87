"""Topics whose routes a change affects, and the brokers that left them with it.

Rows name groups; a route also changes with the addresses, the permission and the filter servers of its groups, and with
the ordered-topic configuration. A topic may be named although its route is the same as before; a topic whose route
changed is always named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from namesrv_api.v1 import route_data_pb2, route_service_pb2

from namesrv.core.records.changes import (
    Change,
    ConfigPut,
    FilterServersPut,
    GroupPut,
    GroupRemoved,
    KvPut,
    LiveRemoved,
    QueuesPut,
    QueuesRemoved,
)
from namesrv.core.records.fragments import frame
from namesrv.core.records.rows import BrokerKey, LiveKey, RemovalReason
from namesrv.core.routes.kv_config import ORDER_TOPIC_CONFIG
from namesrv.core.routes.route_info_manager import RouteInfoManager

ORDER_MESSAGE_ENABLE = "orderMessageEnable"
"""The setting that has routes carry the ordered-topic configuration, by its name in the change log."""

MAX_GONE = 1_000
"""Most brokers that are named as gone from one topic, the latest: a reader must not collect them without end."""

_REMOVALS_NUMBER = route_service_pb2.TopicRouteChange.REMOVALS_FIELD_NUMBER


class GoneBroker(NamedTuple):
    """A broker that left routes, or a group that lost its queues of topics."""

    broker: BrokerKey
    broker_addr: str
    """Empty: the group lost its queues of the topic, whatever brokers it has."""
    fragment: bytes
    """A BrokerRemoval, framed as the field removals of a TopicRouteChange."""


class AffectedTopic(NamedTuple):
    """Topics that a change affects in the same way."""

    topics: Collection[str]
    """The topics, in a collection with quick membership tests."""
    gone: tuple[GoneBroker, ...] = ()
    """The departures from their routes, the same for all of them."""


class AffectedTopics:
    """Finds what each change affects, one change after the other.

    Where a group changes, these are the topics that it has now: any that came to it or left it since are named by the
    later changes that did that. So what left a group is remembered for topics that leave the group later.
    """

    def __init__(self, manager: RouteInfoManager) -> None:
        self._manager = manager
        self._gone_before: dict[BrokerKey, tuple[GoneBroker, ...]] = {}

    def caught_up(self) -> None:
        """There is no later change, so groups still have the topics that they had."""
        self._gone_before = {}

    def of(self, change: Change) -> Iterator[AffectedTopic]:
        """The topics that a change affects."""
        gone = _gone(change)
        of_group = self._manager.tables.topics_by_broker
        for row in change.rows:
            match row:
                case QueuesPut():
                    yield AffectedTopic(row.queues)
                case QueuesRemoved(broker=broker, reason=reason):
                    left = self._gone_before.get(broker, ()) + gone.get(broker, ())
                    if reason is not RemovalReason.GROUP_GONE:
                        left += (_gone_broker(broker, None, "", reason),)
                    yield AffectedTopic(row.topics, left)
                case GroupPut(before=before, after=after) if before is not None:
                    yield AffectedTopic(of_group.get(after.key, ()), gone.get(after.key, ()))
                case FilterServersPut():
                    yield AffectedTopic(of_group.get(row.broker, ()))
                case KvPut(namespace=namespace) if namespace == ORDER_TOPIC_CONFIG:
                    yield AffectedTopic((row.key,))
                case ConfigPut(key=key) if key == ORDER_MESSAGE_ENABLE:
                    yield AffectedTopic(self._manager.kv_config.entries(ORDER_TOPIC_CONFIG))
        for group, brokers in gone.items():
            self._gone_before[group] = (self._gone_before.get(group, ()) + brokers)[-MAX_GONE:]


def _gone(change: Change) -> Mapping[BrokerKey, tuple[GoneBroker, ...]]:
    """The brokers that left each group. One that is in it under another id has not left."""
    reasons = {row.live.key: row.reason for row in change.rows if isinstance(row, LiveRemoved)}
    gone: dict[BrokerKey, tuple[GoneBroker, ...]] = {}
    for row in change.rows:
        match row:
            case GroupRemoved(before=before, reason=reason):
                left = before.addrs
            case GroupPut(before=before, after=after) if before is not None:
                # Without a removal reason its address is in another group now, or another broker has its place.
                reason, kept = RemovalReason.REPLACED, set(after.addrs.values())
                left = {broker_id: addr for broker_id, addr in before.addrs.items() if addr not in kept}
            case _:
                continue
        key = before.key
        if left:
            gone[key] = tuple(
                _gone_broker(key, broker_id, addr, reasons.get(LiveKey(key.cluster_name, addr), reason))
                for broker_id, addr in left.items()
            )
    return gone


def _gone_broker(broker: BrokerKey, broker_id: int | None, broker_addr: str, reason: RemovalReason) -> GoneBroker:
    removal = route_service_pb2.BrokerRemoval(
        cluster_name=broker.cluster_name,
        broker_name=broker.broker_name,
        broker_id=broker_id,
        broker_addr=broker_addr,
        reason=route_data_pb2.RemovalReason.Name(reason.value),
    )
    return GoneBroker(broker, broker_addr, frame(_REMOVALS_NUMBER, removal.SerializeToString()))
