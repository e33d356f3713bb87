"""The topicQueueMapping.json that RocketMQ 5's TopicQueueMappingManager writes next to topics.json, decoded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from json import JSONDecodeError
from pathlib import Path
from typing import Any

import structlog

from broker_agent.topics.table import DataVersion, TopicConfigTable, TopicQueueMapping
from broker_agent.topics.topics_json import (
    INT32_MAX,
    INT64_MAX,
    LOGGED_TOPICS,
    decoded,
    integer_of,
    object_of,
    parsed,
    text_of,
    version_of,
)
from namesrv_common.topic_names import MAX_NAME_LENGTH, MAX_QUEUE_NUMS, check_name, check_topic

_FILE_NAME = "topicQueueMapping.json"
_NUMBER = re.compile(r"0|[1-9]\d{0,9}", re.ASCII)
_TEXT_OR_NUMBER_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|(?P<before>[{,]\s*)(?P<key>-?\d+)(?=\s*:)')

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TopicQueueMappings:
    """All mappings of a broker and their version."""

    data_version: DataVersion = field(default_factory=lambda: DataVersion(0, 0))
    mappings: Mapping[str, TopicQueueMapping] = field(default_factory=dict)
    """By topic."""
    skipped: frozenset[str] = frozenset()
    """Topics whose mapping breaks a rule."""
    problem: str | None = None
    """What is wrong with the first of them."""

    def put_into(self, table: TopicConfigTable) -> TopicConfigTable:
        """The table with these mappings, under a version that is another one after a change of either file.

        A mapping whose topic is not in the table is left out.
        """
        if self == TopicQueueMappings():
            return table
        topics, mine = table.data_version, self.data_version
        version = DataVersion(
            max(topics.timestamp_millis, mine.timestamp_millis),
            min(topics.counter + mine.counter, INT64_MAX - 1),  # there is always a next one
            topics.state_version,
        )
        found = ((table.get(name), mapping) for name, mapping in self.mappings.items())
        return table.with_topics((replace(topic, mapping=mapping) for topic, mapping in found if topic), version)


def mappings_path(topics: Path) -> Path:
    """Where a broker keeps the mappings whose topics.json that is."""
    return topics.with_name(_FILE_NAME)


def decode_mappings(content: bytes) -> TopicQueueMappings:
    """The mappings in the content of a topicQueueMapping.json. Raises BrokenTopics if it is malformed."""
    return decoded(content, lambda text: _mappings(_lenient(text)))


def log_skipped_mappings(path: Path, mappings: TopicQueueMappings) -> None:
    """Logs which topics lack their mapping because that breaks a rule."""
    if mappings.skipped:
        names = [name[:MAX_NAME_LENGTH] for name in sorted(mappings.skipped)[:LOGGED_TOPICS]]
        count, problem = len(mappings.skipped), mappings.problem
        _log.warning("mappings_skipped", file=str(path), count=count, topics=names, problem=problem)


def _lenient(text: str) -> object:
    """JSON in which numbers may be keys without quotes, as fastjson writes them."""
    try:
        return parsed(text)
    except JSONDecodeError:
        return parsed(_TEXT_OR_NUMBER_KEY.sub(_with_quoted_key, text))


def _with_quoted_key(match: re.Match[str]) -> str:
    return match[0] if match["key"] is None else f'{match["before"]}"{match["key"]}"'


def _mappings(document: object) -> TopicQueueMappings:
    root = object_of("the file", document)
    mappings: dict[str, TopicQueueMapping] = {}
    skipped: set[str] = set()
    problem: str | None = None
    for name, value in object_of("topicQueueMappingInfoMap", root.get("topicQueueMappingInfoMap")).items():
        try:
            mappings[name] = _mapping(name, value)
        except ValueError as error:
            problem = problem or f"mapping of {name[:MAX_NAME_LENGTH]!r}: {error}"
            skipped.add(name)
    version = version_of(object_of("dataVersion", root.get("dataVersion")))
    return TopicQueueMappings(version, mappings, frozenset(skipped), problem)


def _mapping(name: str, value: object) -> TopicQueueMapping:
    """A mapping as the broker would register it (RocketMQ: TopicQueueMappingDetail.cloneAsMappingInfo)."""
    check_topic(name)
    detail = object_of("its value", value)
    scope = text_of("scope", detail.get("scope", ""))
    if scope:
        try:
            check_name(scope)
        except ValueError as error:
            raise ValueError(f"scope {error}") from error
    total = integer_of(detail, "totalQueues", INT32_MAX)
    hosted = object_of("hostedQueues", detail.get("hostedQueues", {}))
    queue_ids = tuple(sorted(_queue_ids(text_of("bname", detail.get("bname", "")), hosted, total)))
    return TopicQueueMapping(
        scope, total, integer_of(detail, "epoch", INT64_MAX), detail.get("dirty") is True, queue_ids
    )


def _queue_ids(broker_name: str, hosted: Mapping[str, Any], total: int) -> Iterator[tuple[int, int]]:
    """The queues that are here now: the last entry of each queue's history counts (RocketMQ: buildIdMap)."""
    for key, history in hosted.items():
        if not (_NUMBER.fullmatch(key) and int(key) < total):
            raise ValueError(f"hostedQueues has the queue {key[:MAX_NAME_LENGTH]!r}, must be 0 to {total - 1}")
        if not isinstance(history, list):
            raise ValueError(f"hostedQueues[{key}] must be a list")  # noqa: TRY004 - bad input, not a bad call
        if history:
            last = object_of(f"hostedQueues[{key}]", history[-1])
            if last.get("bname") == broker_name:
                yield int(key), integer_of(last, "queueId", MAX_QUEUE_NUMS - 1)
