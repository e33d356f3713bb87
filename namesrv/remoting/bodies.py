"""RegisterBrokerBody as records: topics, static mappings and filter servers."""

from __future__ import annotations

import hashlib
import itertools
import operator
import re
import zlib
from collections.abc import Container, Iterable, Sized
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from groundwork.endpoints import Endpoint
from groundwork.topic_names import MAX_MAPPED_QUEUES, MAX_NAME_LENGTH, MAX_PERM, MAX_QUEUE_NUMS, check_topic
from namesrv import limits
from namesrv.core.errors import Refused, crc32_not_match, invalid_field, limit_exceeded
from namesrv.core.model import DataVersion, QueueNumbers, StaticMapping, TopicTableFingerprint
from namesrv.core.pace import FEW, breathe, paced
from namesrv.core.slices import sorted_in_slices, with_breaths
from namesrv.remoting.limits import MAX_INFLATED_BYTES, MAX_PART_BYTES
from namesrv.remoting.wire.json_reader import ObjectReader, read_json

# The mapping of a static topic, as brokers of RocketMQ 5 report it.

_HIGHEST_INT = 2**31 - 1
_HIGHEST_LONG = 2**63 - 1
_MAPPING_MEMBERS = frozenset({"topic", "scope", "totalQueues", "epoch", "dirty", "currIdMap"})
"""Members of a mapping that are kept."""
_QUEUE = re.compile(r"[0-9]{1,10}")
_PLAIN_ID = re.compile(r',(?:([0-9]{1,10})|"([0-9]{1,10})"):(0|[1-9][0-9]{0,9})(?=[,}])')
"""A queue behind another one, as RocketMQ writes it. Whatever is written otherwise is read by a JSON parser."""


class _QueueIds(dict[int, int]):
    """A currIdMap that was read with breaths."""

    count = 0
    """Queues that were read, also those that are not kept."""
    is_sound = True
    """Whether all of them are numbers."""


def take_mapping(reader: ObjectReader) -> object:
    """Takes a value as ``mapping_of`` wants it, with breaths: a topic may have tens of thousands of queues.

    Raises:
        INVALID_FIELD: It is no JSON.
        LIMIT_EXCEEDED: It has too many queues.
    """
    if not reader.is_at_object:
        return reader.take()
    inner = reader.opened()
    value: dict[str, Any] = {}
    for name in paced(inner):
        if name == "currIdMap" and inner.is_at_object:
            value[name] = _take_queue_ids(inner)
        else:
            taken = inner.take()
            if name in _MAPPING_MEMBERS:
                value[name] = taken
    reader.close(inner)
    return value


def mapping_of(value: object) -> StaticMapping:
    """Checks a TopicQueueMappingInfo, with breaths. Raises ValueError, whose text says what is wrong with it."""
    if not isinstance(value, dict):
        raise ValueError("has a mapping that is no object")  # noqa: TRY004 - it is input, and not our mistake
    scope, ids = value.get("scope", ""), value.get("currIdMap", _QueueIds())
    if not (isinstance(scope, str) and len(scope) <= MAX_NAME_LENGTH and scope.isascii() and scope.isprintable()):
        raise ValueError(f"has a mapping whose scope is no name of at most {MAX_NAME_LENGTH} characters")
    total, epoch = _number(value, "totalQueues", _HIGHEST_INT), _number(value, "epoch", _HIGHEST_LONG)
    if not isinstance(ids, _QueueIds) or ids.count > MAX_QUEUE_NUMS:
        raise ValueError(f"has a mapping whose currIdMap is no object of at most {MAX_QUEUE_NUMS} queues")
    if not ids.is_sound or max(ids, default=0) > _HIGHEST_INT or max(ids.values(), default=0) > _HIGHEST_INT:
        raise ValueError(f"has a mapping whose queues are no numbers from 0 to {_HIGHEST_INT}")
    breathe()
    return StaticMapping(scope, total, epoch, value.get("dirty") is True, _in_order(ids))


def _number(value: dict[str, Any], name: str, highest: int) -> int:
    number = value.get(name, 0)
    if type(number) is not int or not 0 <= number <= highest:
        raise ValueError(f"has a mapping whose {name} is no number from 0 to {highest}")
    return number


