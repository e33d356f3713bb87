"""A broker's topic table: an immutable value with a version, and the topics every broker has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from namesrv_api.v1 import route_data_pb2

from namesrv_common.topic_names import AUTO_CREATE_TOPIC, SYNC_MEMBER_TOPIC_PREFIX

MAX_TOPICS = 200_000
"""Most topics of a broker: what a name server takes in one registration."""

MAX_STATE_VERSION = 2**62
"""Largest state version that a file or a call may bring: later roles always have a higher one."""


@dataclass(frozen=True, slots=True)
class DataVersion:
    """Version of a topic table (RocketMQ: DataVersion)."""

    timestamp_millis: int
    """When the version was made, milliseconds since the Unix epoch."""
    counter: int
    """Number of changes so far."""
    state_version: int | None = None
    """Raised by a change of role (RocketMQ 5); None in a file of RocketMQ 4."""

    def next(self, now_millis: int, state_version: int | None = None) -> DataVersion:
        """The version after a change.

        Its counter is larger and its time no earlier, whatever the clock does (RocketMQ trusts the clock).

        Args:
            now_millis: Now, milliseconds since the Unix epoch.
            state_version: The new one, after a change of role; the old one stays by default.
        """
        return DataVersion(
            timestamp_millis=max(now_millis, self.timestamp_millis),
            counter=self.counter + 1,
            state_version=self.state_version if state_version is None else state_version,
        )


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One topic as the broker configures it (RocketMQ: TopicConfig)."""

    topic_name: str
    read_queue_nums: int
    """Queues that can be read from."""
    write_queue_nums: int
    """Queues that can be written to."""
    perm: int
    """Permission bits: read 4, write 2, inherit 1."""
    topic_sys_flag: int = 0
    """Flag bits: 1 unit, 2 unit subscription."""
    order: bool = False
    """Whether its messages are ordered."""
    topic_filter_type: str = "SINGLE_TAG"
    """How tags are filtered: SINGLE_TAG or MULTI_TAG."""
    attributes: Mapping[str, str] | None = field(default=None, hash=False)
    """Attributes of RocketMQ 5; None in a file of RocketMQ 4."""
    unknown: Mapping[str, Any] | None = field(default=None, hash=False)
    """Fields of its JSON object that this version does not know: they are written back unchanged."""
    mapping: route_data_pb2.StaticTopicMapping | None = field(default=None, hash=False)
    """Of a static topic: which of its queues are here. From a file of its own, and never in this one. Never changed."""


@dataclass(frozen=True, slots=True)
class UnknownParts:
    """The members of a topics.json other than the table, to be written back unchanged."""

    root: Mapping[str, Any] | None = None
    """Unknown fields of the file."""
    data_version: Mapping[str, Any] | None = None
    """Unknown fields of the version."""
    skipped_topics: Mapping[str, Any] | None = None
    """Topics that break a rule, by name."""
    problem: str | None = None
    """What is wrong with the first of them."""


@dataclass(frozen=True, slots=True)
class TopicConfigTable:
    """All topics of a broker and their version. Never changed, only replaced."""

    data_version: DataVersion
    topics: tuple[TopicConfig, ...]
    """In the order of the file."""
    unknown: UnknownParts = field(default_factory=UnknownParts)
    """The other parts of the file."""
    _by_name: Mapping[str, TopicConfig] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {topic.topic_name: topic for topic in self.topics})

    @property
    def too_many_topics(self) -> str | None:
        """Why no name server would take the table in one registration; None if its topics are not too many."""
        count = len(self.topics)
        if count <= MAX_TOPICS:
            return None
        return (
            f"it has {count:,} topics, over the limit of {MAX_TOPICS:,}: no name server takes more in one "
            "registration; delete topics, or spread them over more brokers"
        )

    def get(self, name: str) -> TopicConfig | None:
        return self._by_name.get(name)

    def with_topics(self, topics: Iterable[TopicConfig], version: DataVersion) -> TopicConfigTable:
        """The table with these topics put in: each at its old position, or at the end if it is new."""
        merged = {**self._by_name, **{topic.topic_name: topic for topic in topics}}
        return replace(self, data_version=version, topics=tuple(merged.values()))

    def without(self, name: str, version: DataVersion) -> TopicConfigTable:
        return replace(
            self, data_version=version, topics=tuple(topic for topic in self.topics if topic.topic_name != name)
        )


def changed_topics(before: TopicConfigTable, after: TopicConfigTable) -> tuple[TopicConfig, ...] | None:
    """The topics that are new or different; None if no increment can say it, because a topic was deleted."""
    if any(after.get(topic.topic_name) is None for topic in before.topics):
        return None
    return tuple(topic for topic in after.topics if before.get(topic.topic_name) != topic)


# The topics that every broker has, as RocketMQ's TopicConfigManager makes them.

_INHERIT, _READ_WRITE = 1, 6
_DEFAULT_QUEUES = 16
"""Queues of a topic that says nothing (TopicConfig.defaultReadQueueNums)."""
_AUTO_CREATED_QUEUES = 8
"""Most queues of a topic that is made by sending to it (defaultTopicQueueNums)."""
_BENCHMARK_QUEUES = 1024
_SCHEDULE_QUEUES = 18
"""One for each level of delay (SCHEDULE_TOPIC_QUEUE_NUM)."""
_REVIVE_QUEUES = 8
"""RocketMQ 5's reviveQueueNum."""


def built_in_topics(cluster: str, broker_name: str) -> tuple[TopicConfig, ...]:
    """The built-in topics with RocketMQ's defaults, in its order; those of version 5 at the end."""
    inherited = _INHERIT | _READ_WRITE
    topics = [
        _topic("SELF_TEST_TOPIC", 1),
        _topic(AUTO_CREATE_TOPIC, _AUTO_CREATED_QUEUES, inherited),
        _topic("BenchmarkTest", _BENCHMARK_QUEUES),
        _topic(cluster, _DEFAULT_QUEUES, inherited),
        _topic(broker_name, 1, inherited),
        _topic("OFFSET_MOVED_EVENT", 1),
        _topic("SCHEDULE_TOPIC_XXXX", _SCHEDULE_QUEUES),
        _topic(f"{cluster}_REPLY_TOPIC", 1),
        _topic(f"rmq_sys_REVIVE_LOG_{cluster}", _REVIVE_QUEUES),
        _topic(f"{SYNC_MEMBER_TOPIC_PREFIX}{broker_name}", 1, _INHERIT),
        _topic("RMQ_SYS_TRANS_HALF_TOPIC", 1),
        _topic("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1),
    ]
    by_name = {topic.topic_name: topic for topic in topics}
    return tuple(by_name.values())  # a broker named like its cluster has one topic for both


def _topic(name: str, queues: int, perm: int = _READ_WRITE) -> TopicConfig:
    return TopicConfig(name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
