"""The JSON files of a broker, read whole and checked: topics.json, and the mappings of static topics next to it."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from namesrv_api.v1.route_data_pb2 import StaticTopicMapping

from broker_agent.topics.table import MAX_STATE_VERSION, DataVersion, TopicConfig, TopicConfigTable, UnknownParts
from namesrv_common.files.regular_files import read_at_most
from namesrv_common.topic_names import MAX_NAME_LENGTH, MAX_PERM, MAX_QUEUE_NUMS, check_name, check_topic

# Any JSON file of a broker: its values are checked, with errors that name file, field and rule.

MAX_FILE_BYTES = 1024**3
"""Largest topics.json that is read: a million topics take some 250 MB, and a wrong path must not fill memory."""
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
ContentT = TypeVar("ContentT")


class BrokenTopics(ValueError):
    """A text is not a topics.json. The error names topic, field, value and rule in one line."""


class UnreadableTopics(BrokenTopics):
    """The file is there but may not be read: its content may be good."""


def load_file(path: Path, decode: Callable[[bytes], ContentT]) -> ContentT:
    """Reads a file and decodes it.

    Raises:
        UnreadableTopics: The file is there but may not be read.
        BrokenTopics: It is missing, or ``decode`` refuses it; the message names file, topic, field, value and rule.
    """
    try:
        content = read_at_most(path, MAX_FILE_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BrokenTopics(f"{path}: {error.strerror}") from error
    except OSError as error:
        raise UnreadableTopics(f"{path}: {error.strerror}") from error
    try:
        return decode(content)
    except BrokenTopics as error:
        raise BrokenTopics(f"{path}: {error}") from error


def decoded(content: bytes, read: Callable[[str], ContentT]) -> ContentT:
    """What a function reads from the text of a file; its ValueErrors become errors about the file.

    Raises:
        BrokenTopics: The content is not UTF-8, empty, no JSON, or breaks a rule.
    """
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


def parsed(text: str) -> object:
    """The value of a JSON text whose keys are unique. Raises ValueError."""
    return json.loads(
        text, object_pairs_hook=_object_without_duplicates, parse_constant=_no_number, parse_float=_finite
    )


def _typed(kind: type[ContentT], rule: str, field: str, value: object) -> ContentT:
    """A value of this type. Raises ValueError."""
    if not isinstance(value, kind):
        raise ValueError(f"{field} is {value!r:.40}, must be {rule}")  # noqa: TRY004 - bad input, not a bad call
    return value


text_of, flag_of = partial(_typed, str, "a text"), partial(_typed, bool, "true or false")


def object_of(field: str, value: object) -> Mapping[str, Any]:
    """An object. Raises ValueError."""
    if not isinstance(value, dict):
        shown = "missing" if value is None else repr(value)[:40]
        raise ValueError(f"{field} is {shown}, must be a JSON object")  # noqa: TRY004 - bad input, not a bad call
    return value


def integer_of(field: str, value: object, *, highest: int) -> int:
    """An integer. Raises ValueError."""
    if type(value) is int and 0 <= value <= highest:  # a JSON true is an int, too, to isinstance
        return value
    shown = "missing" if value is None else f"{value!r:.40}"
    raise ValueError(f"{field} is {shown}, must be an integer from 0 to {highest}")


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuses a key that is given twice: JSON does not define what it means."""
    members = dict(pairs)
    if len(members) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice[:MAX_NAME_LENGTH]!r} is there twice in one JSON object")
    return members


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text[:40]} is no number that JSON has room for")


def _without_bad(
    what: str, values: Mapping[str, Any], read: Callable[[str, object], ContentT]
) -> tuple[dict[str, ContentT], dict[str, Any], str | None]:
    """Reads the members of an object, by their names. Returns also those that break a rule, and the first problem."""
    good, bad, problem = dict[str, ContentT](), dict[str, Any](), None
    for name, value in values.items():
        try:
            good[name] = read(name, value)
        except ValueError as error:
            problem = problem or f"{what} {name[:MAX_NAME_LENGTH]!r}: {error}"
            bad[name] = value
    return good, bad, problem


