"""RegisterBrokerBody as records: topics, static mappings and filter servers."""

from __future__ import annotations

import hashlib
import io
import itertools
import math
import operator
import re
import zlib
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from namesrv import limits
from namesrv.app.field_rules import NAME, check_topic_count
from namesrv.core.errors import crc32_not_match, invalid_field, limit_exceeded
from namesrv.core.model import DataVersion, QueueNumbers, StaticMapping, TopicTableFingerprint
from namesrv.core.pace import FEW, paced, run_steps, sorted_in_slices, yield_point
from namesrv.remoting.json_reader import JsonReader, read_json
from namesrv.remoting.wire import is_address
from namesrv_common.topic_names import (
    MAX_NAME_LENGTH,
    MAX_QUEUE_NUMS,
    MAX_TOPIC_LENGTH,
    SHOWN_CHARACTERS,
    name_problem,
)

MAX_INFLATED_BYTES = 40 * 1024 * 1024
"""Largest body after it was unpacked. A table of 200,000 topics has 32 MB with the longest names."""

MAX_PART_BYTES = 2 * 1024 * 1024
"""Largest part of a compressed body. The mapping of a topic of 65,535 queues has 1 MB."""

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

_QUEUE_MEMBERS = (
    ("readQueueNums", 16, 0, MAX_QUEUE_NUMS),
    ("writeQueueNums", 16, 0, MAX_QUEUE_NUMS),
    ("perm", 6, _LOWEST_INT, _HIGHEST_INT),
    ("topicSysFlag", 0, _LOWEST_INT, _HIGHEST_INT),
)
"""Each with its default (RocketMQ: TopicConfig) and its lowest and highest value."""


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


def _mapping_members(reader: JsonReader) -> dict[str, Any]:
    """Reads a TopicQueueMappingInfo, with yield points: a topic may have tens of thousands of queues."""
    value: dict[str, Any] = {}
    for name in paced(reader.members()):
        taken = _take_queue_ids(reader) if name == "currIdMap" and reader.is_at_object else reader.take()
        if name in _MAPPING_MEMBERS:
            value[name] = taken
    return value


def _mapping_of(value: dict[str, Any]) -> StaticMapping:
    """Checks a TopicQueueMappingInfo, with yield points. Raises ValueError, whose text says what is wrong with it."""
    scope, ids = ("" if value.get("scope") is None else value["scope"]), value.get("currIdMap", {})
    if not isinstance(scope, str) or NAME.problem(scope or "none") is not None:
        raise ValueError(f"has a mapping whose scope is no name of at most {MAX_NAME_LENGTH} bytes")
    total = _number(value, "totalQueues", 0, 0, _HIGHEST_INT)
    epoch = _number(value, "epoch", 0, _LOWEST_LONG, _HIGHEST_LONG)
    if not isinstance(ids, dict | None):
        raise ValueError(f"has a mapping whose currIdMap is none of {MAX_QUEUE_NUMS} numbers")  # noqa: TRY004
    yield_point()
    ids = ids or {}
    is_in_order = all(map(operator.lt, ids, itertools.islice(ids, 1, None)))  # nearly always
    queues = ids if is_in_order else run_steps(sorted_in_slices(ids))
    pairs = tuple([(queue, ids[queue]) for queue in paced(queues)])
    yield_point()  # the caller hashes them next
    return StaticMapping(scope, total, epoch, value.get("dirty") is True, pairs)


def _take_queue_ids(reader: JsonReader) -> dict[int, int] | str:
    """Takes a currIdMap; a text stands for one that is not kept."""
    ids: dict[int, int] = {}
    count, is_sound = 0, True
    for count, name in enumerate(paced(reader.members()), 1):
        if count > limits.MAX_MAPPED_QUEUES:
            raise limit_exceeded("queues in mappings of one registration", count, limits.MAX_MAPPED_QUEUES)
        try:
            value = whole_number(reader.take())
        except ValueError:
            value = -1
        if _QUEUE.fullmatch(name) is not None and 0 <= value <= _HIGHEST_INT and (queue := int(name)) <= _HIGHEST_INT:
            ids[queue] = value
        else:
            is_sound = False
    return ids if is_sound and count <= MAX_QUEUE_NUMS else "odd"


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
_PLAIN_MEMBERS = ("perm", "readQueueNums", "topicSysFlag", "writeQueueNums")
"""The numbers in it, in their order."""


