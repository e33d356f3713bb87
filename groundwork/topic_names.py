"""Topic names: their rules and their kinds."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from enum import StrEnum

# Rules for the names of clusters, brokers and topics, and for topics' settings: the same on both sides.

MAX_NAME_LENGTH = 127
"""Longest cluster, broker or topic name (RocketMQ: Validators.TOPIC_MAX_LENGTH)."""

MAX_RETRY_TOPIC_LENGTH = 255
"""Longest name of a retry or dead-letter topic, which holds a prefix and a group name (RocketMQ 5)."""

MAX_QUEUE_NUMS = 65_535
"""Most queues of a topic on a broker. Every client makes an object for each; a slip must not make it millions."""

MAX_MAPPED_QUEUES = 100_000
"""Most queues in the mappings of all static topics of one registration: each takes some hundred bytes of memory,
and all of them are in routes."""

MAX_PERM = 7
"""All permission bits: read 4, write 2, inherit 1 (RocketMQ: PermName)."""

SYNC_MEMBER_TOPIC_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Topics by which the members of a group find each other. They carry no messages (TopicValidator)."""

_NAME = re.compile(r"[%|a-zA-Z0-9_.-]+")
"""RocketMQ's rule for topics, and the dot: brokers named after hosts have topics of their own name."""

_LONG_TOPIC_PREFIXES = ("%RETRY%", "%DLQ%")
_SHOWN_CHARACTERS = 40


def check_name(name: str, max_length: int = MAX_NAME_LENGTH) -> str:
    """Checks the name of a cluster or a broker and returns it. Raises ValueError, which leaves out a long name."""
    if not name:
        raise ValueError("is empty")
    if len(name) > max_length:
        raise ValueError(f"{_shown(name)} has {len(name)} characters, at most {max_length}")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{_shown(name)} has characters other than % | a-z A-Z 0-9 _ . -")
    return name


def _shown(name: str) -> str:
    return repr(name) if len(name) <= _SHOWN_CHARACTERS else f"{name[:_SHOWN_CHARACTERS]!r}..."


def check_topic(topic: str) -> str:
    """Checks the name of a topic and returns it (RocketMQ: Validators.checkTopic). Raises ValueError, too."""
    return check_name(topic, MAX_RETRY_TOPIC_LENGTH if topic.startswith(_LONG_TOPIC_PREFIXES) else MAX_NAME_LENGTH)


# Kinds of topics, by their names: RocketMQ's conventions. Whatever tells topics of applications from others asks here.

AUTO_CREATE_TOPIC = "TBW102"
"""The template of topics that are made by sending to them (TopicValidator.AUTO_CREATE_TOPIC_KEY_TOPIC)."""

_SYSTEM_PREFIXES = ("rmq_sys_", "RMQ_SYS_")
"""RocketMQ tests for the first only; each of its topics with the second is in its list, or is of a later release."""
_SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC,
        "BenchmarkTest",
        "CHECKPOINT_TOPIC",
        "DefaultHeartBeatSyncerTopic",  # RocketMQ's proxies tell each other their clients by it
        "OFFSET_MOVED_EVENT",
        "SCHEDULE_TOPIC_XXXX",
        "SELF_TEST_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)
REPLY_SUFFIX = "_REPLY_TOPIC"
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
    return topic in _SYSTEM_TOPICS or topic.startswith(_SYSTEM_PREFIXES)


def kind_of(topic: str, named_after: Collection[str] = ()) -> TopicKind:
    """The kind of a topic. ``named_after`` has the clusters and brokers, each of which has a topic of its own name."""
    if topic.startswith("%RETRY%"):
        return TopicKind.RETRY
    if topic.startswith("%DLQ%"):
        return TopicKind.DEAD_LETTER
    system = is_system_name(topic) or topic in named_after or topic.removesuffix(REPLY_SUFFIX) in named_after
    return TopicKind.SYSTEM if system else TopicKind.NORMAL


def is_application(topic: str, named_after: Collection[str] = ()) -> bool:
    """Whether a topic is for messages of an application. Only these can be missed by somebody."""
    return kind_of(topic, named_after) is TopicKind.NORMAL


def listing_order(topic: str, named_after: Collection[str] = ()) -> tuple[bool, str]:
    """The place of a topic in a list for people: by name, topics of applications before all others."""
    return not is_application(topic, named_after), topic


def application_first(topics: Iterable[str], named_after: Collection[str] = ()) -> list[str]:
    """Topics in the order of a list for people."""
    return sorted(topics, key=lambda topic: listing_order(topic, named_after))
