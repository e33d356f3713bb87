"""What the tables should hold, written as plainly as possible: one dictionary of brokers, one of queues."""

from __future__ import annotations

from dataclasses import dataclass, field

from namesrv.core.records import BrokerKey, DataVersion, LiveKey, QueueNumbers, TopicConfig


@dataclass
class Broker:
    group: BrokerKey
    broker_id: int
    version: DataVersion
    channel: str | None
    last_heard: float


@dataclass
class ReferenceModel:
    brokers: dict[LiveKey, Broker] = field(default_factory=dict)
    queues: dict[tuple[str, BrokerKey], QueueNumbers] = field(default_factory=dict)
    filters: dict[LiveKey, tuple[str, ...]] = field(default_factory=dict)
    open_channels: set[str] = field(default_factory=set)

    def register(
        self,
        key: LiveKey,
        broker: Broker,
        topics: list[TopicConfig],
        filter_servers: tuple[str, ...] | None,
    ) -> None:
        before = self.brokers.get(key)
        if before is not None and before.group != broker.group:
            self.remove(key)
            before = None
        for other, holder in list(self.brokers.items()):
            if other != key and (holder.group, holder.broker_id) == (broker.group, broker.broker_id):
                del self.brokers[other]
                self.filters.pop(other, None)
        changed = before is None or (before.broker_id, before.version) != (broker.broker_id, broker.version)
        self.brokers[key] = broker
        if broker.broker_id == 0 and changed:
            for topic, numbers in topics:
                self.queues[topic, broker.group] = numbers
        if filter_servers is not None:
            self.filters[key] = filter_servers
            if not filter_servers:
                del self.filters[key]

    def is_deposed(self, key: LiveKey, broker: Broker) -> bool:
        """Whether another address holds the id with a higher state version."""
        return any(
            other != key
            and (holder.group, holder.broker_id) == (broker.group, broker.broker_id)
            and holder.version.state_version > broker.version.state_version
            for other, holder in self.brokers.items()
        )

    def register_topic(self, topic: str, queues: dict[BrokerKey, QueueNumbers]) -> bool:
        """Returns whether it is done: every group must be there."""
        if not queues.keys() <= self.group_addrs().keys():
            return False
        self.queues.update({(topic, group): numbers for group, numbers in queues.items()})
        return True

    def remove(self, key: LiveKey) -> None:
        gone = self.brokers.pop(key)
        self.filters.pop(key, None)
        if all(broker.group != gone.group for broker in self.brokers.values()):
            self.queues = {place: topic for place, topic in self.queues.items() if place[1] != gone.group}

    def end_channel(self, channel: str) -> None:
        self.open_channels.discard(channel)
        for key in [key for key, broker in self.brokers.items() if broker.channel == channel]:
            self.remove(key)

    def scan(self, now: float, timeout: float) -> None:
        for key in [key for key, broker in self.brokers.items() if broker.last_heard + timeout < now]:
            self.remove(key)

    def visible(self) -> object:
        """Everything that a reader of routes can see."""
        return (
            {key: (broker.group, broker.broker_id, broker.version) for key, broker in self.brokers.items()},
            dict(self.queues),
            dict(self.filters),
        )

    def lists(self) -> dict[str, list[str]]:
        """Topics by cluster, by first flags and system topics, as the lists should have them."""
        first_flag = {topic: self.queues[topic, group][3] for topic, group in sorted(self.queues, reverse=True)}
        groups = self.group_addrs()
        return {
            "all": sorted(first_flag),
            "c1": sorted({topic for topic, group in self.queues if group.cluster_name == "c1"}),
            "unit": sorted(topic for topic, flag in first_flag.items() if flag & 1),
            "sub": sorted(topic for topic, flag in first_flag.items() if flag & 2),
            "sub not unit": sorted(topic for topic, flag in first_flag.items() if flag & 3 == 2),
            "system": sorted({name for group in groups for name in group}),
        }

    def group_addrs(self) -> dict[BrokerKey, dict[int, str]]:
        groups: dict[BrokerKey, dict[int, str]] = {}
        for key, broker in self.brokers.items():
            groups.setdefault(broker.group, {})[broker.broker_id] = key.broker_addr
        return groups
