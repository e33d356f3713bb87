"""The body of REGISTER_BROKER: a topic table as JSON, or as the compressed form of 4.9 and 5."""

from __future__ import annotations

import zlib
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from groundwork.endpoints import Endpoint
from groundwork.topic_rules import MAX_MAPPED_QUEUES, MAX_PERM, MAX_QUEUE_NUMS, check_topic
from namesrv.config import limits
from namesrv.core.errors import Crc32NotMatch, InvalidField, LimitExceeded
from namesrv.core.records.rows import DataVersion, QueueNumbers, StaticMapping
from namesrv.core.slices import Sliced
from namesrv.remoting.limits import MAX_INFLATED_BYTES
from namesrv.remoting.static_mapping import mapping_of
from namesrv.remoting.wire.json_reader import ObjectReader, read_json

READ_SLICE = 250
"""Topics that are read before giving way: about a millisecond."""

BYTES_SLICE = 256 * 1024
"""Bytes that are unpacked, or a checksum is taken of, before giving way: about half a millisecond."""

SKIPPED_NAMED = 3
"""Topics that are passed over and named in the log; the others are counted."""

_ZLIB = 0x78
_CRC32_MASK = 0x7FFF_FFFF
_HIGHEST_INT = 2**31 - 1
_HIGHEST_LONG = 2**63 - 1
_COMPRESSED_FIELDS = 5
"""Name, read queues, write queues, permission, filter type; attributes may follow."""


@dataclass(slots=True)
class RegistrationBody:
    """The body of a registration: what of it this name server keeps."""

    data_version: DataVersion = field(default_factory=lambda: DataVersion(0, 0))
    topic_configs: dict[str, QueueNumbers] = field(default_factory=dict)
    filter_servers: tuple[str, ...] = ()
    mappings: dict[str, StaticMapping] = field(default_factory=dict)
    """Static topics' mappings by topic."""
    mapped_queues: int = 0
    """Queues in these mappings."""
    skipped: int = 0
    """Topics that break a rule."""
    problems: list[str] = field(default_factory=list)
    """What is wrong with the first of them."""


def read_registration(data: bytes, crc32: int, known_topics: Container[str]) -> Sliced[RegistrationBody]:
    """Reads a body in steps.

    One odd topic does not refuse the others, as RocketMQ's name server checks no names: it is passed over.

    Args:
        data: The body. Its first byte says whether it is compressed, whatever the header says.
        crc32: What its sender took of it (RocketMQ: bodyCrc32); 0: nothing.
        known_topics: Names that have been checked before.

    Raises:
        Crc32NotMatch: Another checksum comes out.
        InvalidField: The body cannot be read.
        LimitExceeded: It is too large.
    """
    if not data:
        return RegistrationBody()
    if crc32:
        yield from _check_crc32(data, crc32)
    body = RegistrationBody()
    topics = _Topics(body, known_topics)
    if data[0] == _ZLIB:
        yield from _read_compressed((yield from inflated(data)), topics)
    else:
        try:
            reader = ObjectReader(data.decode())
        except UnicodeDecodeError:
            raise InvalidField("body", "is no UTF-8") from None
        yield from _read_members(reader, topics)
        reader.check_ended()
    return body


def inflated(data: bytes, limit: int = MAX_INFLATED_BYTES) -> Sliced[bytes]:
    """Unpacks one zlib stream in steps, no further than the limit.

    Raises:
        InvalidField: It is none, or ends too early.
        LimitExceeded: It becomes too large.
    """
    parts, size, unpacking = [], 0, zlib.decompressobj()
    try:
        while not unpacking.eof:
            part = unpacking.decompress(data, BYTES_SLICE)
            data = unpacking.unconsumed_tail
            size += len(part)
            if size > limit:
                raise LimitExceeded("bytes of an unpacked body", size, limit)
            if not part and not data and not unpacking.eof:
                raise InvalidField("body", "ends within its zlib stream")
            parts.append(part)
            yield
    except zlib.error:
        raise InvalidField("body", "is no zlib stream") from None
    return b"".join(parts)


def data_version_of(value: object) -> DataVersion:
    """A DataVersion as it is in bodies. Raises InvalidField."""
    if not isinstance(value, dict):
        raise InvalidField("body.dataVersion", "is no object")
    parts = []
    for name in ("timestamp", "counter", "stateVersion"):
        part = value.get(name)
        if part is None:  # 4.9 has no stateVersion, and a counter may be null
            part = 0
        if type(part) is not int or not 0 <= part <= _HIGHEST_LONG:
            raise InvalidField(f"body.dataVersion.{name}", "is no number from 0 to 2^63 - 1")
        parts.append(part)
    return DataVersion(*parts)


