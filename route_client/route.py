"""Routes as the client holds them: immutable, normalised, comparable by ``==``."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from namesrv_api.v1 import route_data_pb2 as pb

from namesrv_common.topic_names import MAX_QUEUE_NUMS

PERM_READ = 4
PERM_WRITE = 2
MASTER_ID = 0


class GroupKey(NamedTuple):
    """Identifies a broker group. RocketMQ has the name alone, and mixes up groups of one name in two clusters."""

    cluster_name: str
    broker_name: str


class MessageQueue(NamedTuple):
    """One queue of a topic. Sorts by topic, broker name and queue id, as RocketMQ's does."""

    topic: str
    broker_name: str
    queue_id: int
    cluster_name: str = ""
    """Cluster of the group; empty for queues of an ordered configuration, which names none."""

    def __str__(self) -> str:
        """RocketMQ's text; consistent hashing depends on it."""
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, queueId={self.queue_id}]"


@dataclass(frozen=True, slots=True)
class StaticMapping:
    """Which queues of a static topic are on one broker group now (RocketMQ: TopicQueueMappingInfo)."""

    scope: str
    """Groups that share the topic's queues; ``__global__`` if all do."""
    total_queue_nums: int
    """Queues of the topic on all of these groups together."""
    epoch: int
    """When it was made: of two groups that have a queue, the one with the higher epoch counts."""
    dirty: bool = False
    queue_ids: tuple[tuple[int, int], ...] = ()
    """Queue of the topic, and the group's own queue that it is."""


@dataclass(frozen=True, slots=True)
class QueueData:
    """How many queues of a topic one broker group has."""

    broker_name: str
    cluster_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    """Bits: read 4, write 2, inherit 1."""
    topic_sys_flag: int = 0
    mapping: StaticMapping | None = None
    """Of a static topic: which of its queues are on the group."""

    @property
    def key(self) -> GroupKey:
        """The group that holds the queues."""
        return GroupKey(self.cluster_name, self.broker_name)

    @property
    def readable(self) -> bool:
        """Whether the queues can be read from."""
        return bool(self.perm & PERM_READ)

    @property
    def writable(self) -> bool:
        """Whether the queues can be written to."""
        return bool(self.perm & PERM_WRITE)


@dataclass(frozen=True, slots=True)
class BrokerData:
    """The addresses of one broker group."""

    broker_name: str
    cluster_name: str
    broker_addrs: tuple[tuple[int, str], ...]
    """Id and address of each broker, by ascending id; 0 is the master and may be missing."""
    zone_name: str | None = None
    enable_acting_master: bool | None = None
    unconfirmed_broker_ids: tuple[int, ...] = ()
    """Brokers that have not registered since the name server started, or that it holds although they fell silent."""
    labels: tuple[tuple[int, str, str], ...] = ()
    """Id of the broker, key and value of each label."""

    @property
    def key(self) -> GroupKey:
        """Identifies the group."""
        return GroupKey(self.cluster_name, self.broker_name)

    @property
    def master_addr(self) -> str | None:
        """Address of the master; None if it is missing."""
        return dict(self.broker_addrs).get(MASTER_ID)

    def is_labelled(self, wanted: Mapping[str, str]) -> bool:
        """Whether the broker with the lowest id, which takes the messages, has all of these labels."""
        lowest = self.broker_addrs[0][0] if self.broker_addrs else None
        return wanted.items() <= {(key, value) for broker_id, key, value in self.labels if broker_id == lowest}


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Where a topic lives. Queues and groups are sorted by broker name and cluster, so that equal routes are ``==``."""

    queue_datas: tuple[QueueData, ...] = ()
    broker_datas: tuple[BrokerData, ...] = ()
    order_topic_conf: str | None = None
    filter_servers: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """Cluster, broker address and addresses of its filter servers."""

    @property
    def brokers(self) -> Iterator[tuple[GroupKey, int, str]]:
        """Group, id and address of each broker."""
        return ((group.key, id_, addr) for group in self.broker_datas for id_, addr in group.broker_addrs)

    @property
    def has_brokers(self) -> bool:
        """Whether any broker can be reached at all."""
        return any(group.broker_addrs for group in self.broker_datas)

    @property
    def groups_without_addresses(self) -> tuple[GroupKey, ...]:
        """Groups that queues name and no BrokerData does: producers cannot use those queues."""
        known = {group.key for group in self.broker_datas}
        return tuple(queues.key for queues in self.queue_datas if queues.key not in known)


# Thousands of topics live on the same few groups: equal records of several routes are one object.
_queue_data_of = functools.lru_cache(maxsize=10_000)(QueueData)
_broker_data_of = functools.lru_cache(maxsize=10_000)(BrokerData)


def from_wire(wire: pb.TopicRouteData) -> TopicRoute:
    """Reads a route.

    Raises:
        ValueError: A queue count is beyond what a broker can have: each queue becomes an object here, and a slip of a
            name server must not make it millions. Or a static topic's mapping makes no sense.
    """
    return TopicRoute(
        tuple(sorted(map(_queue_data, wire.queue_datas), key=_by_name)),
        tuple(sorted(map(_broker_data, wire.broker_datas), key=_by_name)),
        wire.order_topic_conf if wire.HasField("order_topic_conf") else None,
        tuple(sorted((row.cluster_name, row.broker_addr, tuple(row.filter_servers)) for row in wire.filter_servers)),
    )


def _queue_data(wire: pb.QueueData) -> QueueData:
    numbers = {"read_queue_nums": wire.read_queue_nums, "write_queue_nums": wire.write_queue_nums}
    for field, number in (numbers | {"mapping.total_queue_nums": wire.mapping.total_queue_nums}).items():
        if not 0 <= number <= MAX_QUEUE_NUMS:
            raise ValueError(f"{field} of broker {wire.broker_name!r} is {number}, not 0 to {MAX_QUEUE_NUMS}")
    return _queue_data_of(
        wire.broker_name,
        wire.cluster_name,
        wire.read_queue_nums,
        wire.write_queue_nums,
        wire.perm,
        wire.topic_sys_flag,
        _mapping(wire) if wire.HasField("mapping") else None,
    )


def _mapping(wire: pb.QueueData) -> StaticMapping:
    mapping = wire.mapping
    if len(mapping.topic_queue_ids) != len(mapping.broker_queue_ids):
        raise ValueError(
            f"mapping of broker {wire.broker_name!r} has {len(mapping.topic_queue_ids)} topic_queue_ids "
            f"and {len(mapping.broker_queue_ids)} broker_queue_ids, which must be as many"
        )
    queue_ids = zip(mapping.topic_queue_ids, mapping.broker_queue_ids, strict=True)
    return StaticMapping(
        mapping.scope, mapping.total_queue_nums, mapping.epoch, mapping.dirty, tuple(sorted(queue_ids))
    )


def _broker_data(wire: pb.BrokerData) -> BrokerData:
    return _broker_data_of(
        wire.broker_name,
        wire.cluster_name,
        tuple(sorted((addr.broker_id, addr.broker_addr) for addr in wire.broker_addrs)),
        wire.zone_name if wire.HasField("zone_name") else None,
        wire.enable_acting_master if wire.HasField("enable_acting_master") else None,
        tuple(wire.unconfirmed_broker_ids),
        tuple(sorted((addr.broker_id, *label) for addr in wire.broker_addrs for label in addr.labels.items())),
    )


def _by_name(data: QueueData | BrokerData) -> tuple[str, str]:
    return data.broker_name, data.cluster_name
