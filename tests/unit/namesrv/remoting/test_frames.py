"""Headers: any bytes are read as their sender wrote them, or end in BrokenFrame. Odd characters are refused."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from namesrv.core.errors import Reason, Refused
from namesrv.error_codes import ResponseCode
from namesrv.remoting.connection import refusal
from namesrv.remoting.wire import GO_AWAY, MAX_FIELDS, BrokenFrame, answer, request_of
from tests.support.programs.rocketmq import data_version, registration_body, topic_config
from tests.support.socketless_front import SentFrame, connected, frames_in
from tests.unit.namesrv.remoting.frames import binary_header, frame, json_header

TEXTS = st.text(max_size=20)
FIELDS = st.dictionaries(TEXTS, TEXTS, max_size=5)
NUMBERS = st.integers(-(2**31), 2**31 - 1)


Made = tuple[Callable[..., bytes], int]
"""What makes a header, and its encoding."""
ALL_MADE: list[Made] = [(json_header, 0), (binary_header, 1)]
HEADERS = st.sampled_from(ALL_MADE)


@given(HEADERS, st.integers(-(2**15), 2**15 - 1), NUMBERS, NUMBERS, FIELDS, st.binary(max_size=20))
def test_a_header_says_what_its_sender_wrote(
    made: Made, code: int, opaque: int, flag: int, fields: dict[str, str], body: bytes
) -> None:
    header, encoding = made
    (one,) = frames_in(frame(header(code, fields, opaque, flag=flag), body, encoding))
    request = request_of(one)
    assert (request.code, request.opaque, request.flag, request.version) == (code, opaque, flag, 513)
    assert (request.fields, request.body) == (fields, body)


@given(HEADERS, NUMBERS, st.integers(0, 2000), st.none() | FIELDS, st.none() | TEXTS)
def test_an_answer_has_the_number_and_the_encoding_of_its_request(
    made: Made, opaque: int, code: int, fields: dict[str, str] | None, remark: str | None
) -> None:
    header, encoding = made
    (one,) = frames_in(frame(header(105, None, opaque), b"", encoding))
    (told,) = frames_in(answer(request_of(one), code, b"body", fields, remark))
    read = request_of(told)
    assert told.encoding == one.encoding
    assert (read.code, read.opaque, read.body, read.is_answer) == (code, opaque, b"body", True)
    assert read.fields == (fields or {})
    if one.encoding == 0:
        assert json.loads(told.header).get("remark") == remark


TOO_LONG = struct.pack(">hBhiiii", 105, 0, 513, 1, 0, 0, 2**31 - 1)
TOO_SHORT = TOO_LONG[:-4] + b"\0\0\0\0" + b"\0\1a\0\0\0\1b"
"""A field beyond the length of all fields."""


@pytest.mark.parametrize(
    ("encoding", "header"),
    [
        (0, b""),
        (0, b"[]"),
        (0, b"null"),
        (0, b"{"),
        (0, b"\xff\xff"),
        (0, b'{"code":105} {}'),
        (0, b'{"code":"105"}'),
        (0, b'{"code":true}'),
        (0, b'{"opaque":1}'),
        (0, b'{"code":105,"opaque":4294967296}'),
        (0, b'{"code":105,"opaque":1.5}'),
        (0, b'{"code":105,"extFields":[]}'),
        (0, b'{"code":105,"extFields":{"topic":{}}}'),
        (0, b'{"code":' + b"9" * 5000 + b"}"),
        (0, b"[" * 100_000),
        (0, json.dumps({"code": 1, "extFields": {str(number): "" for number in range(MAX_FIELDS + 1)}}).encode()),
        (1, b"{}"),
        (1, TOO_LONG),
        (1, TOO_SHORT),
        (2, b"{}"),
    ],
)
def test_a_header_that_is_none_breaks_the_connection(encoding: int, header: bytes) -> None:
    with pytest.raises(BrokenFrame):
        request_of(SentFrame(encoding, header, b""))


def large_header(more: bytes) -> SentFrame:
    """A header with a large value, and another member."""
    value = b'\\"[{}]' * 10_000
    return SentFrame(0, b'{"code":100,"extFields":{"key":"k","value":"%b"}%b}' % (value, more), b"")


def test_a_large_header_has_fields_and_nothing_that_costs_more() -> None:
    assert len(request_of(large_header(b', "language" : "JAVA"')).fields["value"]) == 50_000
    for more in (b',"x":[{},{}]', b',"x":{}', b',"x":' + b"9" * 200_000, b',"x":0' * MAX_FIELDS * 3):
        with pytest.raises(BrokenFrame, match="that has more than fields"):
            request_of(large_header(more))


def test_fields_that_are_no_text_are_read_as_rocketmq_reads_them() -> None:
    header = b'{"code":105,"extFields":{"a":1,"b":true,"c":null,"d":"x"},"language":"COBOL","more":[1]}'
    assert request_of(SentFrame(0, header, b"")).fields == {"a": "1", "b": "true", "d": "x"}


def test_a_header_of_few_words_is_enough() -> None:
    request = request_of(SentFrame(0, b'{"code":106,"extFields":null}', b""))
    assert (request.code, request.opaque, request.version, request.fields) == (106, 0, 0, {})


@given(FIELDS, st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=3))
def test_no_spoiled_binary_header_reads_beyond_its_end(fields: dict[str, str], spoiled: list[tuple[int, int]]) -> None:
    header = bytearray(binary_header(105, fields))
    for at, value in spoiled:
        header[at % len(header)] = value
    try:
        request = request_of(SentFrame(1, bytes(header), b""))
    except BrokenFrame:
        return
    texts = [text.encode(errors="surrogateescape") for item in request.fields.items() for text in item]
    assert sum(map(len, texts)) <= len(header)


def test_the_engine_has_the_answer_with_each_encoding_of_a_header() -> None:
    told = [one for encoded in GO_AWAY.answers for one in frames_in(encoded)]
    assert [one.encoding for one in told] == [0, 1]
    assert {(read.code, read.is_answer) for read in map(request_of, told)} == {(ResponseCode.GO_AWAY, True)}


@pytest.mark.parametrize(
    ("version", "code"), [(475, ResponseCode.SYSTEM_ERROR), (476, ResponseCode.GO_AWAY), (513, ResponseCode.GO_AWAY)]
)
def test_a_request_that_a_frozen_server_refuses_has_the_code_that_its_client_knows(version: int, code: int) -> None:
    (asked,) = frames_in(frame(json_header(version=version)))
    (told,) = frames_in(refusal(request_of(asked), Refused(Reason.SHUTTING_DOWN, "the name server ends")))
    assert request_of(told).code == code


MARK, HALF = "~~~", "\ud800"
"""What is replaced in whole headers, and its replacement in JSON; in bytes that is three bytes, too."""
HALF_BYTES = HALF.encode("utf-8", "surrogatepass")
ADDRESS = "127.0.0.1:10911"
BROKER = {"clusterName": "c", "brokerName": "b", "brokerAddr": ADDRESS, "brokerId": "0"}
KV = {"namespace": "n", "key": "k", "value": "v"}
BODIES = {
    103: registration_body(["T"]),
    217: json.dumps({"queueDatas": [{"brokerName": "b"}]}).encode(),
    322: json.dumps(data_version(1)).encode(),
}
NAMES = {
    100: ("namespace", "key", "value"),
    101: ("namespace", "key"),
    102: ("namespace", "key"),
    103: ("clusterName", "brokerName", "brokerAddr", "brokerId", "__ZONE_NAME"),
    104: ("clusterName", "brokerName", "brokerAddr"),
    105: ("topic",),
    205: ("brokerName",),
    216: ("topic", "clusterName"),
    217: ("topic",),
    219: ("namespace",),
    224: ("cluster",),
    322: ("clusterName", "brokerName", "brokerAddr", "brokerId"),
    327: ("brokerName",),
    901: ("clusterName", "brokerName"),
    904: ("clusterName", "brokerAddr"),
}
ODD_TOPIC = registration_body([topic_config("Good"), topic_config(MARK)])


async def asked(folder: Path, frames: list[bytes]) -> list[int]:
    """Returns the answers' codes of requests on one connection, and checks that it stays open."""
    async with connected(folder) as (front, client):
        answers = await client.send(frames)
        assert client.is_open, front.broken_by
        reasons = [problem.reason for _, problem in front.told if problem is not None]
        assert Reason.INTERNAL_DEFECT not in reasons
        return [request_of(answer).code for answer in answers]