def version_of(version: Mapping[str, Any]) -> DataVersion:
    """The dataVersion of a file. Raises ValueError."""
    try:
        timestamp = integer_of("timestamp", version.get("timestamp"), highest=INT64_MAX)
        counter = integer_of("counter", version.get("counter"), highest=INT64_MAX - 1)  # there is always a next one
        state = version.get("stateVersion", 0)
        state_version = integer_of("stateVersion", state, highest=MAX_STATE_VERSION)
        return DataVersion(timestamp, counter, state_version if "stateVersion" in version else None)
    except ValueError as error:
        raise ValueError(f"dataVersion: {error}") from error


# topics.json, decoded, and encoded byte for byte.

_ROOT_FIELDS = frozenset({"dataVersion", "topicConfigTable"})
_VERSION_FIELDS = frozenset({"counter", "timestamp", "stateVersion"})


def decode_topics(content: bytes) -> TopicConfigTable:
    """Makes the table of the content of a topics.json. Topics that break a rule are among its unknown parts.

    JSON fields that are not known are kept: versions of RocketMQ differ in them.

    Raises:
        BrokenTopics: It is not a topics.json.
    """
    return decoded(content, lambda text: _table(parsed(text)))


def _table(document: object) -> TopicConfigTable:
    root = object_of("the file", document)
    version = object_of("dataVersion", root.get("dataVersion"))
    values = object_of("topicConfigTable", root.get("topicConfigTable"))
    topics, skipped, problem = _without_bad("topic", values, _checked_topic)
    return TopicConfigTable(
        version_of(version),
        tuple(topics.values()),
        UnknownParts(_unknown(root, _ROOT_FIELDS), _unknown(version, _VERSION_FIELDS), skipped or None, problem),
    )


def _checked_topic(name: str, value: object) -> TopicConfig:
    try:
        check_topic(name)
    except ValueError as error:
        raise ValueError(f"topicName {error}") from error
    topic = object_of("its value", value)
    if topic.get("topicName", name) != name:
        raise ValueError(f"topicName is {topic['topicName']!r:.40}, must be the topic's key in topicConfigTable")
    values = {attribute: read(key, topic.get(key, absent)) for key, (attribute, read, absent) in _TOPIC_FIELDS.items()}
    return TopicConfig(name, unknown=_unknown(topic, _NAMED_TOPIC_FIELDS), **values)


def _attributes(field: str, value: object) -> Mapping[str, str] | None:
    if value is None:
        return None
    attributes = object_of(field, value)
    for key, text in attributes.items():
        text_of(f"{field}[{key[:MAX_NAME_LENGTH]!r}]", text)
    return attributes


_queues = partial(integer_of, highest=MAX_QUEUE_NUMS)
_TOPIC_FIELDS: Mapping[str, tuple[str, Callable[[str, object], Any], object]] = {
    "order": ("order", flag_of, False),
    "readQueueNums": ("read_queue_nums", _queues, None),
    "writeQueueNums": ("write_queue_nums", _queues, None),
    "perm": ("perm", partial(integer_of, highest=MAX_PERM), None),
    "topicSysFlag": ("topic_sys_flag", partial(integer_of, highest=INT32_MAX), 0),
    "topicFilterType": ("topic_filter_type", text_of, "SINGLE_TAG"),
    "attributes": ("attributes", _attributes, None),
}
"""By the key in the file: the attribute of ``TopicConfig``, the check of the value, and the value if it is absent."""
_NAMED_TOPIC_FIELDS = frozenset({"topicName", *_TOPIC_FIELDS})


def _unknown(values: Mapping[str, Any], known: frozenset[str]) -> Mapping[str, Any] | None:
    return {key: value for key, value in values.items() if key not in known} or None


