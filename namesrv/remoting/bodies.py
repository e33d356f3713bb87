"""RegisterBrokerBody as records: topics, static mappings and filter servers."""

from __future__ import annotations

import hashlib
import itertools
import math
import operator
import re
import zlib
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from namesrv import limits
from namesrv.core.errors import crc32_not_match, invalid_field, limit_exceeded
from namesrv.core.model import DataVersion, QueueNumbers, StaticMapping, TopicTableFingerprint
from namesrv.core.pace import FEW, breathe, paced
from namesrv.core.slices import sorted_in_slices, with_breaths
from namesrv.remoting.limits import MAX_INFLATED_BYTES, MAX_PART_BYTES
from namesrv.remoting.wire.fields import is_address
from namesrv.remoting.wire.json_reader import ObjectReader, read_json
from namesrv_common.topic_names import (
    MAX_MAPPED_QUEUES,
    MAX_NAME_LENGTH,
    MAX_QUEUE_NUMS,
    SHOWN_CHARACTERS,
    check_name,
    topic_problem,
)

# Numbers, as RocketMQ reads them.

_LOWEST_INT, _HIGHEST_INT = -(2**31), 2**31 - 1
_LOWEST_LONG, _HIGHEST_LONG = -(2**63), 2**63 - 1
_NUMBER_TEXT = re.compile(r"([+-]?[0-9]{1,19})(\.[0-9]*)?")


def whole_number(value: object, default: int = 0) -> int:
    """Returns a number that may be written as text or with a fraction, which is cut off (RocketMQ: fastjson).

    The default stands for null, an empty text and the text ``null``. Raises ValueError if it is no number.
    """
    match value:
        case int():
            return int(value)
        case None | "" | "null":
            return default
        case float() if math.isfinite(value):
            return int(value)
        case str() if (found := _NUMBER_TEXT.fullmatch(value)) is not None:
            return int(found[1])
        case _:
            raise ValueError("is no number")


# The queues of a topic on a broker.

DEFAULT_QUEUES = 16
DEFAULT_PERM = 6
"""Numbers that a TopicConfig leaves out (RocketMQ: TopicConfig)."""

_QUEUE_MEMBERS = (
    ("readQueueNums", DEFAULT_QUEUES, 0, MAX_QUEUE_NUMS),
    ("writeQueueNums", DEFAULT_QUEUES, 0, MAX_QUEUE_NUMS),
    ("perm", DEFAULT_PERM, _LOWEST_INT, _HIGHEST_INT),
    ("topicSysFlag", 0, _LOWEST_INT, _HIGHEST_INT),
)
"""Each with its default and its lowest and highest value."""


def queue_numbers(value: Mapping[str, object]) -> QueueNumbers:
    """Returns the numbers of a TopicConfig or a QueueData. Raises ValueError, which names the first that is wrong."""
    read, write, perm, flag = (
        _number(value, name, default, lowest, highest) for name, default, lowest, highest in _QUEUE_MEMBERS
    )
    return read, write, perm, flag


def _number(value: Mapping[str, object], name: str, default: int, lowest: int, highest: int) -> int:
    try:
        number = whole_number(value.get(name), default)
    except ValueError:
        number = None
    if number is None or not lowest <= number <= highest:
        raise ValueError(f"has a {name} that is no number from {lowest} to {highest}")
    return number


# The mapping of a static topic, as brokers of RocketMQ 5 report it.

_MAPPING_MEMBERS = frozenset({"topic", "scope", "totalQueues", "epoch", "dirty", "currIdMap"})
"""Members of a mapping that are kept."""
_QUEUE = re.compile(r"[0-9]{1,10}")


def _take_mapping(reader: ObjectReader) -> object:
    """Takes a value as ``_mapping_of`` wants it, with breaths: a topic may have tens of thousands of queues.

    Raises:
        INVALID_FIELD: It is no JSON.
        LIMIT_EXCEEDED: It has too many queues.
    """
    if not reader.is_at_object:
        return reader.take()
    inner = reader.opened()
    value: dict[str, Any] = {}
    for name in paced(inner):
        taken = _take_queue_ids(inner) if name == "currIdMap" and inner.is_at_object else inner.take()
        if name in _MAPPING_MEMBERS:
            value[name] = taken
    reader.close(inner)
    return value


