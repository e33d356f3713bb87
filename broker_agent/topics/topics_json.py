"""The topics.json of RocketMQ's TopicConfigManager: decoded, and encoded byte for byte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from json.encoder import encode_basestring as _quoted
from pathlib import Path
from typing import Any

import structlog

from broker_agent.topics.json_files import (
    INT32_MAX,
    decoded,
    integer_of,
    load_file,
    object_of,
    parsed,
    text_of,
    version_of,
)
from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable, UnknownParts
from namesrv_common.topic_names import MAX_NAME_LENGTH, MAX_PERM, MAX_QUEUE_NUMS, check_topic

LOGGED_TOPICS = 20
"""Most skipped topics that are named in the log."""
_ROOT_FIELDS = frozenset({"dataVersion", "topicConfigTable"})
_VERSION_FIELDS = frozenset({"counter", "timestamp", "stateVersion"})
_TOPIC_FIELDS = frozenset(
    {"attributes", "order", "perm", "readQueueNums", "topicFilterType", "topicName", "topicSysFlag", "writeQueueNums"}
)

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def load_topic_config_table(path: Path) -> TopicConfigTable:
    """Reads a topics.json.

    JSON fields that are not known are kept: versions of RocketMQ differ in them.

    Raises:
        UnreadableTopics: The file is there but may not be read.
        BrokenTopics: It is missing, damaged, empty, no JSON, or breaks a rule; the message names file, topic, field,
            value and rule.
    """
    return load_file(path, decode_topics, is_ours=True)


def decode_topics(content: bytes) -> TopicConfigTable:
    """Makes the table of the content of a topics.json. Topics that break a rule are among its unknown parts.

    Raises:
        BrokenTopics: It is not a topics.json.
    """
    return decoded(content, lambda text: _table(parsed(text)))


def log_skipped_topics(path: Path, table: TopicConfigTable) -> None:
    """Logs once which topics a table lacks because they break a rule."""
    skipped = table.unknown.skipped_topics
    if skipped:
        names = [name[:MAX_NAME_LENGTH] for name in list(skipped)[:LOGGED_TOPICS]]
        problem = table.unknown.problem
        _log.warning("topics_skipped", file=str(path), count=len(skipped), topics=names, problem=problem)


def _table(document: object) -> TopicConfigTable:
    root = object_of("the file", document)
    version = object_of("dataVersion", root.get("dataVersion"))
    values = object_of("topicConfigTable", root.get("topicConfigTable"))
    topics: list[TopicConfig] = []
    skipped: dict[str, Any] = {}
    problem: str | None = None
    for name, value in values.items():
        try:
            topics.append(_decoded_topic(name, value))
        except ValueError as error:
            problem = problem or str(error)
            skipped[name] = value
    return TopicConfigTable(
        version_of(version),
        tuple(topics),
        UnknownParts(_unknown(root, _ROOT_FIELDS), _unknown(version, _VERSION_FIELDS), skipped or None, problem),
    )


def _decoded_topic(name: str, value: object) -> TopicConfig:
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
        topic_sys_flag=integer_of(topic, "topicSysFlag", INT32_MAX) if "topicSysFlag" in topic else 0,
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


def encode_topics(table: TopicConfigTable) -> bytes:
    """A table as RocketMQ's fastjson prints it: fields by name, tabs, no space after a colon, no line at the end."""
    unknown = table.unknown
    # The rule for names leaves nothing in them to escape.
    topics = {f'"{topic.topic_name}"': _encoded_topic(topic) for topic in table.topics}
    for name, value in (unknown.skipped_topics or {}).items():
        topics.setdefault(_quoted(name), _json(value, 2))
    root = _members(unknown.root, 1) | {
        '"dataVersion"': _object(_version(table.data_version, unknown.data_version), 1),
        '"topicConfigTable"': _object(topics, 1),
    }
    # Half of a surrogate pair is legal in JSON but not in UTF-8, so it is written as JSON's escape.
    return _object(_by_name(root), 0).encode("utf-8", errors="backslashreplace")


def _version(version: DataVersion, unknown: Mapping[str, Any] | None) -> dict[str, str]:
    members = _members(unknown, 2) | {'"counter"': str(version.counter), '"timestamp"': str(version.timestamp_millis)}
    if version.state_version is not None:
        members['"stateVersion"'] = str(version.state_version)
    return _by_name(members)


def _encoded_topic(topic: TopicConfig) -> str:
    members: dict[str, str] = {}
    if topic.attributes is not None:
        texts = {_quoted(name): _quoted(value) for name, value in topic.attributes.items()}
        members['"attributes"'] = _object(texts, 3)
    members['"order"'] = "true" if topic.order else "false"
    members['"perm"'] = str(topic.perm)
    members['"readQueueNums"'] = str(topic.read_queue_nums)
    members['"topicFilterType"'] = _quoted(topic.topic_filter_type)
    members['"topicName"'] = f'"{topic.topic_name}"'
    members['"topicSysFlag"'] = str(topic.topic_sys_flag)
    members['"writeQueueNums"'] = str(topic.write_queue_nums)
    if topic.unknown:
        members = _by_name(members | _members(topic.unknown, 3))
    return _object(members, 2)


def _members(values: Mapping[str, Any] | None, depth: int) -> dict[str, str]:
    return {_quoted(name): _json(value, depth) for name, value in (values or {}).items()}


def _by_name(members: Mapping[str, str]) -> dict[str, str]:
    return dict(sorted(members.items()))


def _object(members: Mapping[str, str], depth: int) -> str:
    """A JSON object at a depth of tabs; names and values are JSON already."""
    if not members:
        return "{}"
    tabs = "\t" * (depth + 1)
    lines = f",\n{tabs}".join([f"{name}:{value}" for name, value in members.items()])
    return f"{{\n{tabs}{lines}\n{tabs[1:]}}}"


def _json(value: Any, depth: int) -> str:
    """Any JSON value at a depth of tabs. Line breaks inside texts are escaped, so all others are layout."""
    text = json.dumps(value, ensure_ascii=False, indent="\t", separators=(",", ":"))
    return text.replace("\n", "\n" + "\t" * depth)
