"""The topics whose routes a change affects, and the brokers that left these routes.

Rows name groups; a route also changes with the addresses, the permission and the filter servers of its groups, and with
the ordered-topic configuration. A topic may be named although its route is the same as before; a topic whose route
changed is always named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from namesrv_api.v1 import route_service_pb2

from namesrv.core.changes import (
    Change,
    FilterServersChange,
    GroupChange,
    KvChange,
    LiveChange,
    QueuesChange,
    SettingChange,
)
from namesrv.core.encoding import broker_removal, frame
from namesrv.core.model import ORDER_TOPIC_CONFIG, BrokerKey, Member, RemovalReason
from namesrv.core.state import RouteState

ORDER_MESSAGE_ENABLE = "orderMessageEnable"
"""The setting that has routes carry the ordered-topic configuration, by its name in the change log."""

MAX_REMOVALS = 1_000
"""Most removals that are kept for one topic, the latest: it bounds the memory that a slow client takes."""

_REMOVALS_FIELD = route_service_pb2.TopicRouteChange.REMOVALS_FIELD_NUMBER


class Removal(NamedTuple):
    """A broker that left routes, or a group that lost its queues of topics."""

    broker: BrokerKey
    broker_addr: str
    """Empty: the group lost its queues of the topic, whatever brokers it has."""
    fragment: bytes
    """A BrokerRemoval, framed as the field removals of a TopicRouteChange."""


Removals = tuple[Removal, ...]


Affected = tuple[Collection[str], Removals]
"""Topics that a change affects in the same way, with quick membership tests, and what left all of their routes."""


class AffectedTopics:
    """Finds what each change affects, one change after the other.

    Where a group changes, these are the topics that it has now. Topics that it gained or lost in between are named by
    the changes that did that. So members that left a group are remembered for topics that leave the group later.
    """

    def __init__(self, state: RouteState) -> None:
        self._state = state
        self._earlier_removals: dict[BrokerKey, Removals] = {}

    def forget_removals(self) -> None:
        """Callers must have read all changes: then groups still have the topics that they had."""
        self._earlier_removals = {}

    def of(self, change: Change) -> Iterator[Affected]:
        removals = _removals_by_group(change)
        of_group = self._state.index.topics_by_broker
        for row in change.rows:
            match row:
                case QueuesChange(key=broker, reason=RemovalReason() as reason):
                    left = self._earlier_removals.get(broker, ()) + removals.get(broker, ())
                    if reason is not RemovalReason.GROUP_GONE:
                        left += (_removal(broker, None, reason),)
                    yield row.topics, left
                case QueuesChange():
                    yield row.topics, ()
                case GroupChange() if row.before is not None and row.after is not None:
                    yield of_group.get(row.key, ()), removals.get(row.key, ())
                case FilterServersChange():
                    yield of_group.get(row.broker, ()), ()
                case KvChange(ordered_topic=str() as topic):
                    yield (topic,), ()
                case SettingChange() if row.key == ORDER_MESSAGE_ENABLE:
                    yield self._state.kv_config.entries(ORDER_TOPIC_CONFIG), ()
                case _:
                    pass  # a topic whose route it changes has a row of its own
        for group, brokers in removals.items():
            self._earlier_removals[group] = (self._earlier_removals.get(group, ()) + brokers)[-MAX_REMOVALS:]


def _removals_by_group(change: Change) -> Mapping[BrokerKey, Removals]:
    """The brokers that left each group. One that is in it under another id has not left."""
    reasons = {row.key: row.reason for row in change.rows if isinstance(row, LiveChange)}
    removals: dict[BrokerKey, Removals] = {}
    for row in change.rows:
        if not isinstance(row, GroupChange) or row.before is None:
            continue
        kept = set(row.after.addrs.values()) if row.after else ()
        if left := [member for member in row.before.members if member.broker_addr not in kept]:
            # Without a removal reason its address is in another group now, or another broker has its id.
            other = row.reason or RemovalReason.REPLACED
            removals[row.key] = tuple(
                _removal(row.key, member, reasons.get(row.before.live_key(member)) or other) for member in left
            )
    return removals


def _removal(broker: BrokerKey, member: Member | None, reason: RemovalReason) -> Removal:
    broker_id, broker_addr = member[:2] if member else (None, "")
    removal = broker_removal(broker, broker_id, broker_addr, reason)
    return Removal(broker, broker_addr, frame(_REMOVALS_FIELD, removal.SerializeToString()))