class _Topics:
    """Takes topics, one by one, into a body."""

    def __init__(self, body: RegistrationBody, known_topics: Container[str]) -> None:
        self.body = body
        self._known = known_topics
        self._shared: dict[QueueNumbers, QueueNumbers] = {}

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

    def add_text(self, text: str) -> None:
        """Adds a TopicConfig in the form of compressed bodies: parts between blanks."""
        parts = text.split(" ", _COMPRESSED_FIELDS)
        try:
            read, write, perm = (int(part) for part in parts[1:4])
        except ValueError:
            return self._skip(parts[0], "has other numbers than read queues, write queues and permission")
        return self._add(parts[0], (read, write, perm, 0))

    def add_mapping(self, key: str, value: object) -> None:
        """Adds a TopicQueueMappingInfo, or counts its topic as passed over."""
        topic = value.get("topic") or key if isinstance(value, dict) else key
        try:
            mapping = mapping_of(value)
            if topic not in self._known and topic not in self.body.topic_configs:
                check_topic(topic)
        except ValueError as error:
            return self._skip(str(topic), str(error))
        self.body.mappings[topic] = mapping
        self.body.mapped_queues += len(mapping.queue_ids)
        if self.body.mapped_queues > MAX_MAPPED_QUEUES:
            raise LimitExceeded("queues in mappings of one registration", self.body.mapped_queues, MAX_MAPPED_QUEUES)
        return None

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
        configs = self.body.topic_configs
        configs[topic] = checked
        if len(configs) > limits.MAX_TOPICS_PER_REGISTRATION:
            raise LimitExceeded("topics of one registration", len(configs), limits.MAX_TOPICS_PER_REGISTRATION)
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


def _check_crc32(data: bytes, stated: int) -> Sliced[None]:
    actual = 0
    for start in range(0, len(data), BYTES_SLICE):
        actual = zlib.crc32(memoryview(data)[start : start + BYTES_SLICE], actual)
        yield
    if actual & _CRC32_MASK != stated:
        raise Crc32NotMatch(stated, actual & _CRC32_MASK)


def _read_members(reader: ObjectReader, topics: _Topics) -> Sliced[None]:
    """Reads a RegisterBrokerBody, or the wrapper in it. Versions before 3.0.11 send the wrapper alone."""
    body = topics.body
    for key in reader:
        match key:
            case "topicConfigSerializeWrapper":
                inner = reader.opened()
                yield from _read_members(inner, topics)
                reader.close(inner)
            case "topicConfigTable":
                inner = reader.opened()
                for count, topic in enumerate(inner, 1):
                    topics.add(topic, inner.take())
                    if count % READ_SLICE == 0:
                        yield
                reader.close(inner)
            case "topicQueueMappingInfoMap" | "topicQueueMappingDetailMap":
                yield from _read_mappings(reader, topics, keep=key == "topicQueueMappingInfoMap")
            case "dataVersion":
                body.data_version = data_version_of(reader.take())
            case "filterServerList":
                body.filter_servers = _filter_servers(reader.take())
            case _:
                reader.take()


def _read_mappings(reader: ObjectReader, topics: _Topics, *, keep: bool) -> Sliced[None]:
    inner = reader.opened()
    for count, topic in enumerate(inner, 1):
        mapping = inner.take()
        if keep:
            topics.add_mapping(topic, mapping)
        if count % READ_SLICE == 0:
            yield
    reader.close(inner)


def _filter_servers(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | None):
        raise InvalidField("body.filterServerList", "is no list")
    addresses = tuple(value or ())
    if len(addresses) > limits.MAX_FILTER_SERVERS:
        raise LimitExceeded("filter servers", len(addresses), limits.MAX_FILTER_SERVERS)
    for address in addresses:
        try:
            Endpoint.parse(address if isinstance(address, str) else "")
        except ValueError as error:
            raise InvalidField("body.filterServerList", str(error)) from None
    return addresses


def _read_compressed(data: bytes, topics: _Topics) -> Sliced[None]:
    """Reads what RegisterBrokerBody.encode writes: parts with their lengths before them."""
    parts, body = _Parts(data), topics.body
    body.data_version = data_version_of(read_json(parts.text()))
    for count in range(1, parts.count() + 1):
        topics.add_text(parts.text())
        if count % READ_SLICE == 0:
            yield
    body.filter_servers = _filter_servers(read_json(parts.text()))
    if parts.ended:  # versions before 5 end here
        return
    for count in range(1, parts.count() + 1):
        topics.add_mapping("", read_json(parts.text()))
        if count % READ_SLICE == 0:
            yield


class _Parts:
    """Numbers and texts of an unpacked body."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def ended(self) -> bool:
        return self._at == len(self._data)

    def count(self) -> int:
        """A number of parts, each of which has a length of four bytes at least."""
        number = self._number()
        if not 0 <= number <= (len(self._data) - self._at) // 4:
            raise InvalidField("body", f"says that {number} parts follow, which are not there")
        return number

    def text(self) -> str:
        length = self._number()
        begin, end = self._at, self._at + length
        if length < 0 or end > len(self._data):
            raise InvalidField("body", f"has a part of {length} bytes that is not there")
        self._at = end
        try:
            return self._data[begin:end].decode()
        except UnicodeDecodeError:
            raise InvalidField("body", "is no UTF-8") from None

    def _number(self) -> int:
        begin = self._at
        self._at += 4
        if self._at > len(self._data):
            raise InvalidField("body", "ends within a number")
        return int.from_bytes(self._data[begin : self._at], "big", signed=True)