def _take_queue_ids(reader: ObjectReader) -> _QueueIds:
    inner = reader.opened()
    ids = _QueueIds()
    for name in paced(inner):
        value = inner.take()
        if _QUEUE.fullmatch(name) is not None and type(value) is int and value >= 0:
            ids[int(name)] = value
        else:
            ids.is_sound = False
        _count(ids, 1)
        _take_plain(inner, ids)
    reader.close(inner)
    return ids


def _take_plain(reader: ObjectReader, ids: _QueueIds) -> None:
    """Takes all queues that follow in the form in which RocketMQ writes them, up to one in another form."""
    text, at, match = reader.text, reader.at, _PLAIN_ID.match
    count = 0
    while (found := match(text, at)) is not None:
        at = found.end()
        ids[int(found[1] or found[2])] = int(found[3])
        count += 1
        if count == FEW:
            _count(ids, count)
            count = 0
            breathe()
    _count(ids, count)
    reader.at = at


def _count(ids: _QueueIds, more: int) -> None:
    ids.count += more
    if ids.count > MAX_MAPPED_QUEUES:
        raise limit_exceeded("queues in mappings of one registration", ids.count, MAX_MAPPED_QUEUES)


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
    rf',"([^"\\]+)":\{{(?:"attributes":\{{(?:{_TEXT}:{_TEXT}(?:,{_TEXT}:{_TEXT})*)?\}},)?"order":(?:false|true),'
    rf'"perm":{_INT_NUMBER},"readQueueNums":{_INT_NUMBER},"topicFilterType":{_TEXT},"topicName":"\1",'
    rf'"topicSysFlag":{_INT_NUMBER},"writeQueueNums":{_INT_NUMBER}\}}'
)
"""A topic behind another one, as RocketMQ writes it: found by this in a quarter of the time of a JSON parser. Whatever
is written otherwise is read by one."""


@dataclass(slots=True)
class RegistrationBody:
    """The body of a registration: what of it this name server keeps."""

    data_version: DataVersion = field(default_factory=lambda: DataVersion(0, 0))
    topic_configs: dict[str, QueueNumbers] | None = field(default_factory=dict)
    """None: not read, as the table is the one of the mark that is held."""
    filter_servers: tuple[str, ...] = ()
    mappings: dict[str, StaticMapping] = field(default_factory=dict)
    """Static topics' mappings by topic."""
    mapped_queues: int = 0
    """Queues in these mappings."""
    table_fingerprint: TopicTableFingerprint | None = None
    """Of the topic table, if a mark can tell all that comes of it."""
    skipped: int = 0
    """Topics that break a rule."""
    problems: list[str] = field(default_factory=list)
    """What is wrong with the first of them."""


