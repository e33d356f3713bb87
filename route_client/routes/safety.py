"""Safety rules: whether an answer that loses all brokers of a topic is believed at once or held back.

Registries that pushed an empty list after a restart, or behind a partition, have taken whole fleets down. So the client
goes on with the brokers that it knows, unless the name server gives a real reason for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from namesrv_api.v1 import route_data_pb2 as pb
from namesrv_api.v1 import route_service_pb2

from route_client.routes.route import GroupKey, TopicRoute

REALLY_WENT = frozenset(
    {
        pb.REMOVAL_REASON_UNREGISTERED,
        pb.REMOVAL_REASON_BROKER_DOWN,
        pb.REMOVAL_REASON_REPLACED,
        pb.REMOVAL_REASON_NOT_IN_REGISTRATION,
        pb.REMOVAL_REASON_DELETED_BY_OPERATOR,
        pb.REMOVAL_REASON_LOSS_CONFIRMED,
    }
)
"""Reasons that somebody decided or observed. The others only say that the name server hears nothing: the network
between the two may be the cause of an ended channel or a silence, and GROUP_GONE follows from the end of the last
broker.
"""


@dataclass(frozen=True, slots=True)
class Removal:
    """A broker that left a topic's route, and why."""

    key: GroupKey
    """Its group; empty names if the topic itself went."""
    broker_id: int | None
    """None if all of the group went."""
    broker_addr: str
    reason: int
    """A number of the contract's RemovalReason."""

    @property
    def reason_name(self) -> str:
        """Such as ``UNREGISTERED``; the number for reasons that are newer than this client."""
        known = pb.RemovalReason.DESCRIPTOR.values_by_number.get(self.reason)
        return known.name.removeprefix("REMOVAL_REASON_") if known else str(self.reason)

    @classmethod
    def from_wire(cls, wire: route_service_pb2.BrokerRemoval) -> Self:
        """Reads a removal."""
        broker_id = wire.broker_id if wire.HasField("broker_id") else None
        return cls(GroupKey(wire.cluster_name, wire.broker_name), broker_id, wire.broker_addr, wire.reason)


def loses_all_brokers(old: TopicRoute | None, new: TopicRoute | None) -> bool:
    """Whether there were brokers and now there are none."""
    return old is not None and old.has_brokers and not (new is not None and new.has_brokers)


def all_really_went(old: TopicRoute, removals: Iterable[Removal]) -> bool:
    """Whether each broker of the old route is named with a reason that is a decision or an observation."""
    real = [removal for removal in removals if removal.reason in REALLY_WENT]
    return all(any(_covers(removal, key, id_) for removal in real) for key, id_, _ in old.brokers)


def _covers(removal: Removal, key: GroupKey, broker_id: int) -> bool:
    if not removal.key.broker_name:
        return True
    return removal.key == key and removal.broker_id in {None, broker_id}