@dataclass(slots=True)
class RegistrationBody:
    """The body of a registration: what of it this name server keeps."""

    known_topics: Container[str] = field(default=(), compare=False)
    """Names that have been checked before."""
    data_version: DataVersion = field(default_factory=lambda: DataVersion(0, 0))
    configs: dict[str, QueueNumbers] = field(default_factory=dict)
    is_table_held: bool = False
    """Whether the topic table is the one that is held, and was not read."""
    filter_servers: tuple[str, ...] | None = ()
    """None leaves those of the broker as they are (RocketMQ: a null filterServerList)."""
    mappings: dict[str, StaticMapping] = field(default_factory=dict)
    """Static topics' mappings by topic."""
    mapped_queues: int = 0
    """Queues in these mappings."""
    tables: int = 0
    """Topic tables: honest bodies have one."""
    table_fingerprint: TopicTableFingerprint | None = None
    """Of the topic table, if a mark can tell all that comes of it."""
    skipped: int = 0
    """Topics that break a rule."""
    problems: dict[str, str] = field(default_factory=dict)
    """What is wrong with the first of them, by the name."""
    odd_addresses: list[str] = field(default_factory=list)
    """Filter servers that are no addresses and were passed over, the first of them."""
    _shared: dict[QueueNumbers, QueueNumbers] = field(default_factory=dict, compare=False)
    _of_texts: dict[tuple[str | Any, ...], QueueNumbers] = field(default_factory=dict, compare=False)
    """Numbers that are sound, by the texts that they were written as."""
    _entries: int = 0
    """Topics that were read, also repeated ones and those that are passed over: each costs the same."""

    @property
    def topic_configs(self) -> dict[str, QueueNumbers] | None:
        """The topics; None if they are those that are held."""
        return None if self.is_table_held else self.configs

    def add(self, key: str, value: object) -> None:
        """Adds a TopicConfig, or counts it as passed over. Raises LIMIT_EXCEEDED."""
        self._count(1)
        if isinstance(value, dict):
            self._add(str(value.get("topicName") or key), value)
        else:
            self._skip(key, "is no object")

    def add_plain(self, reader: JsonReader) -> None:
        """Adds all topics that follow in the form in which RocketMQ writes them. Raises LIMIT_EXCEEDED."""
        # This loop is the cost of a registration, so it makes as few calls as possible.
        text, at, configs, known, sound = reader.text, reader.at, self.configs, self.known_topics, self._of_texts
        match, left = _PLAIN_TOPIC.match, FEW
        while (found := match(text, at)) is not None:
            at = found.end()
            topic, texts = found[1], found.group(2, 3, 4, 5)
            numbers = sound.get(texts)
            if numbers is not None and (topic in known or name_problem(topic, MAX_TOPIC_LENGTH) is None):
                configs[topic] = numbers
            elif (added := self._add(topic, dict(zip(_PLAIN_MEMBERS, texts, strict=True)))) is not None:
                sound[texts] = added
            left -= 1
            if not left:
                left = FEW
                self._count(FEW)
                yield_point()
        self._count(FEW - left)
        reader.at = at

    def add_text(self, text: str) -> None:
        """Adds a TopicConfig in the form of compressed bodies: parts between blanks. Raises LIMIT_EXCEEDED."""
        self._count(1)
        parts = text.split(" ", _COMPRESSED_FIELDS)
        self._add(parts[0], dict(zip(("readQueueNums", "writeQueueNums", "perm"), parts[1:4], strict=False)))

    def add_mapping(self, key: str, reader: JsonReader) -> None:
        """Takes a TopicQueueMappingInfo and adds it, or counts its topic as passed over."""
        if not reader.is_at_object:
            reader.take()
            return self._skip(key, "has a mapping that is no object")
        value = _mapping_members(reader)
        topic = value.get("topic") or key
        if not isinstance(topic, str):
            return self._skip(key, "has a mapping whose topic is no text")
        try:
            self._check_name(topic)
            mapping = self.mappings[topic] = _mapping_of(value)
        except ValueError as error:
            return self._skip(topic, str(error))
        self.mapped_queues += len(mapping.queue_ids)
        if self.mapped_queues > limits.MAX_MAPPED_QUEUES:
            raise limit_exceeded("queues in mappings of one registration", self.mapped_queues, limits.MAX_MAPPED_QUEUES)
        return None

    def _add(self, topic: str, members: Mapping[str, object]) -> QueueNumbers | None:
        """Adds a topic and returns its numbers, or counts it as passed over."""
        try:
            numbers = queue_numbers(members)
            self._check_name(topic)
        except ValueError as error:
            self._skip(topic, str(error))
            return None
        self.configs[topic] = numbers = self._shared.setdefault(numbers, numbers)
        return numbers

    def _check_name(self, topic: str) -> None:
        if (
            topic not in self.known_topics
            and topic not in self.configs
            and (problem := name_problem(topic, MAX_TOPIC_LENGTH))
        ):
            raise ValueError(problem)

    def _count(self, more: int) -> None:
        self._entries += more
        check_topic_count(self._entries)

    def _skip(self, topic: str, problem: str) -> None:
        self.skipped += 1
        if len(self.problems) < SKIPPED_NAMED:
            self.problems.setdefault(topic[:SHOWN_CHARACTERS], problem)


