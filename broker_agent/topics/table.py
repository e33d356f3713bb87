"""A broker's topic table, and its reader from the topics.json that RocketMQ's TopicConfigManager writes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import structlog

from broker_agent.errors import AgentError
from groundwork.files.bounded_read import open_regular, read_as_it_is
from groundwork.files.checksums import is_damaged
from groundwork.topic_rules import MAX_NAME_LENGTH, MAX_PERM, MAX_QUEUE_NUMS, check_topic

OnBadTopic = Literal["refuse", "skip"]
"""What to do with a file that has topics that break a rule: refuse it whole, or go on without them."""

MAX_FILE_BYTES = 1024**3
"""Largest topics.json that is read: a million topics take some 250 MB, and a wrong path must not fill memory."""
MAX_STATE_VERSION = 2**62
"""Largest state version that a file or a call may bring: there is always room for the roles to come."""
LOGGED_TOPICS = 20
"""Most skipped topics that are named in the log."""

_MAX_INT32, _MAX_INT64 = 2**31 - 1, 2**63 - 1
_MISSING = object()
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
        return decode_topics(content, on_bad_topic)
    except BrokenTopics as error:
        raise BrokenTopics(f"{path}: {error}") from error


def decode_topics(content: bytes, on_bad_topic: OnBadTopic = "refuse") -> TopicConfigTable:
    """Makes the table of the content of a topics.json. Topics that are skipped are named in its unknown parts.

    Raises:
        BrokenTopics: It is not a topics.json, or has a topic that breaks a rule and bad topics are refused.
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
        return _table(_parsed(text), on_bad_topic)
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


def _parsed(text: str) -> object:
    return json.loads(
        text,
        object_pairs_hook=_object_without_duplicates,
        parse_constant=_no_number,
        parse_float=_finite,
    )


def _table(document: object, on_bad_topic: OnBadTopic) -> TopicConfigTable:
    root = _object("the file", document)
    version = _object("dataVersion", root.get("dataVersion"))
    values = _object("topicConfigTable", root.get("topicConfigTable"))
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
        _version(version),
        tuple(topics),
        UnknownParts(_unknown(root, _ROOT_FIELDS), _unknown(version, _VERSION_FIELDS), skipped or None),
    )


def _version(version: Mapping[str, Any]) -> DataVersion:
    try:
        return DataVersion(
            timestamp_millis=_integer(version, "timestamp", _MAX_INT64),
            counter=_integer(version, "counter", _MAX_INT64 - 1),  # there is always a next one
            state_version=_integer(version, "stateVersion", MAX_STATE_VERSION) if "stateVersion" in version else None,
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
    topic = _object("its value", value)
    if topic.get("topicName", name) != name:
        raise ValueError(f"topicName is {topic['topicName']!r:.40}, must be the topic's key in topicConfigTable")
    order = topic.get("order", False)
    if type(order) is not bool:
        raise ValueError(f"order is {order!r:.40}, must be true or false")
    return TopicConfig(
        topic_name=name,
        read_queue_nums=_integer(topic, "readQueueNums", MAX_QUEUE_NUMS),
        write_queue_nums=_integer(topic, "writeQueueNums", MAX_QUEUE_NUMS),
        perm=_integer(topic, "perm", MAX_PERM),
        topic_sys_flag=_integer(topic, "topicSysFlag", _MAX_INT32) if "topicSysFlag" in topic else 0,
        order=order,
        topic_filter_type=_text("topicFilterType", topic.get("topicFilterType", "SINGLE_TAG")),
        attributes=_attributes(topic.get("attributes")),
        unknown=_unknown(topic, _TOPIC_FIELDS),
    )


def _attributes(value: object) -> Mapping[str, str] | None:
    if value is None:
        return None
    attributes = _object("attributes", value)
    for key, text in attributes.items():
        _text(f"attributes[{key[:MAX_NAME_LENGTH]!r}]", text)
    return attributes


def _text(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{field} is {value!r:.40}, must be a text")  # noqa: TRY004 - bad input, not a bad call
    return value


def _object(field: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        shown = "missing" if value is None else repr(value)[:40]
        raise ValueError(f"{field} is {shown}, must be a JSON object")  # noqa: TRY004 - bad input, not a bad call
    return value


def _integer(values: Mapping[str, Any], field: str, highest: int) -> int:
    value = values.get(field, _MISSING)
    if type(value) is int and 0 <= value <= highest:  # a JSON true is an int, too, to isinstance
        return value
    shown = "missing" if value is _MISSING else f"{value!r:.40}"
    raise ValueError(f"{field} is {shown}, must be an integer from 0 to {highest}")


def _unknown(values: Mapping[str, Any], known: frozenset[str]) -> Mapping[str, Any] | None:
    if values.keys() <= known:
        return None
    return {key: value for key, value in values.items() if key not in known}


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuses a key that is given twice: JSON does not define what it means."""
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:MAX_NAME_LENGTH]!r} is there twice in one JSON object")
    return members


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text[:40]} is no number that JSON has room for")
