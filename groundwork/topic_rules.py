"""Rules for the names of clusters, brokers and topics, and for topics' settings: the same on both sides."""

from __future__ import annotations

import re

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
    """Checks the name of a cluster or a broker and returns it.

    Raises:
        ValueError: It breaks the rule; the text says how, and does not repeat a name that is too long.
    """
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