def _mapping_of(value: object) -> StaticMapping:
    """Checks a TopicQueueMappingInfo, with breaths. Raises ValueError, whose text says what is wrong with it."""
    if not isinstance(value, dict):
        raise ValueError("has a mapping that is no object")  # noqa: TRY004 - it is input, and not our mistake
    scope, ids = ("" if value.get("scope") is None else value["scope"]), value.get("currIdMap", {})
    try:
        check_name(scope or "none")
    except (AttributeError, TypeError, ValueError):
        raise ValueError(f"has a mapping whose scope is no name of at most {MAX_NAME_LENGTH} bytes") from None
    total = _number(value, "totalQueues", 0, 0, _HIGHEST_INT)
    epoch = _number(value, "epoch", 0, _LOWEST_LONG, _HIGHEST_LONG)
    if not isinstance(ids, dict | None):
        raise ValueError(f"has a mapping whose currIdMap is none of {MAX_QUEUE_NUMS} numbers")  # noqa: TRY004
    breathe()
    return StaticMapping(scope, total, epoch, value.get("dirty") is True, _in_order(ids or {}))


def _take_queue_ids(reader: ObjectReader) -> dict[int, int] | str:
    """Takes a currIdMap; a text stands for one that is not kept."""
    inner = reader.opened()
    ids: dict[int, int] = {}
    count, is_sound = 0, True
    for count, name in enumerate(paced(inner), 1):
        if count > MAX_MAPPED_QUEUES:
            raise limit_exceeded("queues in mappings of one registration", count, MAX_MAPPED_QUEUES)
        try:
            value = whole_number(inner.take())
        except ValueError:
            value = -1
        if _QUEUE.fullmatch(name) is not None and 0 <= value <= _HIGHEST_INT and (queue := int(name)) <= _HIGHEST_INT:
            ids[queue] = value
        else:
            is_sound = False
    reader.close(inner)
    return ids if is_sound and count <= MAX_QUEUE_NUMS else "odd"


def _in_order(ids: dict[int, int]) -> tuple[tuple[int, int], ...]:
    """The queues by ascending queue of the topic: nearly always they come so."""
    is_in_order = all(map(operator.lt, ids, itertools.islice(ids, 1, None)))
    queues: Iterable[int] = ids if is_in_order else with_breaths(sorted_in_slices(ids))
    found = [(queue, ids[queue]) for queue in paced(queues)]
    breathe()  # the caller hashes them next
    return tuple(found)


# The topics of a registration's body: each is checked and taken, or passed over.

SKIPPED_NAMED = 3
"""Topics that are passed over and named in the log; the others are counted."""
_COMPRESSED_FIELDS = 5
"""Name, read queues, write queues, permission, filter type; attributes may follow."""

_TEXT = r'"[^"\\]*"'
_INT_NUMBER = r"(0|[1-9]\d{0,8})"
_PLAIN_TOPIC = re.compile(
    rf'(?:(?<=:)\{{|,)"([^"\\]+)":\{{(?:"attributes":\{{(?:{_TEXT}:{_TEXT}(?:,{_TEXT}:{_TEXT})*)?\}},)?'
    rf'"order":(?:false|true),"perm":{_INT_NUMBER},"readQueueNums":{_INT_NUMBER},"topicFilterType":{_TEXT},'
    rf'"topicName":"\1","topicSysFlag":{_INT_NUMBER},"writeQueueNums":{_INT_NUMBER}\}}'
)
"""A topic of a table, as RocketMQ writes it. It is found in a quarter of the time that a JSON parser takes, which reads
topics in any other form."""


@dataclass(slots=True)
class RegistrationBody:
    """The body of a registration: what of it this name server keeps."""

    data_version: DataVersion = field(default_factory=lambda: DataVersion(0, 0))
    topic_configs: dict[str, QueueNumbers] | None = field(default_factory=dict)
    """None: the table is the one that is held, and was not read."""
    filter_servers: tuple[str, ...] | None = ()
    """None leaves those of the broker as they are (RocketMQ: a null filterServerList)."""
    mappings: dict[str, StaticMapping] = field(default_factory=dict)
    """Static topics' mappings by topic."""
    mapped_queues: int = 0
    """Queues in these mappings."""
    table_fingerprint: TopicTableFingerprint | None = None
    """Of the topic table, if a mark can tell all that comes of it."""
    skipped: int = 0
    """Topics that break a rule."""
    problems: dict[str, str] = field(default_factory=dict)
    """What is wrong with the first of them, by the name."""
    odd_addresses: list[str] = field(default_factory=list)
    """Filter servers that are no addresses and were passed over, the first of them."""


