"""Kinds of topics, by their names: RocketMQ's conventions."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

AUTO_CREATE_TOPIC = "TBW102"
"""The template of topics that are made by sending to them (TopicValidator.AUTO_CREATE_TOPIC_KEY_TOPIC)."""

_SYSTEM_PREFIX = "rmq_sys_"
_SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC,
        "BenchmarkTest",
        "OFFSET_MOVED_EVENT",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "SCHEDULE_TOPIC_XXXX",
        "SELF_TEST_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)
_REPLY_SUFFIX = "_REPLY_TOPIC"
"""After a cluster's name: answers of consumers to requests (MixAll.REPLY_TOPIC_POSTFIX)."""


class TopicKind(StrEnum):
    """What a topic is for."""

    NORMAL = "normal"
    """Messages of an application."""
    RETRY = "retry"
    """What a consumer group could not process and gets again (MixAll.RETRY_GROUP_TOPIC_PREFIX)."""
    DEAD_LETTER = "dead-letter"
    """What a consumer group could never process (MixAll.DLQ_GROUP_TOPIC_PREFIX)."""
    SYSTEM = "system"
    """A broker's own."""


def is_system_name(topic: str) -> bool:
    """Whether every broker has a topic of this name for itself (RocketMQ: TopicValidator.isSystemTopic)."""
    return topic in _SYSTEM_TOPICS or topic.startswith(_SYSTEM_PREFIX)


def kind_of(topic: str, named_after: Collection[str] = ()) -> TopicKind:
    """The kind of a topic.

    Args:
        topic: Its name.
        named_after: Names of clusters and brokers, which have topics of their own name.
    """
    if topic.startswith("%RETRY%"):
        return TopicKind.RETRY
    if topic.startswith("%DLQ%"):
        return TopicKind.DEAD_LETTER
    system = is_system_name(topic) or topic in named_after or topic.removesuffix(_REPLY_SUFFIX) in named_after
    return TopicKind.SYSTEM if system else TopicKind.NORMAL