def encode_topics(table: TopicConfigTable) -> bytes:
    """A table as RocketMQ's fastjson prints it: fields by name, tabs, no space after a colon, no line at the end."""
    unknown, version = table.unknown, table.data_version
    of_version = {"counter": version.counter, "timestamp": version.timestamp_millis}
    if version.state_version is not None:
        of_version["stateVersion"] = version.state_version
    topics = {topic.topic_name: _encoded_topic(topic) for topic in table.topics}
    for name, value in (unknown.skipped_topics or {}).items():
        topics.setdefault(name, value)
    root = {"dataVersion": _by_name(of_version, unknown.data_version), "topicConfigTable": topics}
    text = json.dumps(_by_name(root, unknown.root), ensure_ascii=False, indent="\t", separators=(",", ":"))
    # Half of a surrogate pair is legal in JSON but not in UTF-8, so it is written as JSON's escape.
    return text.encode("utf-8", errors="backslashreplace")


def _encoded_topic(topic: TopicConfig) -> dict[str, Any]:
    members = {key: getattr(topic, attribute) for key, (attribute, _, _) in _TOPIC_FIELDS.items()}
    if topic.attributes is None:
        del members["attributes"]
    return _by_name({"topicName": topic.topic_name, **members}, topic.unknown)


def _by_name(members: Mapping[str, Any], unknown: Mapping[str, Any] | None) -> dict[str, Any]:
    """All members in the order of their names."""
    return dict(sorted({**members, **(unknown or {})}.items()))


# The topicQueueMapping.json that RocketMQ 5's TopicQueueMappingManager writes next to topics.json, decoded.

_FILE_NAME = "topicQueueMapping.json"
_NUMBER = re.compile(r"0|[1-9]\d{0,9}", re.ASCII)
_TEXT_OR_NUMBER_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|(?P<before>[{,]\s*)(?P<key>-?\d+)(?=\s*:)')


@dataclass(frozen=True, slots=True)
class TopicQueueMappings:
    """All mappings of a broker and their version."""

    data_version: DataVersion = field(default_factory=lambda: DataVersion(0, 0))
    mappings: Mapping[str, StaticTopicMapping] = field(default_factory=dict)
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


def _lenient(text: str) -> object:
    """JSON in which numbers may be keys without quotes, as fastjson writes them."""
    try:
        return parsed(text)
    except json.JSONDecodeError:
        return parsed(_TEXT_OR_NUMBER_KEY.sub(_with_quoted_key, text))


def _with_quoted_key(match: re.Match[str]) -> str:
    return match[0] if match["key"] is None else f'{match["before"]}"{match["key"]}"'


def _mappings(document: object) -> TopicQueueMappings:
    root = object_of("the file", document)
    values = object_of("topicQueueMappingInfoMap", root.get("topicQueueMappingInfoMap"))
    mappings, skipped, problem = _without_bad("mapping of", values, _mapping)
    version = version_of(object_of("dataVersion", root.get("dataVersion")))
    return TopicQueueMappings(version, mappings, frozenset(skipped), problem)


def _mapping(name: str, value: object) -> StaticTopicMapping:
    """A mapping as the broker would register it (RocketMQ: TopicQueueMappingDetail.cloneAsMappingInfo)."""
    check_topic(name)
    detail = object_of("its value", value)
    scope = text_of("scope", detail.get("scope", ""))
    if scope:
        try:
            check_name(scope)
        except ValueError as error:
            raise ValueError(f"scope {error}") from error
    total = integer_of("totalQueues", detail.get("totalQueues"), highest=INT32_MAX)
    hosted = object_of("hostedQueues", detail.get("hostedQueues", {}))
    queue_ids = sorted(_queue_ids(text_of("bname", detail.get("bname", "")), hosted, total))
    return StaticTopicMapping(
        scope=scope,
        total_queue_nums=total,
        epoch=integer_of("epoch", detail.get("epoch"), highest=INT64_MAX),
        dirty=detail.get("dirty") is True,
        topic_queue_ids=[topic_queue_id for topic_queue_id, _ in queue_ids],
        broker_queue_ids=[broker_queue_id for _, broker_queue_id in queue_ids],
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
                yield int(key), integer_of("queueId", last.get("queueId"), highest=MAX_QUEUE_NUMS - 1)