class RegisteredTopics:
    """Takes topics, one by one, into a body."""

    def __init__(self, body: RegistrationBody, known_topics: Container[str]) -> None:
        """Begins without topics. ``known_topics`` are names that have been checked before."""
        self.body = body
        self.configs = body.topic_configs = dict[str, QueueNumbers]()
        self.tables = 0
        """Topic tables so far: honest bodies have one."""
        self._known = known_topics
        self._shared: dict[QueueNumbers, QueueNumbers] = {}
        self._of_texts: dict[tuple[str, ...], QueueNumbers] = {}
        """Numbers that are sound, by the texts that they were written as."""
        self._entries = 0
        """Topics that were read, also repeated ones and those that are passed over: each costs the same."""

    def add(self, key: str, value: object) -> None:
        """Adds a TopicConfig, or counts it as passed over. Raises LIMIT_EXCEEDED."""
        self._count(1)
        if not isinstance(value, dict):
            return self._skip(key, "is no object")
        topic = value.get("topicName") or key
        topic = topic if isinstance(topic, str) else str(topic)
        try:
            return self._add(topic, queue_numbers(value))
        except ValueError as error:
            return self._skip(topic, str(error))

    def add_plain(self, reader: ObjectReader) -> None:
        """Adds all topics that follow in the form in which RocketMQ writes them, up to one in another form.

        Raises LIMIT_EXCEEDED.
        """
        # This loop is the cost of a registration, so it makes as few calls as possible.
        text, at, configs, known, sound = reader.text, reader.at, self.configs, self._known, self._of_texts
        match, left = _PLAIN_TOPIC.match, FEW
        while (found := match(text, at)) is not None:
            at = found.end()
            topic, numbers = found[1], sound.get(found.group(2, 3, 4, 5))
            if numbers is not None and topic in known:
                configs[topic] = numbers
            else:
                self._add_found(topic, found.group(2, 3, 4, 5))
            left -= 1
            if not left:
                left = FEW
                self._count(FEW)
                breathe()
        self._count(FEW - left)
        reader.at = at

    def add_text(self, text: str) -> None:
        """Adds a TopicConfig in the form of compressed bodies: parts between blanks. Raises LIMIT_EXCEEDED."""
        self._count(1)
        parts = text.split(" ", _COMPRESSED_FIELDS)
        members = dict(zip(("readQueueNums", "writeQueueNums", "perm"), parts[1:4], strict=False))
        try:
            return self._add(parts[0], queue_numbers(members))
        except ValueError as error:
            return self._skip(parts[0], str(error))

    def add_mapping(self, key: str, reader: ObjectReader) -> None:
        """Takes a TopicQueueMappingInfo and adds it, or counts its topic as passed over."""
        value = _take_mapping(reader)
        topic = value.get("topic") or key if isinstance(value, dict) else key
        if not isinstance(topic, str):
            return self._skip(key, "has a mapping whose topic is no text")
        if topic not in self._known and topic not in self.configs and (problem := topic_problem(topic)) is not None:
            return self._skip(topic, problem)
        try:
            mapping = _mapping_of(value)
        except ValueError as error:
            return self._skip(topic, str(error))
        self.body.mappings[topic] = mapping
        self.body.mapped_queues += len(mapping.queue_ids)
        if self.body.mapped_queues > MAX_MAPPED_QUEUES:
            raise limit_exceeded("queues in mappings of one registration", self.body.mapped_queues, MAX_MAPPED_QUEUES)
        return None

    def _add_found(self, topic: str, texts: tuple[str, ...]) -> None:
        numbers = self._of_texts.get(texts)
        if numbers is None:
            perm, read, flag, write = texts
            try:
                numbers = queue_numbers(
                    {"perm": perm, "readQueueNums": read, "topicSysFlag": flag, "writeQueueNums": write}
                )
            except ValueError as error:
                return self._skip(topic, str(error))
            self._of_texts[texts] = self._shared.setdefault(numbers, numbers)
        return self._add(topic, numbers)

    def _add(self, topic: str, numbers: QueueNumbers) -> None:
        if topic not in self._known and (problem := topic_problem(topic)) is not None:
            return self._skip(topic, problem)
        self.configs[topic] = self._shared.setdefault(numbers, numbers)
        return None

    def _count(self, more: int) -> None:
        self._entries += more
        _check_topic_count(self._entries)

    def _skip(self, topic: str, problem: str) -> None:
        self.body.skipped += 1
        if len(self.body.problems) < SKIPPED_NAMED:
            self.body.problems.setdefault(topic[:SHOWN_CHARACTERS], problem)


def _check_topic_count(count: int) -> None:
    if count > limits.MAX_TOPICS_PER_REGISTRATION:
        raise limit_exceeded("topics of one registration", count, limits.MAX_TOPICS_PER_REGISTRATION)


# The body of REGISTER_BROKER: a topic table as JSON, or as the compressed form of 4.9 and 5.

