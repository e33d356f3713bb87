"""A broker's topics.json, as RocketMQ's TopicConfigManager writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker_agent.errors import StartError
from groundwork.topic_rules import MAX_NAME_LENGTH, MAX_PERM, MAX_QUEUE_NUMS, check_topic

_MAX_INT32, _MAX_INT64 = 2**31 - 1, 2**63 - 1


@dataclass(frozen=True, slots=True)
class DataVersion:
    """Version of a topic table (RocketMQ: DataVersion)."""

    timestamp_millis: int
    """When the version was made, milliseconds since the Unix epoch."""
    counter: int
    """Number of changes so far."""
    state_version: int | None = None
    """Raised by a change of role (RocketMQ 5); None in a file of RocketMQ 4."""


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
    topic_sys_flag: int
    """Flag bits: 1 unit, 2 unit subscription."""


@dataclass(frozen=True, slots=True)
class TopicConfigTable:
    """All topics of a broker and their version."""

    data_version: DataVersion
    topics: tuple[TopicConfig, ...]
    """In the order of the file."""


def load_topic_config_table(path: Path) -> TopicConfigTable:
    """Reads a topics.json.

    JSON fields that are not known are passed over: versions of RocketMQ differ in them.

    Raises:
        StartError: The file is missing, empty, no JSON, or breaks a rule; the message names file, topic, field, value
            and rule.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StartError(f"{path}: byte {error.start} is not UTF-8") from error
    if not text.strip():
        raise StartError(f"{path}: the file is empty")
    try:
        document = json.loads(text, object_pairs_hook=_object_without_duplicates)
        return _table(document)
    except json.JSONDecodeError as error:
        raise StartError(f"{path}: not JSON, or cut off: {error}") from error
    except (ValueError, RecursionError) as error:
        raise StartError(f"{path}: {error}") from error


def _table(document: object) -> TopicConfigTable:
    root = _object("", "the file", document)
    version = _object("", "dataVersion", root.get("dataVersion"))
    topics = _object("", "topicConfigTable", root.get("topicConfigTable"))
    return TopicConfigTable(
        DataVersion(
            timestamp_millis=_integer("dataVersion: ", version, "timestamp", _MAX_INT64),
            counter=_integer("dataVersion: ", version, "counter", _MAX_INT64),
            state_version=_integer("dataVersion: ", version, "stateVersion", _MAX_INT64)
            if "stateVersion" in version
            else None,
        ),
        tuple(_topic(name, value) for name, value in topics.items()),
    )


def _topic(name: str, value: object) -> TopicConfig:
    where = f"topic {name[:MAX_NAME_LENGTH]!r}: "
    try:
        check_topic(name)
    except ValueError as error:
        raise ValueError(f"{where}topicName {error}") from error
    topic = _object(where, "its value", value)
    if topic.get("topicName", name) != name:
        raise ValueError(f"{where}topicName is {topic['topicName']!r}, must be the topic's key in topicConfigTable")
    return TopicConfig(
        topic_name=name,
        read_queue_nums=_integer(where, topic, "readQueueNums", MAX_QUEUE_NUMS),
        write_queue_nums=_integer(where, topic, "writeQueueNums", MAX_QUEUE_NUMS),
        perm=_integer(where, topic, "perm", MAX_PERM),
        topic_sys_flag=_integer(where, topic, "topicSysFlag", _MAX_INT32) if "topicSysFlag" in topic else 0,
    )


def _object(where: str, field: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        shown = "missing" if value is None else repr(value)[:40]
        raise ValueError(f"{where}{field} is {shown}, must be a JSON object")  # noqa: TRY004 - bad input, not a bad call
    return value


def _integer(where: str, values: Mapping[str, Any], field: str, highest: int) -> int:
    if field not in values:
        raise ValueError(f"{where}{field} is missing, must be an integer from 0 to {highest}")
    value = values[field]
    if type(value) is not int or not 0 <= value <= highest:  # a JSON true is an int, too, to isinstance
        raise ValueError(f"{where}{field} is {value!r:.40}, must be an integer from 0 to {highest}")
    return value


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON leaves open what a key given twice means, so neither meaning is guessed."""
    members = dict(pairs)
    if len(members) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} is there twice in one JSON object")
    return members
