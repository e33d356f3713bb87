"""The topics that every broker has, as RocketMQ's TopicConfigManager makes them."""

from __future__ import annotations

from dataclasses import dataclass

from broker_agent.topics.table import TopicConfig
from groundwork.topic_names import AUTO_CREATE_TOPIC, MAX_NAME_LENGTH, SYNC_MEMBER_TOPIC_PREFIX, is_system_name

_INHERIT, _READ_WRITE = 1, 6
_DEFAULT_QUEUES = 16
"""Queues of a topic that says nothing (TopicConfig.defaultReadQueueNums)."""
_BENCHMARK_QUEUES = 1024
_SCHEDULE_QUEUES = 18
"""One for each level of delay (SCHEDULE_TOPIC_QUEUE_NUM)."""
_REVIVE_QUEUES = 8
"""RocketMQ 5's reviveQueueNum."""


@dataclass(frozen=True, slots=True)
class BuiltInTopicsConfig:
    """The settings of the built-in topics. Fields are named after RocketMQ's BrokerConfig and have its defaults."""

    cluster_name: str
    broker_name: str
    auto_create_topic_enable: bool = True
    """Whether producers may make topics by sending to them."""
    default_topic_queue_nums: int = 8
    """Queues of TBW102: most that a topic made by sending gets."""
    cluster_topic_enable: bool = True
    """Whether the topic named after the cluster can be read and written."""
    broker_topic_enable: bool = True
    """Whether the topic named after the broker can be read and written."""
    trace_topic_enable: bool = False
    """Whether the broker keeps traces of messages."""
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"
    """Where it keeps them."""


def built_in_topics(config: BuiltInTopicsConfig) -> tuple[TopicConfig, ...]:
    """The built-in topics, in the order that RocketMQ makes them in; those of version 5 at the end.

    A topic with the cluster's or the broker's name in its own is left out if its name would be too long.
    """
    inherited = _INHERIT | _READ_WRITE
    queues, cluster = config.default_topic_queue_nums, config.cluster_name
    topics = [
        _topic("SELF_TEST_TOPIC", 1),
        *([_topic(AUTO_CREATE_TOPIC, queues, inherited)] if config.auto_create_topic_enable else []),
        _topic("BenchmarkTest", _BENCHMARK_QUEUES),
        _topic(cluster, _DEFAULT_QUEUES, inherited if config.cluster_topic_enable else _INHERIT),
        _topic(config.broker_name, 1, inherited if config.broker_topic_enable else _INHERIT),
        _topic("OFFSET_MOVED_EVENT", 1),
        _topic("SCHEDULE_TOPIC_XXXX", _SCHEDULE_QUEUES),
        *([_topic(config.msg_trace_topic_name, 1)] if config.trace_topic_enable else []),
        _topic(f"{cluster}_REPLY_TOPIC", 1),
        _topic(f"rmq_sys_REVIVE_LOG_{cluster}", _REVIVE_QUEUES),
        _topic(f"{SYNC_MEMBER_TOPIC_PREFIX}{config.broker_name}", 1, _INHERIT),
        _topic("RMQ_SYS_TRANS_HALF_TOPIC", 1),
        _topic("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1),
    ]
    by_name = {topic.topic_name: topic for topic in topics if len(topic.topic_name) <= MAX_NAME_LENGTH}
    return tuple(by_name.values())  # a broker named like its cluster has one topic for both


def is_system_topic(name: str, built_in: frozenset[str]) -> bool:
    """Whether a topic is the broker's own, which no call may change (RocketMQ: TopicValidator.isSystemTopic)."""
    return name in built_in or is_system_name(name)


def _topic(name: str, queues: int, perm: int = _READ_WRITE) -> TopicConfig:
    return TopicConfig(name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