BYTES_AT_ONCE = 256 * 1024
"""Bytes that are unpacked, or a checksum is taken of, in one call: about half a millisecond."""

_ZLIB = b"\x78"
_CRC32_MASK = 0x7FFF_FFFF
_TABLE = '"topicConfigTable":'
"""The key before a topic table, as RocketMQ writes it. No text within JSON has these quotes."""


def read_registration(
    data: bytes, crc32: int, known_topics: Container[str], held: TopicTableFingerprint | None = None
) -> RegistrationBody:
    """Reads a body with breaths.

    One odd topic does not refuse the others, as RocketMQ's name server checks no names: it is passed over.

    Args:
        data: The body. Its first byte says whether it is compressed, whatever the header says.
        crc32: Checksum that its sender took (RocketMQ: bodyCrc32), or 0 for none.
        known_topics: Names that have been checked before.
        held: The fingerprint of a table that need not be read again, or None.

    Raises:
        CRC32_NOT_MATCH: Another checksum comes out.
        INVALID_FIELD: The body cannot be read.
        LIMIT_EXCEEDED: It is too large.
    """
    if not data:
        return RegistrationBody()
    if crc32:
        _check_crc32(data, crc32)
    if is_compressed(data):
        topics = RegisteredTopics(RegistrationBody(), known_topics)
        _read_compressed(_Parts(data), topics)
        return topics.body
    text = data.decode(errors="replace").removeprefix("\ufeff")
    rest = None if held is None else _without_table(text, held)
    if rest is not None:
        topics = _read_text(rest, known_topics)
        if topics.tables == 1 and not topics.body.mappings:
            topics.body.topic_configs, topics.body.table_fingerprint = None, held
            return topics.body
    return _read_text(text, known_topics).body


def is_compressed(data: bytes) -> bool:
    """Whether a body is compressed, by its first byte."""
    return data[:1] == _ZLIB


def data_version_of(value: object) -> DataVersion:
    """A DataVersion as it is in bodies. Raises INVALID_FIELD."""
    if not isinstance(value, dict | None):
        raise invalid_field("body.dataVersion", "is no object")
    try:
        timestamp_millis, counter, state_version = (
            _number(value or {}, name, 0, _LOWEST_LONG, _HIGHEST_LONG)
            for name in ("timestamp", "counter", "stateVersion")
        )
    except ValueError as error:
        raise invalid_field("body.dataVersion", str(error)) from None
    return DataVersion(timestamp_millis, counter, state_version)


def _check_crc32(data: bytes, stated: int) -> None:
    actual = 0
    for start in range(0, len(data), BYTES_AT_ONCE):
        breathe()
        actual = zlib.crc32(memoryview(data)[start : start + BYTES_AT_ONCE], actual)
    if actual & _CRC32_MASK != stated:
        raise crc32_not_match(stated, actual & _CRC32_MASK)


def _without_table(text: str, held: TopicTableFingerprint) -> str | None:
    """A body with null for its topic table, if that is the one that is held, else None."""
    begin = text.find(_TABLE) + len(_TABLE)
    end = begin + held.size
    return f"{text[:begin]}null{text[end:]}" if _digest(text, begin, end) == held.digest else None


def _read_text(text: str, known_topics: Container[str]) -> RegisteredTopics:
    topics = RegisteredTopics(RegistrationBody(), known_topics)
    reader = ObjectReader(text)
    _read_members(reader, topics)
    reader.check_ended()
    if topics.body.skipped or topics.body.mappings or topics.tables != 1:
        topics.body.table_fingerprint = None
    return topics


def _read_members(reader: ObjectReader, topics: RegisteredTopics, *, is_wrapper: bool = False) -> None:
    """Reads a RegisterBrokerBody, or the wrapper in it. Versions before 3.0.11 send the wrapper alone."""
    for key in reader:
        match key:
            case "topicConfigSerializeWrapper" if not is_wrapper:
                inner = reader.opened()
                _read_members(inner, topics, is_wrapper=True)
                reader.close(inner)
            case "topicConfigTable":
                _read_table(reader, topics)
            case "topicQueueMappingInfoMap" | "topicQueueMappingDetailMap":
                _read_mappings(reader, topics, keep=key == "topicQueueMappingInfoMap")
            case "dataVersion":
                topics.body.data_version = data_version_of(reader.take())
            case "filterServerList":
                _take_filter_servers(topics.body, reader.take())
            case _:
                reader.take()