class RegisteredTopics:
    """Takes topics, one by one, into a body."""

    def __init__(self, body: RegistrationBody, known_topics: Container[str]) -> None:
        """Begins without topics. ``known_topics`` are names that have been checked before."""
        self.body = body
        self.configs: dict[str, QueueNumbers] = {}
        self._known = known_topics
        self._shared: dict[QueueNumbers, QueueNumbers] = {}
        self._of_texts: dict[tuple[str, ...], QueueNumbers] = {}
        """Numbers that are sound, by the texts that they were written as."""

    def add(self, key: str, value: object) -> None:
        """Adds a TopicConfig, or counts it as passed over."""
        if not isinstance(value, dict):
            return self._skip(key, "is no object")
        numbers = (
            value.get("readQueueNums", 0),
            value.get("writeQueueNums", 0),
            value.get("perm", 0),
            value.get("topicSysFlag", 0),
        )
        topic = value.get("topicName") or key
        return self._add(topic if isinstance(topic, str) else key, numbers)

    def add_plain(self, reader: ObjectReader) -> None:
        """Adds all topics that follow in the form in which RocketMQ writes them, up to one in another form."""
        # This loop is the cost of a registration, so it makes no call that it can do without.
        text, at, configs, known, sound = reader.text, reader.at, self.configs, self._known, self._of_texts
        match, left = _PLAIN_TOPIC.match, FEW
        while (found := match(text, at)) is not None:
            at = found.end()
            topic, numbers = found[1], sound.get(found.group(2, 3, 4, 5))
            if numbers is not None and topic in known:
                configs[topic] = numbers
            else:
                self._add_found(topic, found.group(2, 3, 4, 5))
            if len(configs) > limits.MAX_TOPICS_PER_REGISTRATION:
                raise _too_many(configs)
            left -= 1
            if not left:
                left = FEW
                breathe()
        reader.at = at

    def add_text(self, text: str) -> None:
        """Adds a TopicConfig in the form of compressed bodies: parts between blanks."""
        parts = text.split(" ", _COMPRESSED_FIELDS)
        try:
            read, write, perm = (int(part) for part in parts[1:4])
        except ValueError:
            return self._skip(parts[0], "has other numbers than read queues, write queues and permission")
        return self._add(parts[0], (read, write, perm, 0))

    def add_mapping(self, key: str, reader: ObjectReader) -> None:
        """Takes a TopicQueueMappingInfo and adds it, or counts its topic as passed over."""
        value = take_mapping(reader)
        topic = value.get("topic") or key if isinstance(value, dict) else key
        if not isinstance(topic, str):
            return self._skip(key, "has a mapping whose topic is no text")
        try:
            mapping = mapping_of(value)
            if topic not in self._known and topic not in self.configs:
                check_topic(topic)
        except ValueError as error:
            return self._skip(str(topic), str(error))
        self.body.mappings[topic] = mapping
        self.body.mapped_queues += len(mapping.queue_ids)
        if self.body.mapped_queues > MAX_MAPPED_QUEUES:
            raise limit_exceeded("queues in mappings of one registration", self.body.mapped_queues, MAX_MAPPED_QUEUES)
        return None

    def _add_found(self, topic: str, texts: tuple[str, ...]) -> None:
        perm, read, flag, write = map(int, texts)
        self._add(topic, (read, write, perm, flag))
        sound = self._shared.get((read, write, perm, flag))
        if sound is not None:
            self._of_texts[texts] = sound

    def _add(self, topic: str, numbers: tuple[Any, Any, Any, Any]) -> None:
        checked = self._shared.get(numbers) if _are_numbers(numbers) else None
        if checked is None:
            problem = _problem_of(numbers)
            if problem is not None:
                return self._skip(topic, problem)
            self._shared[numbers] = checked = numbers
        if topic not in self._known:
            try:
                check_topic(topic)
            except ValueError as error:
                return self._skip(topic, str(error))
        configs = self.configs
        configs[topic] = checked
        if len(configs) > limits.MAX_TOPICS_PER_REGISTRATION:
            raise _too_many(configs)
        return None

    def _skip(self, topic: str, problem: str) -> None:
        self.body.skipped += 1
        if len(self.body.problems) < SKIPPED_NAMED:
            self.body.problems.append(f"{topic[:40]!r} {problem}")


def _are_numbers(numbers: tuple[object, object, object, object]) -> bool:
    first, second, third, fourth = numbers  # of each topic of a large table, so without a loop
    return type(first) is type(second) is type(third) is type(fourth) is int


def _problem_of(numbers: tuple[Any, Any, Any, Any]) -> str | None:
    names = ("readQueueNums", "writeQueueNums", "perm", "topicSysFlag")
    for name, number, highest in zip(
        names, numbers, (MAX_QUEUE_NUMS, MAX_QUEUE_NUMS, MAX_PERM, _HIGHEST_INT), strict=True
    ):
        if type(number) is not int or not 0 <= number <= highest:
            return f"has a {name} that is no number from 0 to {highest}"
    return None


def _too_many(configs: Sized) -> Refused:
    return limit_exceeded("topics of one registration", len(configs), limits.MAX_TOPICS_PER_REGISTRATION)


# The body of REGISTER_BROKER: a topic table as JSON, or as the compressed form of 4.9 and 5.

BYTES_AT_ONCE = 256 * 1024
"""Bytes that are unpacked, or a checksum is taken of, in one call: about half a millisecond."""

_ZLIB = b"\x78"
_CRC32_MASK = 0x7FFF_FFFF
_LONG_NUMBER = "(?:0|[1-9][0-9]{0,17})"
_HEAD = re.compile(
    rf'\{{"filterServerList":\[\],"topicConfigSerializeWrapper":\{{'
    rf'"dataVersion":\{{"counter":({_LONG_NUMBER}),(?:"stateVersion":({_LONG_NUMBER}),)?"timestamp":({_LONG_NUMBER})\}},'
    rf'(?P<newer>"mappingDataVersion":\{{"counter":{_LONG_NUMBER},"stateVersion":{_LONG_NUMBER},"timestamp":{_LONG_NUMBER}\}},)?'
    r'"topicConfigTable":'
)
_TAIL = ',"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}}'
_OLD_TAIL = "}}"
"""What is before and behind the topic table as RocketMQ 5 and 4 write it: read by this in a tenth of the time of a JSON
parser, which is most of what a registration of few topics costs. Whatever is written otherwise is read by one."""