# The body of REGISTER_BROKER: a topic table as JSON, or as the compressed form of 4.9 and 5.

BYTES_AT_ONCE = 256 * 1024
"""Bytes that are unpacked, or a checksum is taken of, in one call: about half a millisecond."""

_ZLIB = b"\x78"
_CRC32_MASK = 0x7FFF_FFFF
_TABLE = b'"topicConfigTable":'
"""The key before a topic table, as RocketMQ writes it. No text within JSON has these quotes."""


def read_registration(
    data: bytes, crc32: int | None, known_topics: Container[str], held: TopicTableFingerprint | None = None
) -> RegistrationBody:
    """Reads a body with yield points.

    One odd topic does not refuse the others, as RocketMQ's name server checks no names: it is passed over.

    Args:
        data: The body. Its first byte says whether it is compressed, whatever the header says.
        crc32: Checksum that its sender took (RocketMQ: bodyCrc32), 0 or None for none.
        known_topics: Names that have been checked before.
        held: The fingerprint of a table that need not be read again, or None.

    Raises:
        CRC32_NOT_MATCH: Another checksum comes out.
        INVALID_FIELD: The body cannot be read.
        LIMIT_EXCEEDED: It is too large.
    """
    if not data:
        return RegistrationBody()
    actual = 0
    for piece in _pieces(data) if crc32 else ():
        actual = zlib.crc32(piece, actual)
    if crc32 and actual & _CRC32_MASK != crc32:
        raise crc32_not_match(crc32, actual & _CRC32_MASK)
    if is_compressed(data):
        return _read_compressed(data, RegistrationBody(known_topics))
    begin = data.find(_TABLE) + len(_TABLE)
    if held is not None and _digest(memoryview(data)[begin : (end := begin + held.size)]) == held.digest:
        body = _read_text(b"%bnull%b" % (data[:begin], data[end:]), known_topics)
        if body.tables == 1 and not body.mappings:
            body.is_table_held, body.table_fingerprint = True, held
            return body
    return _read_text(data, known_topics)


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


def _pieces(data: bytes | memoryview) -> Iterator[memoryview]:
    """A body in pieces, with a yield point before each."""
    for start in range(0, len(data), BYTES_AT_ONCE):
        yield_point()
        yield memoryview(data)[start : start + BYTES_AT_ONCE]


def _read_text(data: bytes, known_topics: Container[str]) -> RegistrationBody:
    text = data.decode(errors="replace").removeprefix("\ufeff")
    body, reader = RegistrationBody(known_topics), JsonReader(text)
    _read_members(reader, body)
    reader.check_ended()
    if body.skipped or body.mappings or body.tables != 1:
        body.table_fingerprint = None
    return body