def _read_table(reader: ObjectReader, topics: RegisteredTopics) -> None:
    topics.tables += 1
    topics.configs.clear()  # of members of one name the last counts
    began, inner = reader.at, reader.opened()
    topics.add_plain(inner)
    for topic in paced(inner):
        topics.add(topic, inner.take())
        topics.add_plain(inner)
    reader.close(inner)
    digest = _digest(reader.text, began, reader.at)
    topics.body.table_fingerprint = TopicTableFingerprint(reader.at - began, digest, len(topics.configs))


def _digest(text: str, begin: int, end: int) -> bytes:
    digest = hashlib.sha256()
    for start in range(begin, end, BYTES_AT_ONCE):
        breathe()
        digest.update(text[start : min(start + BYTES_AT_ONCE, end)].encode())
    return digest.digest()


def _read_mappings(reader: ObjectReader, topics: RegisteredTopics, *, keep: bool) -> None:
    inner = reader.opened()
    for topic in paced(inner):
        if keep:
            topics.add_mapping(topic, inner)
        else:
            inner.take()
    reader.close(inner)


def _take_filter_servers(body: RegistrationBody, value: object) -> None:
    """Keeps the addresses among the filter servers, and passes over the others and those above the limit."""
    if value is None:
        body.filter_servers = None
        return
    texts = [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
    first = texts[: limits.MAX_FILTER_SERVERS]
    body.filter_servers = tuple(filter(is_address, first))
    odd = [*itertools.filterfalse(is_address, first), *texts[limits.MAX_FILTER_SERVERS :]]
    body.odd_addresses += odd[:SKIPPED_NAMED]


def _read_compressed(parts: _Parts, topics: RegisteredTopics) -> None:
    """Reads what RegisterBrokerBody.encode writes: parts with their lengths before them."""
    body = topics.body
    body.data_version = data_version_of(read_json(parts.text()))
    for _ in paced(range(parts.count())):
        topics.add_text(parts.text())
    _take_filter_servers(body, read_json(parts.text()))
    if parts.are_left():  # versions before 5 end here
        for _ in paced(range(parts.count())):
            reader = ObjectReader(parts.text())
            topics.add_mapping("", reader)
            reader.check_ended()
    parts.end()


class _Parts:
    """Numbers and texts of a zlib stream. No more of it is unpacked ahead than one step, however much follows.

    Reading raises INVALID_FIELD if the stream is none or ends too early, and LIMIT_EXCEEDED if it becomes too large.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._fed = 0
        """Bytes of it that the decompressor has."""
        self._unpacking = zlib.decompressobj()
        self._unpacked = 0
        """Bytes that have come out."""
        self._buffer = b""
        self._at = 0

    def are_left(self) -> bool:
        """Whether a part follows."""
        while self._at == len(self._buffer) and not self._unpacking.eof:
            self._unpack()
        return self._at < len(self._buffer)

    def count(self) -> int:
        """Returns a number of topics or mappings, before any of them is unpacked."""
        number = self._number()
        if number < 0:
            raise invalid_field("body", f"says that {number} parts follow")
        _check_topic_count(number)
        return number

    def text(self) -> str:
        length = self._number()
        if not 0 <= length <= MAX_PART_BYTES:
            raise invalid_field("body", f"has a part of {length} bytes, at most {MAX_PART_BYTES}")
        return self._take(length).decode(errors="replace")

    def end(self) -> None:
        """Unpacks the rest, which nobody reads: its checksum comes last."""
        while not self._unpacking.eof:
            self._at = len(self._buffer)
            self._unpack()

    def _number(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def _take(self, size: int) -> bytes:
        while len(self._buffer) - self._at < size:
            if self._unpacking.eof:
                raise invalid_field("body", "ends within a number or a part")
            self._unpack()
        begin, self._at = self._at, self._at + size
        return self._buffer[begin : self._at]

    def _unpack(self) -> None:
        """Unpacks one step, bounded by what goes in and by what comes out."""
        unpacking = self._unpacking
        packed = unpacking.unconsumed_tail
        if not packed:
            packed = self._data[self._fed : self._fed + BYTES_AT_ONCE]
            self._fed += len(packed)
        try:
            unpacked = unpacking.decompress(packed, BYTES_AT_ONCE)
        except zlib.error:
            raise invalid_field("body", "is no zlib stream") from None
        if not packed and not unpacked and not unpacking.eof:
            raise invalid_field("body", "ends within its zlib stream")
        self._unpacked += len(unpacked)
        if self._unpacked > MAX_INFLATED_BYTES:
            raise limit_exceeded("bytes of an unpacked body", self._unpacked, MAX_INFLATED_BYTES)
        self._buffer, self._at = self._buffer[self._at :] + unpacked, 0
        breathe()
