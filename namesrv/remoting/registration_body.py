"""The body of REGISTER_BROKER: a topic table as JSON, or as the compressed form of 4.9 and 5."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Container
from typing import NamedTuple

from groundwork.endpoints import Endpoint
from namesrv.config import limits
from namesrv.core.errors import Crc32NotMatch, InvalidField, LimitExceeded
from namesrv.core.model import DataVersion, TableMark
from namesrv.core.slices import Sliced
from namesrv.remoting.limits import MAX_INFLATED_BYTES
from namesrv.remoting.registered_topics import READ_SLICE, RegisteredTopics, RegistrationBody
from namesrv.remoting.wire.json_reader import ObjectReader, read_json

BYTES_SLICE = 256 * 1024
"""Bytes that are unpacked, or a checksum is taken of, before giving way: about half a millisecond."""

_ZLIB = b"\x78"
_CRC32_MASK = 0x7FFF_FFFF
_HIGHEST_LONG = 2**63 - 1
_NUMBER = "(?:0|[1-9][0-9]{0,17})"
_HEAD = re.compile(
    rf'\{{"filterServerList":\[\],"topicConfigSerializeWrapper":\{{'
    rf'"dataVersion":\{{"counter":({_NUMBER}),(?:"stateVersion":({_NUMBER}),)?"timestamp":({_NUMBER})\}},'
    rf'(?P<newer>"mappingDataVersion":\{{"counter":{_NUMBER},"stateVersion":{_NUMBER},"timestamp":{_NUMBER}\}},)?'
    r'"topicConfigTable":'
)
_TAIL = ',"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}}'
_OLD_TAIL = "}}"
"""What is before and behind the topic table as RocketMQ 5 and 4 write it: read by this in a tenth of the time of a JSON
parser, which is most of what a registration of few topics costs. Whatever is written otherwise is read by one."""


class _ReadWhole(Exception):
    """A body says more of topics than a table whose mark is held."""


def read_registration(
    data: bytes, crc32: int, known_topics: Container[str], held: TableMark | None = None
) -> Sliced[RegistrationBody]:
    """Reads a body in steps.

    One odd topic does not refuse the others, as RocketMQ's name server checks no names: it is passed over.

    Args:
        data: The body. Its first byte says whether it is compressed, whatever the header says.
        crc32: What its sender took of it (RocketMQ: bodyCrc32); 0: nothing.
        known_topics: Names that have been checked before.
        held: The mark of a table that need not be read again; None: of no table.

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
    if is_compressed(data):
        topics = RegisteredTopics(body, known_topics)
        yield from _read_compressed((yield from inflated(data)), topics)
        body.topic_configs = topics.configs
        return body
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise InvalidField("body", "is no UTF-8") from None
    try:
        return (yield from _read_text(text, known_topics, held))
    except _ReadWhole:
        return (yield from _read_text(text, known_topics, None))


def is_compressed(data: bytes) -> bool:
    """Whether a body is compressed, by its first byte."""
    return data[:1] == _ZLIB


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


def _check_crc32(data: bytes, stated: int) -> Sliced[None]:
    actual = 0
    for start in range(0, len(data), BYTES_SLICE):
        if start:
            yield
        actual = zlib.crc32(memoryview(data)[start : start + BYTES_SLICE], actual)
    if actual & _CRC32_MASK != stated:
        raise Crc32NotMatch(stated, actual & _CRC32_MASK)


class _PlainTable(NamedTuple):
    """The place of the topic table in a body that has nothing else to read."""

    data_version: DataVersion
    begin: int
    end: int


class _Reading:
    """The reading of one body."""

    def __init__(self, topics: RegisteredTopics, held: TableMark | None) -> None:
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
            body.table_mark = None
            if body.topic_configs is None:
                raise _ReadWhole
        return body


def _read_text(text: str, known_topics: Container[str], held: TableMark | None) -> Sliced[RegistrationBody]:
    """Reads a body that is JSON."""
    plain = _plain_table(text)
    if plain is not None:
        reading = _Reading(RegisteredTopics(RegistrationBody(plain.data_version), known_topics), held)
        reader = ObjectReader(text, plain.begin)
        yield from _read_table(reader, reading)
        if reader.at == plain.end:
            return reading.finished()
    reading = _Reading(RegisteredTopics(RegistrationBody(), known_topics), held)
    reader = ObjectReader(text)
    yield from _read_members(reader, reading)
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


def _read_members(reader: ObjectReader, reading: _Reading) -> Sliced[None]:
    """Reads a RegisterBrokerBody, or the wrapper in it. Versions before 3.0.11 send the wrapper alone."""
    topics = reading.topics
    body = topics.body
    for key in reader:
        match key:
            case "topicConfigSerializeWrapper":
                inner = reader.opened()
                yield from _read_members(inner, reading)
                reader.close(inner)
            case "topicConfigTable":
                yield from _read_table(reader, reading)
            case "topicQueueMappingInfoMap" | "topicQueueMappingDetailMap":
                yield from _read_mappings(reader, topics, keep=key == "topicQueueMappingInfoMap")
            case "dataVersion":
                body.data_version = data_version_of(reader.take())
            case "filterServerList":
                body.filter_servers = _filter_servers(reader.take())
            case _:
                reader.take()


def _read_table(reader: ObjectReader, reading: _Reading) -> Sliced[None]:
    """Reads a topic table, or passes over the one whose mark is held.

    Text with that mark was read as one whole value before, so it is one here, too.
    """
    topics, held, began = reading.topics, reading.held, reader.at
    body = topics.body
    reading.tables += 1
    if held is not None and (yield from _digest(reader.text, began, held.size)) == held.digest:
        reader.at += held.size
        body.topic_configs, body.table_mark = None, held
        return
    inner = reader.opened()
    for count, topic in enumerate(inner, 1):
        topics.add(topic, inner.take())
        yield from topics.add_plain(inner)
        if count % READ_SLICE == 0:
            yield
    reader.close(inner)
    size = reader.at - began
    digest = yield from _digest(reader.text, began, size)
    body.table_mark = TableMark(size, digest, len(topics.configs))


def _digest(text: str, at: int, size: int) -> Sliced[bytes]:
    """The digest of a part of a text."""
    digest = hashlib.sha256()
    for start in range(at, at + size, BYTES_SLICE):
        if start > at:
            yield
        digest.update(text[start : min(start + BYTES_SLICE, at + size)].encode())
    return digest.digest()


def _read_mappings(reader: ObjectReader, topics: RegisteredTopics, *, keep: bool) -> Sliced[None]:
    inner = reader.opened()
    for count, topic in enumerate(inner, 1):
        if keep:
            yield from topics.add_mapping(topic, inner)
        else:
            inner.take()
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


def _read_compressed(data: bytes, topics: RegisteredTopics) -> Sliced[None]:
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
        reader = ObjectReader(parts.text())
        yield from topics.add_mapping("", reader)
        reader.check_ended()
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