class _ReadWhole(Exception):
    """A body says more of topics than a table whose mark is held."""


def read_registration(
    data: bytes, crc32: int, known_topics: Container[str], held: TopicTableFingerprint | None = None
) -> RegistrationBody:
    """Reads a body with breaths.

    One odd topic does not refuse the others, as RocketMQ's name server checks no names: it is passed over.

    Args:
        data: The body. Its first byte says whether it is compressed, whatever the header says.
        crc32: What its sender took of it (RocketMQ: bodyCrc32); 0: nothing.
        known_topics: Names that have been checked before.
        held: The mark of a table that need not be read again; None: of no table.

    Raises:
        CRC32_NOT_MATCH: Another checksum comes out.
        INVALID_FIELD: The body cannot be read.
        LIMIT_EXCEEDED: It is too large.
    """
    if not data:
        return RegistrationBody()
    if crc32:
        _check_crc32(data, crc32)
    body = RegistrationBody()
    if is_compressed(data):
        topics = RegisteredTopics(body, known_topics)
        _read_compressed(_Parts(data), topics)
        body.topic_configs = topics.configs
        return body
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise invalid_field("body", "is no UTF-8") from None
    try:
        return _read_text(text, known_topics, held)
    except _ReadWhole:
        return _read_text(text, known_topics, None)


def is_compressed(data: bytes) -> bool:
    """Whether a body is compressed, by its first byte."""
    return data[:1] == _ZLIB


def data_version_of(value: object) -> DataVersion:
    """A DataVersion as it is in bodies. Raises INVALID_FIELD."""
    if not isinstance(value, dict):
        raise invalid_field("body.dataVersion", "is no object")
    parts = []
    for name in ("timestamp", "counter", "stateVersion"):
        part = value.get(name)
        if part is None:  # 4.9 has no stateVersion, and a counter may be null
            part = 0
        if type(part) is not int or not 0 <= part <= _HIGHEST_LONG:
            raise invalid_field(f"body.dataVersion.{name}", "is no number from 0 to 2^63 - 1")
        parts.append(part)
    return DataVersion(*parts)


def _check_crc32(data: bytes, stated: int) -> None:
    actual = 0
    for start in range(0, len(data), BYTES_AT_ONCE):
        breathe()
        actual = zlib.crc32(memoryview(data)[start : start + BYTES_AT_ONCE], actual)
    if actual & _CRC32_MASK != stated:
        raise crc32_not_match(stated, actual & _CRC32_MASK)


class _PlainTable(NamedTuple):
    """The place of the topic table in a body that has nothing else to read."""

    data_version: DataVersion
    begin: int
    end: int


class _Reading:
    def __init__(self, topics: RegisteredTopics, held: TopicTableFingerprint | None) -> None:
        self.topics = topics
        self.held = held
        self.tables = 0
        """Topic tables so far: honest bodies have one."""

    def finished(self) -> RegistrationBody:
        """The body, once all of it has been read. Raises _ReadWhole."""
        body = self.topics.body
        if body.topic_configs is not None:
            body.topic_configs = self.topics.configs
        if body.skipped or body.mappings or self.tables != 1:
            body.table_fingerprint = None
            if body.topic_configs is None:
                raise _ReadWhole
        return body


def _read_text(text: str, known_topics: Container[str], held: TopicTableFingerprint | None) -> RegistrationBody:
    plain = _plain_table(text)
    if plain is not None:
        reading = _Reading(RegisteredTopics(RegistrationBody(plain.data_version), known_topics), held)
        reader = ObjectReader(text, plain.begin)
        _read_table(reader, reading)
        if reader.at == plain.end:
            return reading.finished()
    reading = _Reading(RegisteredTopics(RegistrationBody(), known_topics), held)
    reader = ObjectReader(text)
    _read_members(reader, reading)
    reader.check_ended()
    return reading.finished()


