"""A broker's topic table, and its reader from the topics.json that RocketMQ's TopicConfigManager writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import structlog

from broker_agent.errors import AgentError
from broker_agent.topics.json_fields import integer_of, object_of, parsed, text_of
from broker_agent.topics.static_topic import TopicQueueMapping
from groundwork.checksums import is_damaged
from groundwork.files import open_regular, read_as_it_is
from groundwork.topic_names import MAX_NAME_LENGTH, MAX_PERM, MAX_QUEUE_NUMS, check_topic

OnBadTopic = Literal["refuse", "skip"]
"""What to do with a file that has topics that break a rule: refuse it whole, or go on without them."""

MAX_FILE_BYTES = 1024**3
"""Largest topics.json that is read: a million topics take some 250 MB, and a wrong path must not fill memory."""
MAX_STATE_VERSION = 2**62
"""Largest state version that a file or a call may bring: there is always room for the roles to come."""
LOGGED_TOPICS = 20
"""Most skipped topics that are named in the log."""

ContentT = TypeVar("ContentT")

_MAX_INT32, _MAX_INT64 = 2**31 - 1, 2**63 - 1
_ROOT_FIELDS = frozenset({"dataVersion", "topicConfigTable"})
_VERSION_FIELDS = frozenset({"counter", "timestamp", "stateVersion"})
_TOPIC_FIELDS = frozenset(
    {
        "attributes",
        "order",
        "perm",
        "readQueueNums",
        "topicFilterType",
        "topicName",
        "topicSysFlag",
        "writeQueueNums",
    }
)

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class BrokenTopics(AgentError):
    """A text is not a topics.json. The error names topic, field, value and rule in one line."""


class UnreadableTopics(BrokenTopics):
    """The file is there but may not be read: its content may be good."""


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
    """Fields of its JSON object that this version does not know: they are written back as they came."""
    mapping: TopicQueueMapping | None = None
    """Of a static topic: which of its queues are here. From a file of its own, and never in this one."""


@dataclass(frozen=True, slots=True)
class UnknownParts:
    """The parts of a topics.json beside the table, to be written back as they came."""

    root: Mapping[str, Any] | None = None
    """Unknown fields of the file."""
    data_version: Mapping[str, Any] | None = None
    """Unknown fields of the version."""
    skipped_topics: Mapping[str, Any] | None = None
    """Topics that break a rule, by name, where the setting says that such are skipped."""


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

    def get(self, name: str) -> TopicConfig | None:
        """The topic of that name, or None."""
        return self._by_name.get(name)

    def with_topics(self, topics: Iterable[TopicConfig], version: DataVersion) -> TopicConfigTable:
        """The table with these topics put in: each in its old place, or at the end if it is new."""
        merged = {**self._by_name, **{topic.topic_name: topic for topic in topics}}
        return replace(self, data_version=version, topics=tuple(merged.values()))

    def without(self, name: str, version: DataVersion) -> TopicConfigTable:
        """The table without that topic."""
        return replace(
            self, data_version=version, topics=tuple(topic for topic in self.topics if topic.topic_name != name)
        )


def changed_topics(before: TopicConfigTable, after: TopicConfigTable) -> tuple[TopicConfig, ...] | None:
    """The increment from one table to another: topics that are new or different.

    Returns:
        None if no increment can say it, because a topic has gone.
    """
    if any(after.get(topic.topic_name) is None for topic in before.topics):
        return None
    return tuple(topic for topic in after.topics if before.get(topic.topic_name) != topic)


def load_topic_config_table(path: Path, on_bad_topic: OnBadTopic = "refuse") -> TopicConfigTable:
    """Reads a topics.json.

    JSON fields that are not known are kept: versions of RocketMQ differ in them.

    Raises:
        UnreadableTopics: The file is there but may not be read.
        BrokenTopics: It is missing, damaged, empty, no JSON, or breaks a rule; the message names file, topic, field,
            value and rule.
    """
    return load_file(path, lambda content: decode_topics(content, on_bad_topic))


def load_file(path: Path, decode: Callable[[bytes], ContentT]) -> ContentT:
    """Reads a file of the broker's and decodes it. Raises as ``load_topic_config_table``."""
    try:
        with open_regular(path) as stream:
            content = read_as_it_is(stream, MAX_FILE_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BrokenTopics(f"{path}: {error.strerror}") from error
    except OSError as error:
        raise UnreadableTopics(f"{path}: {error.strerror}") from error
    if is_damaged(path, content):
        raise BrokenTopics(f"{path}: does not match its checksum")
    try:
        return decode(content)
    except BrokenTopics as error:
        raise BrokenTopics(f"{path}: {error}") from error


def decode_topics(content: bytes, on_bad_topic: OnBadTopic = "refuse") -> TopicConfigTable:
    """Makes the table of the content of a topics.json. Topics that are skipped are named in its unknown parts.

    Raises:
        BrokenTopics: It is not a topics.json, or has a topic that breaks a rule and bad topics are refused.
    """
    return decoded(content, lambda text: _table(parsed(text), on_bad_topic))


def decoded(content: bytes, read: Callable[[str], ContentT]) -> ContentT:
    """What a function reads from the text of a file; its ValueErrors become errors about the file.

    Raises:
        BrokenTopics: The content is too large, not UTF-8, empty, no JSON, or breaks a rule.
    """
    if len(content) > MAX_FILE_BYTES:
        raise BrokenTopics(f"the file is larger than {MAX_FILE_BYTES} bytes")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BrokenTopics(f"byte {error.start} is not UTF-8") from error
    if not text.strip():
        raise BrokenTopics("the file is empty")
    try:
        return read(text)
    except json.JSONDecodeError as error:
        raise BrokenTopics(f"not JSON, or cut off: {error}") from error
    except (ValueError, RecursionError) as error:
        raise BrokenTopics(str(error)) from error


def log_skipped_topics(path: Path, table: TopicConfigTable) -> None:
    """Logs once which topics a table lacks because they break a rule."""
    skipped = table.unknown.skipped_topics
    if skipped:
        names = [name[:MAX_NAME_LENGTH] for name in list(skipped)[:LOGGED_TOPICS]]
        _log.warning("topics_skipped", file=str(path), count=len(skipped), topics=names)


def _table(document: object, on_bad_topic: OnBadTopic) -> TopicConfigTable:
    root = object_of("the file", document)
    version = object_of("dataVersion", root.get("dataVersion"))
    values = object_of("topicConfigTable", root.get("topicConfigTable"))
    topics: list[TopicConfig] = []
    skipped: dict[str, Any] = {}
    for name, value in values.items():
        try:
            topics.append(_topic(name, value))
        except ValueError:
            if on_bad_topic == "refuse":
                raise
            skipped[name] = value
    return TopicConfigTable(
        version_of(version),
        tuple(topics),
        UnknownParts(_unknown(root, _ROOT_FIELDS), _unknown(version, _VERSION_FIELDS), skipped or None),
    )


def version_of(version: Mapping[str, Any]) -> DataVersion:
    """The dataVersion of a file. Raises ValueError."""
    try:
        return DataVersion(
            timestamp_millis=integer_of(version, "timestamp", _MAX_INT64),
            counter=integer_of(version, "counter", _MAX_INT64 - 1),  # there is always a next one
            state_version=integer_of(version, "stateVersion", MAX_STATE_VERSION) if "stateVersion" in version else None,
        )
    except ValueError as error:
        raise ValueError(f"dataVersion: {error}") from error


def _topic(name: str, value: object) -> TopicConfig:
    try:
        return _checked_topic(name, value)
    except ValueError as error:
        raise ValueError(f"topic {name[:MAX_NAME_LENGTH]!r}: {error}") from error


def _checked_topic(name: str, value: object) -> TopicConfig:
    try:
        check_topic(name)
    except ValueError as error:
        raise ValueError(f"topicName {error}") from error
    topic = object_of("its value", value)
    if topic.get("topicName", name) != name:
        raise ValueError(f"topicName is {topic['topicName']!r:.40}, must be the topic's key in topicConfigTable")
    order = topic.get("order", False)
    if type(order) is not bool:
        raise ValueError(f"order is {order!r:.40}, must be true or false")
    return TopicConfig(
        topic_name=name,
        read_queue_nums=integer_of(topic, "readQueueNums", MAX_QUEUE_NUMS),
        write_queue_nums=integer_of(topic, "writeQueueNums", MAX_QUEUE_NUMS),
        perm=integer_of(topic, "perm", MAX_PERM),
        topic_sys_flag=integer_of(topic, "topicSysFlag", _MAX_INT32) if "topicSysFlag" in topic else 0,
        order=order,
        topic_filter_type=text_of("topicFilterType", topic.get("topicFilterType", "SINGLE_TAG")),
        attributes=_attributes(topic.get("attributes")),
        unknown=_unknown(topic, _TOPIC_FIELDS),
    )


def _attributes(value: object) -> Mapping[str, str] | None:
    if value is None:
        return None
    attributes = object_of("attributes", value)
    for key, text in attributes.items():
        text_of(f"attributes[{key[:MAX_NAME_LENGTH]!r}]", text)
    return attributes


def _unknown(values: Mapping[str, Any], known: frozenset[str]) -> Mapping[str, Any] | None:
    if values.keys() <= known:
        return None
    return {key: value for key, value in values.items() if key not in known}
