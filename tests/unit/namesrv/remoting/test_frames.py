"""Frames and headers: every length is checked, and any bytes end in a frame, in waiting, or in BrokenFrame."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from namesrv.remoting.limits import MAX_FIELDS, MAX_FRAME_BYTES, MAX_HEADER_BYTES
from namesrv.remoting.wire.frames import BrokenFrame, Frame, FrameReader
from namesrv.remoting.wire.headers import answer, request_of
from tests.unit.namesrv.remoting.frames import binary_header, frame, json_header

TEXTS = st.text(max_size=20)
FIELDS = st.dictionaries(TEXTS, TEXTS, max_size=5)
NUMBERS = st.integers(-(2**31), 2**31 - 1)


def read_all(chunks: Sequence[bytes]) -> list[Frame]:
    reader, found = FrameReader(), []
    for chunk in chunks:
        reader.feed(chunk)
        while (one := reader.next()) is not None:
            found.append(one)
    return found


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(edges)]


@given(st.lists(st.tuples(st.binary(max_size=30), st.binary(max_size=30)), max_size=6), st.lists(st.integers(0, 400)))
def test_frames_are_the_same_however_a_connection_cuts_them(parts: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    data = b"".join(frame(header, body) for header, body in parts)
    assert [(one.header, one.body) for one in read_all(pieces(data, cuts))] == parts


def test_a_frame_that_is_not_whole_is_waited_for_and_says_how_large_it_will_be() -> None:
    reader = FrameReader()
    reader.feed(frame(b"header", b"body")[:9])
    assert reader.next() is None
    assert (reader.needed, reader.held) == (18, 9)
    reader.feed(frame(b"header", b"body")[9:])
    assert reader.next() == Frame(0, b"header", b"body")
    assert (reader.next(), reader.needed, reader.held) == (None, 0, 0)


@pytest.mark.parametrize(
    ("length", "header_length"),
    [
        (0, 0),
        (3, 0),
        (8, 5),
        (2**31, 4),
        (2**32 - 1, 4),
        (MAX_FRAME_BYTES - 3, 10),
        (MAX_HEADER_BYTES + 100, MAX_HEADER_BYTES + 1),
        (0x16030100, 0),  # TLS
        (int.from_bytes(b"GET ", "big"), 0),  # HTTP
        (int.from_bytes(b"PRI ", "big"), 0),  # gRPC
        (int.from_bytes(b"PROX", "big"), 0),  # a load balancer
        (int.from_bytes(b"\r\n\r\n", "big"), 0),  # the same, in version 2
    ],
)
def test_lengths_that_cannot_be_break_the_connection_before_anything_is_held(length: int, header_length: int) -> None:
    reader = FrameReader()
    reader.feed(struct.pack(">II", length, header_length))
    with pytest.raises(BrokenFrame):
        reader.next()


def test_the_largest_frame_is_taken() -> None:
    reader = FrameReader()
    reader.feed(struct.pack(">II", MAX_FRAME_BYTES - 4, 2))
    assert reader.next() is None
    assert reader.needed == MAX_FRAME_BYTES


@given(NUMBERS, NUMBERS, FIELDS, st.binary(max_size=20))
def test_a_json_header_says_what_its_sender_wrote(opaque: int, flag: int, fields: dict[str, str], body: bytes) -> None:
    (one,) = read_all([frame(json_header(105, fields, opaque, flag=flag), body)])
    request = request_of(one)
    assert (request.code, request.opaque, request.flag, request.version) == (105, opaque, flag, 513)
    assert (request.fields, request.body) == (fields, body)


@given(TEXTS | st.text('aZ09%|_-. "\\\n', max_size=300), NUMBERS, st.integers(-2, 10**6))
def test_a_lookup_as_rocketmqs_clients_write_it_is_read_as_any_other_header(
    topic: str, opaque: int, version: int
) -> None:
    values = {"code": 105, "extFields": {"topic": topic}, "flag": 0, "language": "JAVA", "opaque": opaque}
    values |= {"serializeTypeCurrentRPC": "JSON", "version": version}
    compact = json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode()
    spread = json.dumps(values).encode()
    told = [request_of(Frame(0, header, b"body")) for header in (compact, spread)]
    assert told[0] == told[1]
    assert (told[0].fields, told[0].opaque, told[0].version) == ({"topic": topic}, opaque, version)


@given(st.binary(max_size=3), st.integers(0, 120), st.integers(0, 3))
def test_a_lookup_that_is_spoiled_is_never_read_as_what_json_does_not_say(put: bytes, at: int, gone: int) -> None:
    header = b'{"code":105,"extFields":{"topic":"T5"},"flag":0,"language":"JAVA","opaque":25,'
    header += b'"serializeTypeCurrentRPC":"JSON","version":513}'
    spoiled = header[:at] + put + header[at + gone :]
    try:
        request = request_of(Frame(0, spoiled, b""))
    except BrokenFrame:
        return
    said = json.loads(spoiled.decode(errors="surrogateescape"), strict=False)
    assert (request.code, request.opaque) == (said["code"], said.get("opaque", 0))
    if "topic" in request.fields:
        assert request.fields["topic"] == said["extFields"]["topic"]


@given(st.integers(-(2**15), 2**15 - 1), NUMBERS, FIELDS, st.binary(max_size=20))
def test_a_binary_header_says_the_same(code: int, opaque: int, fields: dict[str, str], body: bytes) -> None:
    (one,) = read_all([frame(binary_header(code, fields, opaque), body, 1)])
    request = request_of(one)
    assert (request.code, request.opaque, request.fields, request.body) == (code, opaque, fields, body)


@given(
    NUMBERS, st.integers(0, 2000), st.none() | FIELDS, st.none() | TEXTS, st.sampled_from((json_header, binary_header))
)
def test_an_answer_has_the_number_and_the_encoding_of_its_request(
    opaque: int, code: int, fields: dict[str, str] | None, remark: str | None, header: object
) -> None:
    asked = frame(json_header(105, None, opaque), b"") if header is json_header else b""
    asked = asked or frame(binary_header(105, None, opaque), b"", 1)
    (one,) = read_all([asked])
    (told,) = read_all([answer(request_of(one), code, b"body", fields, remark)])
    read = request_of(told)
    assert told.encoding == one.encoding
    assert (read.code, read.opaque, read.body, read.is_answer) == (code, opaque, b"body", True)
    assert read.fields == (fields or {})
    if one.encoding == 0:
        assert json.loads(told.header).get("remark") == remark


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff\xff",
        b'{"code":105} {}',
        b'{"code":"105"}',
        b'{"code":true}',
        b'{"opaque":1}',
        b'{"code":105,"opaque":4294967296}',
        b'{"code":105,"opaque":1.5}',
        b'{"code":105,"extFields":[]}',
        b'{"code":105,"extFields":{"topic":{}}}',
        b'{"code":' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        json.dumps({"code": 1, "extFields": {str(number): "" for number in range(MAX_FIELDS + 1)}}).encode(),
    ],
)
def test_a_header_that_is_none_breaks_the_connection(header: bytes) -> None:
    with pytest.raises(BrokenFrame):
        request_of(Frame(0, header, b""))


def large_header(more: bytes) -> Frame:
    """A header with a large value, and another member."""
    value = b'\\"[{}]' * 10_000
    return Frame(0, b'{"code":100,"extFields":{"key":"k","value":"%b"}%b}' % (value, more), b"")


def test_a_large_header_has_fields_and_nothing_that_costs_more() -> None:
    assert len(request_of(large_header(b', "language" : "JAVA"')).fields["value"]) == 50_000
    for more in (b',"x":[{},{}]', b',"x":{}', b',"x":' + b"9" * 200_000, b',"x":0' * MAX_FIELDS * 3):
        with pytest.raises(BrokenFrame, match="that has more than fields"):
            request_of(large_header(more))


def test_fields_that_are_no_text_are_read_as_rocketmq_reads_them() -> None:
    header = b'{"code":105,"extFields":{"a":1,"b":true,"c":null,"d":"x"},"language":"COBOL","more":[1]}'
    assert request_of(Frame(0, header, b"")).fields == {"a": "1", "b": "true", "d": "x"}


def test_a_header_of_few_words_is_enough() -> None:
    request = request_of(Frame(0, b'{"code":106,"extFields":null}', b""))
    assert (request.code, request.opaque, request.version, request.fields) == (106, 0, 0, {})


def test_a_header_in_an_unknown_encoding_breaks_the_connection() -> None:
    with pytest.raises(BrokenFrame):
        request_of(Frame(2, b"{}", b""))


@given(st.binary(max_size=60), st.integers(0, 1))
def test_no_header_does_anything_but_be_read_or_break_the_connection(header: bytes, encoding: int) -> None:
    try:
        request = request_of(Frame(encoding, header, b""))
    except BrokenFrame:
        return
    assert all(isinstance(value, str) for value in request.fields.values())


@given(FIELDS, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=3))
def test_no_spoiled_binary_header_reads_beyond_its_end(fields: dict[str, str], spoiled: list[tuple[int, int]]) -> None:
    header = bytearray(binary_header(105, fields))
    for at, value in spoiled:
        header[at % len(header)] = value
    try:
        request = request_of(Frame(1, bytes(header), b""))
    except BrokenFrame:
        return
    texts = [text.encode(errors="surrogateescape") for item in request.fields.items() for text in item]
    assert sum(map(len, texts)) <= len(header)