def layouts(code: int, fields: dict[str, str], body: bytes) -> list[bytes]:
    """A request whose mark has become half of a character or odd bytes, by each way to write a header."""
    escaped = {name: value.replace(MARK, HALF) for name, value in fields.items()}
    json_bytes = json_header(code, fields).replace(MARK.encode(), HALF_BYTES)
    binary_bytes = binary_header(code, fields).replace(MARK.encode(), HALF_BYTES)
    return [frame(json_header(code, escaped), body), frame(json_bytes, body), frame(binary_bytes, body, 1)]


@pytest.mark.parametrize(("code", "name"), [(code, name) for code, names in NAMES.items() for name in names])
async def test_a_request_with_half_a_character_in_a_name_is_refused(tmp_path: Path, code: int, name: str) -> None:
    fields = BROKER | KV | {"topic": "T", "cluster": "c", "haServerAddr": ADDRESS, "__ZONE_NAME": "z"}
    frames = [
        sent
        for value in (MARK, f"a{MARK}", f"{ADDRESS}{MARK}")
        for sent in layouts(code, fields | {name: value}, BODIES.get(code, b""))
    ]
    told = await asked(tmp_path, frames)
    assert (len(told), set(told) <= {1, 17}) == (len(frames), True), told


async def test_a_zone_of_half_a_character_in_a_lookup_is_no_zone_of_any_group(tmp_path: Path) -> None:
    fields = {"topic": "T", "__ZONE_NAME": MARK, "__ZONE_MODE": "true"}
    frames = [frame(json_header(103, BROKER), BODIES[103]), *layouts(105, fields, b"")]
    assert set(await asked(tmp_path, frames)) <= {0, 17}


@pytest.mark.parametrize(
    ("code", "fields", "body", "answered"),
    [
        (103, BROKER | {"haServerAddr": ADDRESS + MARK}, b'{"filterServerList":["%b"]}' % HALF_BYTES, 0),
        (103, BROKER | {"bodyCrc32": MARK}, ODD_TOPIC.replace(MARK.encode(), HALF_BYTES), 0),
        (103, BROKER, ODD_TOPIC.replace(MARK.encode(), rb"\ud800"), 1),
        (217, {"topic": "T"}, rb'{"queueDatas":[{"brokerName":"\ud800"}]}', 1),
        (318, {}, b"key=" + HALF_BYTES, 1),
    ],
)
async def test_half_a_character_where_anything_goes_is_passed_over_or_refused(
    tmp_path: Path, code: int, fields: dict[str, str], body: bytes, answered: int
) -> None:
    assert await asked(tmp_path, layouts(code, fields, body)) == [answered] * 3