def _read_members(reader: JsonReader, body: RegistrationBody, *, is_wrapper: bool = False) -> None:
    """Reads a RegisterBrokerBody, or the wrapper in it. Versions before 3.0.11 send the wrapper alone."""
    for key in reader.members():
        match key:
            case "topicConfigSerializeWrapper" if not is_wrapper:
                _read_members(reader, body, is_wrapper=True)
            case "topicConfigTable":
                _read_table(reader, body)
            case "topicQueueMappingInfoMap":
                for topic in paced(reader.members()):
                    body.add_mapping(topic, reader)
            case "topicQueueMappingDetailMap":  # members, as a value it may be too large
                for _ in paced(reader.members()):
                    reader.take()
            case "dataVersion":
                body.data_version = data_version_of(reader.take())
            case "filterServerList":
                _take_filter_servers(body, reader.take())
            case _:
                reader.take()


def _read_table(reader: JsonReader, body: RegistrationBody) -> None:
    body.tables += 1
    body.configs.clear()  # of members of one name the last counts
    began = reader.at
    body.add_plain(reader)
    for topic in paced(reader.members(began)):
        body.add(topic, reader.take())
        body.add_plain(reader)
    digest, size = hashlib.sha256(), 0
    for start in range(began, reader.at, BYTES_AT_ONCE):
        yield_point()
        piece = reader.text[start : min(start + BYTES_AT_ONCE, reader.at)].encode()
        digest.update(piece)
        size += len(piece)
    body.table_fingerprint = TopicTableFingerprint(size, digest.digest(), len(body.configs))


def _digest(data: bytes | memoryview) -> bytes:
    digest = hashlib.sha256()
    for piece in _pieces(data):
        digest.update(piece)
    return digest.digest()


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


def _read_compressed(data: bytes, body: RegistrationBody) -> RegistrationBody:
    """Reads what RegisterBrokerBody.encode writes: parts with their lengths before them."""
    parts: io.BufferedReader = io.BufferedReader(_Unpacking(data), BYTES_AT_ONCE)
    body.data_version = data_version_of(read_json(_text(parts)))
    for _ in paced(range(_count(parts))):
        body.add_text(_text(parts))
    _take_filter_servers(body, read_json(_text(parts)))
    if parts.peek(1):  # versions before 5 end here
        for _ in paced(range(_count(parts))):
            reader = JsonReader(_text(parts))
            body.add_mapping("", reader)
            reader.check_ended()
    while parts.read(BYTES_AT_ONCE):  # the checksum comes last
        pass
    return body


def _count(parts: io.BufferedReader) -> int:
    """Returns a number of topics or mappings, before any of them is unpacked."""
    number = _number_of(parts)
    if number < 0:
        raise invalid_field("body", f"says that {number} parts follow")
    check_topic_count(number)
    return number


def _text(parts: io.BufferedReader) -> str:
    length = _number_of(parts)
    if not 0 <= length <= MAX_PART_BYTES:
        raise invalid_field("body", f"has a part of {length} bytes, at most {MAX_PART_BYTES}")
    return _part(parts, length).decode(errors="replace")


def _number_of(parts: io.BufferedReader) -> int:
    return int.from_bytes(_part(parts, 4), "big", signed=True)


def _part(parts: io.BufferedReader, size: int) -> bytes:
    part = parts.read(size)
    if len(part) < size:
        raise invalid_field("body", "ends within a number or a part")
    return part


class _Unpacking(io.RawIOBase):
    """What a zlib stream holds. No more of it is unpacked ahead than one step, however much follows.

    Reading raises INVALID_FIELD if the stream is none or ends too early, and LIMIT_EXCEEDED if it becomes too large.
    """

    def __init__(self, data: bytes) -> None:
        self._packed = _pieces(data)
        self._unpacking = zlib.decompressobj()
        self._size = 0
        """Bytes that have come out."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Unpacks one step, bounded by what goes in and by what comes out."""
        unpacking, unpacked = self._unpacking, b""
        while not unpacked and not unpacking.eof:
            yield_point()
            packed = unpacking.unconsumed_tail or next(self._packed, b"")
            try:
                unpacked = unpacking.decompress(packed, min(len(buffer), BYTES_AT_ONCE))
            except zlib.error:
                raise invalid_field("body", "is no zlib stream") from None
            if not packed and not unpacked and not unpacking.eof:
                raise invalid_field("body", "ends within its zlib stream")
        self._size += len(unpacked)
        if self._size > MAX_INFLATED_BYTES:
            raise limit_exceeded("bytes of an unpacked body", self._size, MAX_INFLATED_BYTES)
        buffer[: len(unpacked)] = unpacked
        return len(unpacked)
