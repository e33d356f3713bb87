"""Names and labels: the rules of all, the kinds of topics, and patterns of broker groups."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

# Rules for the names of clusters, brokers and topics, and for topics' settings: the same on both sides.

MAX_NAME_LENGTH = 255
"""Longest name of a cluster, a broker or a zone, in bytes of UTF-8. The name of a host has at most 253."""

MAX_TOPIC_LENGTH = 400
"""Longest topic name, in bytes of UTF-8. RocketMQ's longest are retry topics of pop consumption: a prefix, a group and
a topic have up to 390."""

MAX_QUEUE_NUMS = 65_535
"""Most queues of a topic on a broker. Every client makes an object for each; a slip must not make it millions."""

MAX_PERM = 7
"""All permission bits: read 4, write 2, inherit 1 (RocketMQ: PermName)."""

SYNC_MEMBER_TOPIC_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Topics by which the members of a group find each other. They carry no messages (TopicValidator)."""

SHOWN_CHARACTERS = 40
"""Characters of a name that an error or a log line repeats."""


def check_name(name: str, max_length: int = MAX_NAME_LENGTH) -> str:
    """Checks the name of a cluster or a broker and returns it. Raises ValueError, which leaves out a long name.

    RocketMQ's name server takes any text. Characters that are not printable are refused: they would garble logs and
    terminals, or hide in them.
    """
    problem = name_problem(name, max_length)
    if problem is not None:
        raise ValueError(f"{shown_name(name)} {problem}" if name else problem)
    return name


def name_problem(name: str, max_length: int) -> str | None:
    """Returns what is wrong with a name, or None."""
    if not name:
        return "is empty"
    if not name.isprintable():
        return "has characters that are not printable"
    size = len(name.encode())
    return f"has {size} bytes, at most {max_length}" if size > max_length else None


def shown_name(name: str) -> str:
    """Returns the name as an error repeats it."""
    return repr(name) if len(name) <= SHOWN_CHARACTERS else f"{name[:SHOWN_CHARACTERS]!r}..."


def check_topic(topic: str) -> str:
    """Checks the name of a topic and returns it. Raises ValueError as ``check_name``."""
    return check_name(topic, MAX_TOPIC_LENGTH)


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
    """The purpose of a topic."""

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
    """The kind of a topic. ``named_after`` has the clusters and brokers that have a topic of their own name."""
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
    """Returns the sort key of a topic in a list for people: by name, topics of applications before all others."""
    return not is_application(topic, named_after), topic


def application_first(topics: Iterable[str], named_after: Collection[str] = ()) -> list[str]:
    """Topics in the order of a list for people."""
    return sorted(topics, key=lambda topic: listing_order(topic, named_after))


# Patterns of broker groups, ``CLUSTER/BROKER``: the notation of permits and of the command line.

_NAMES = re.compile(r"[^/@]+/[^/@]+")
"""A pattern matches an at sign in a name by ``*``, and a slash by nothing."""

Group = tuple[str, str]
"""The names of a broker group: cluster and broker."""


@dataclass(frozen=True, slots=True)
class GroupPattern:
    """Names of broker groups, ``CLUSTER/BROKER``, where ``*`` stands for any characters of a name."""

    text: str
    _compiled: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> GroupPattern:
        """Reads a pattern. Raises ValueError if the text is no pattern."""
        if not (_NAMES.fullmatch(text) and text.isprintable()):
            raise ValueError(f"{text!r} is not CLUSTER/BROKER; * stands for any characters of a name")
        return cls(text, re.compile(re.escape(text).replace(r"\*", "[^/]*")))

    def matches(self, group: Group) -> bool:
        return self._compiled.fullmatch("/".join(group)) is not None


# Labels of brokers: their rules, which are those of Kubernetes, and how people read them.

MAX_LABELS = 16
"""Most labels of one broker: each is in every route of its topics."""

MAX_LABEL_NAME_LENGTH = 63
"""Longest name in a key of a label, and longest value, in characters."""

MAX_LABEL_PREFIX_LENGTH = 253
"""Longest prefix of a key of a label, before the slash, in characters: a DNS subdomain."""

Labels = tuple[tuple[str, str], ...]
"""Keys and values, sorted by key."""

_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_PART_OF_DOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOMAIN = re.compile(rf"{_PART_OF_DOMAIN}(\.{_PART_OF_DOMAIN})*")
_LABEL_RULE = "must have ASCII letters, digits, '-', '_' and '.' only, and a letter or digit at both ends"
_DOMAIN_RULE = "must be a DNS subdomain"
_SHOWN_OF_LABEL = 70
"""Characters of a key or a value that an error repeats."""


def label_problem(labels: Mapping[str, str]) -> str | None:
    """Returns what is wrong with a key or a value, or None. Callers must check how many there are."""
    for key, value in labels.items():
        prefix, slash, name = key.rpartition("/")
        problem = (
            (_part_problem("prefix", prefix, MAX_LABEL_PREFIX_LENGTH, _DOMAIN, _DOMAIN_RULE) if slash else None)
            or _part_problem("name", name, MAX_LABEL_NAME_LENGTH, _LABEL, _LABEL_RULE)
            or (_part_problem("value", value, MAX_LABEL_NAME_LENGTH, _LABEL, _LABEL_RULE) if value else None)
        )
        if problem is not None:
            return f"has the key {key[:_SHOWN_OF_LABEL]!r}, whose {problem}"
    return None


def _part_problem(part: str, text: str, most: int, form: re.Pattern[str], rule: str) -> str | None:
    if len(text) > most:
        return f"{part} has {len(text)} characters, at most {most}"
    return None if form.fullmatch(text) else f"{part} {text[:_SHOWN_OF_LABEL]!r} {rule}"


def shown_labels(labels: Mapping[str, str]) -> list[str]:
    """Labels as people write them, sorted by key."""
    return [f"{key}={value}" for key, value in sorted(labels.items())]