def _plain_table(text: str) -> _PlainTable | None:
    """Where the topic table of a body is that is written as RocketMQ does, and has nothing else to read; else None.

    What is between begin and end has to be one value: then it is all of the body.
    """
    found = _HEAD.match(text)
    if found is None:
        return None
    counter, state_version, timestamp = (int(number or 0) for number in found.group(1, 2, 3))
    tail = _TAIL if found["newer"] else _OLD_TAIL  # with mappings it ends otherwise: its table is not read here
    if not text.endswith(tail):
        return None
    return _PlainTable(DataVersion(timestamp, counter, state_version), found.end(), len(text) - len(tail))


def _read_members(reader: ObjectReader, reading: _Reading, *, is_wrapper: bool = False) -> None:
    """Reads a RegisterBrokerBody, or the wrapper in it. Versions before 3.0.11 send the wrapper alone."""
    topics = reading.topics
    body = topics.body
    for key in reader:
        match key:
            case "topicConfigSerializeWrapper" if not is_wrapper:
                inner = reader.opened()
                _read_members(inner, reading, is_wrapper=True)
                reader.close(inner)
            case "topicConfigTable":
                _read_table(reader, reading)
            case "topicQueueMappingInfoMap" | "topicQueueMappingDetailMap":
                _read_mappings(reader, topics, keep=key == "topicQueueMappingInfoMap")
            case "dataVersion":
                body.data_version = data_version_of(reader.take())
            case "filterServerList":
                body.filter_servers = _filter_servers(reader.take())
            case _:
                reader.take()


def _read_table(reader: ObjectReader, reading: _Reading) -> None:
    """Reads a topic table, or passes over the one whose mark is held.

    Text with that mark was read as one whole value before, so it is one here, too.
    """
    topics, held, began = reading.topics, reading.held, reader.at
    body = topics.body
    reading.tables += 1
    if held is not None and _digest(reader.text, began, held.size) == held.digest:
        reader.at += held.size
        body.topic_configs, body.table_fingerprint = None, held
        return
    inner = reader.opened()
    for topic in paced(inner):
        topics.add(topic, inner.take())
        topics.add_plain(inner)
    reader.close(inner)
    size = reader.at - began
    digest = _digest(reader.text, began, size)
    body.table_fingerprint = TopicTableFingerprint(size, digest, len(topics.configs))


def _digest(text: str, at: int, size: int) -> bytes:
    digest = hashlib.sha256()
    for start in range(at, at + size, BYTES_AT_ONCE):
        breathe()
        digest.update(text[start : min(start + BYTES_AT_ONCE, at + size)].encode())
    return digest.digest()


def _read_mappings(reader: ObjectReader, topics: RegisteredTopics, *, keep: bool) -> None:
    inner = reader.opened()
    for topic in paced(inner):
        if keep:
            topics.add_mapping(topic, inner)
        else:
            inner.take()
    reader.close(inner)


def _filter_servers(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | None):
        raise invalid_field("body.filterServerList", "is no list")
    addresses = tuple(value or ())
    if len(addresses) > limits.MAX_FILTER_SERVERS:
        raise limit_exceeded("filter servers", len(addresses), limits.MAX_FILTER_SERVERS)
    for address in addresses:
        try:
            Endpoint.parse(address if isinstance(address, str) else "")
        except ValueError as error:
            raise invalid_field("body.filterServerList", str(error)) from None
    return addresses


def _read_compressed(parts: _Parts, topics: RegisteredTopics) -> None:
    """Reads what RegisterBrokerBody.encode writes: parts with their lengths before them."""
    body = topics.body
    body.data_version = data_version_of(read_json(parts.text()))
    for _ in paced(range(parts.count())):
        topics.add_text(parts.text())
    body.filter_servers = _filter_servers(read_json(parts.text()))
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
        """A number of parts, each of which has a length of four bytes at least."""
        number = self._number()
        if not 0 <= number <= MAX_INFLATED_BYTES // 4:
            raise invalid_field("body", f"says that {number} parts follow, which are not there")
        return number

    def text(self) -> str:
        length = self._number()
        if not 0 <= length <= MAX_PART_BYTES:
            raise invalid_field("body", f"has a part of {length} bytes, at most {MAX_PART_BYTES}")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise invalid_field("body", "is no UTF-8") from None

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
