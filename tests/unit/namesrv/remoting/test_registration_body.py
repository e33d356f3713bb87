"""Bodies of registrations: JSON with and without quotes around numbers, compressed ones, and those that are spoiled."""

from __future__ import annotations

import json
import struct
import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from namesrv import limits
from namesrv.core.errors import Reason, suppress_refusals
from namesrv.core.model import DataVersion, StaticMapping, TopicTableFingerprint
from namesrv.core.pace import FEW
from namesrv.remoting import bodies, json_reader
from namesrv.remoting.bodies import RegistrationBody, read_registration
from namesrv.remoting.json_reader import JsonReader, read_json
from namesrv_common.topic_names import MAX_QUEUE_NUMS
from tests.support.refusals import refuses
from tests.support.yield_points import yield_points_of


def unquoted(value: Any) -> str:
    """JSON as fastjson writes it: keys that are numbers without quotes."""
    if isinstance(value, dict):
        members = (
            f"{key if isinstance(key, int) else json.dumps(key)}:{unquoted(inner)}" for key, inner in value.items()
        )
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + " , ".join(map(unquoted, value)) + "]"
    return json.dumps(value)


def read(data: bytes, crc32: int = 0, held: TopicTableFingerprint | None = None) -> RegistrationBody:
    return read_registration(data, crc32, (), held)


def packed(value: Any) -> bytes:
    """JSON as RocketMQ writes it."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def topic(name: str, **changed: Any) -> dict[str, Any]:
    config = {"order": False, "perm": 6, "readQueueNums": 4, "topicName": name, "topicSysFlag": 0, "writeQueueNums": 4}
    return {"attributes": {}, "topicFilterType": "SINGLE_TAG", **config, **changed}


def body(topics: dict[str, Any], **wrapper: Any) -> dict[str, Any]:
    version = {"counter": 8, "stateVersion": 1, "timestamp": 1795340540541}
    table = {"dataVersion": version, "mappingDataVersion": version, "topicConfigTable": topics, **wrapper}
    return {"filterServerList": [], "topicConfigSerializeWrapper": table}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.integers(-99, 99) | st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=12,
)


def compressed(names: list[str], mappings: list[str] | None = None) -> bytes:
    version = b'{"counter":8,"stateVersion":1,"timestamp":1795340540541}'
    parts = struct.pack(">i", len(version)) + version + struct.pack(">i", len(names))
    for name in names:
        text = f"{name} 4 5 6 SINGLE_TAG {{ }}".encode()
        parts += struct.pack(">i", len(text)) + text
    parts += struct.pack(">i", 2) + b"[]"
    if mappings is not None:
        parts += struct.pack(">i", len(mappings))
        for mapping in mappings:
            parts += struct.pack(">i", len(mapping)) + mapping.encode()
    return zlib.compress(parts)


@given(VALUES)
def test_json_with_numbers_as_keys_is_read_like_json(value: Any) -> None:
    assert read_json(unquoted(value)) == json.loads(json.dumps(value))
    with refuses(Reason.INVALID_FIELD):
        read_json(f"{unquoted(value)} x")


@given(st.dictionaries(st.integers(0, 9) | st.text(max_size=4), VALUES, max_size=4))
def test_an_object_is_read_member_by_member(value: dict[Any, Any]) -> None:
    reader = JsonReader(f" {unquoted(value)} ")
    assert {key: reader.take() for key in reader.members()} == json.loads(json.dumps(value))
    reader.check_ended()


def test_mappings_with_numbers_as_keys_are_kept_and_cost_no_topic() -> None:
    mapping = {"bname": "broker-a", "currIdMap": {0: 0, 1: 1}, "scope": "__global__", "topic": "TS", "totalQueues": 2}
    detail = {"bname": "broker-a", "hostedQueues": {0: [{"gen": 0}]}, "topic": "TS"}
    wrapper = {"topicQueueMappingDetailMap": {"TS": detail}, "topicQueueMappingInfoMap": {"TS": mapping}}
    found = read(unquoted(body({"TS": topic("TS")}, **wrapper)).encode())
    assert found.topic_configs == {"TS": (4, 4, 6, 0)}
    assert found.mappings == {"TS": StaticMapping("__global__", 2, 0, False, ((0, 0), (1, 1)))}


def test_a_body_of_version_4_and_the_bare_wrapper_of_version_3_are_read() -> None:
    version = {"counter": 3, "timestamp": 5}
    wrapper = {"dataVersion": version, "topicConfigTable": {"T": topic("T")}}
    for whole in ({"filterServerList": ["127.0.0.1:1"], "topicConfigSerializeWrapper": wrapper}, wrapper):
        found = read(json.dumps(whole).encode())
        assert (found.data_version, found.topic_configs) == (DataVersion(5, 3, 0), {"T": (4, 4, 6, 0)})


@pytest.mark.parametrize("mappings", [None, ['{"topic":"TS","currIdMap":{0:1}}']])
def test_a_compressed_body_is_known_by_its_first_byte(mappings: list[str] | None) -> None:
    found = read(compressed(["A", "B"], mappings))
    assert found.data_version == DataVersion(1795340540541, 8, 1)
    assert found.topic_configs == {"A": (4, 5, 6, 0), "B": (4, 5, 6, 0)}
    assert found.mappings == ({} if mappings is None else {"TS": StaticMapping("", 0, 0, False, ((0, 1),))})


@pytest.mark.parametrize(
    "odd",
    [topic("a\n"), topic(""), topic("X", perm="x"), topic("X", readQueueNums=-1), topic("X", writeQueueNums=2**16), []],
)
def test_one_odd_topic_is_passed_over_and_counted(odd: Any) -> None:
    found = read(json.dumps(body({"": odd, "T": topic("T")})).encode())
    assert found.topic_configs == {"T": (4, 4, 6, 0)}
    assert (found.skipped, len(found.problems)) == (1, 1)


def test_a_name_that_is_passed_over_is_named_once() -> None:
    found = read(json.dumps(body({"a\n": topic("a\n"), "b\n": topic("b\n")})).encode())
    assert found.problems == dict.fromkeys(("a\n", "b\n"), "has characters that are not printable")


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        ({"perm": "6", "readQueueNums": "+3", "writeQueueNums": "3.7"}, (3, 3, 6, 0)),
        ({"perm": 4.9, "readQueueNums": True, "writeQueueNums": 3.0}, (1, 3, 4, 0)),
        ({"perm": None, "readQueueNums": "", "writeQueueNums": "null"}, (16, 16, 6, 0)),
        ({}, (16, 16, 6, 0)),
        ({"perm": -1, "topicSysFlag": -1}, (16, 16, -1, -1)),
    ],
)
def test_numbers_are_read_as_rocketmq_reads_them(said: dict[str, Any], taken: tuple[int, ...]) -> None:
    assert read(json.dumps(body({"T": {"topicName": "T", **said}})).encode()).topic_configs == {"T": taken}


def test_of_two_topic_tables_the_last_counts() -> None:
    table = '{{"topicConfigTable":{{"A":{0}}},"topicConfigTable":{{"B":{0}}}}}'.format('{"perm":6}')
    assert list(read(table.encode()).topic_configs or ()) == ["B"]


def test_bytes_that_are_no_utf_8_are_replaced_and_a_byte_order_mark_is_dropped() -> None:
    data = b"\xef\xbb\xbf" + packed(body({"T~": topic("T~")})).replace(b"~", b"\xff")
    assert list(read(data).topic_configs or ()) == ["T\ufffd"]


def test_characters_that_are_two_escapes_and_escaped_backslashes_are_read() -> None:
    assert read_json(r'{"\ud83d\ude00":"\\ud800"}') == {"\U0001f600": r"\ud800"}


def test_filter_servers_that_are_no_addresses_are_passed_over() -> None:
    servers = ["10.0.0.1:1", "odd", None, 5, "fd00::1:2", *(f"h:{port}" for port in range(1, 100))]
    found = read(json.dumps({"filterServerList": servers}).encode())
    assert found.filter_servers is not None
    assert found.filter_servers[:3] == ("10.0.0.1:1", "fd00::1:2", "h:1")
    assert len(found.filter_servers) == limits.MAX_FILTER_SERVERS - 1
    assert found.odd_addresses == ["odd", "h:62", "h:63"]
    assert read(b'{"filterServerList":"h:1"}').filter_servers == ("h:1",)
    assert read(b'{"filterServerList":null}').filter_servers is None


def test_the_queues_of_all_mappings_of_a_registration_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_MAPPED_QUEUES", 3)
    mappings = {name: {"currIdMap": {"0": 0, "1": 1}, "totalQueues": 2} for name in ("T", "U")}
    with refuses(Reason.LIMIT_EXCEEDED) as caught:
        read(json.dumps(body({}, topicQueueMappingInfoMap=mappings)).encode())
    assert caught.value.metadata == {"name": "queues in mappings of one registration", "value": "4", "limit": "3"}


@pytest.mark.parametrize(
    "odd",
    [
        [],
        {"topic": [{}]},
        {"topic": {"T": 1}},
        {"topic": 5},
        {"scope": 1},
        {"scope": "a\nb"},
        {"totalQueues": "many"},
        {"epoch": "many"},
        {"currIdMap": []},
    ],
)
def test_an_odd_mapping_is_passed_over_and_its_topic_stays(odd: Any) -> None:
    found = read(json.dumps(body({"T": topic("T")}, topicQueueMappingInfoMap={"T": odd})).encode())
    assert (found.topic_configs, found.mappings, found.skipped) == ({"T": (4, 4, 6, 0)}, {}, 1)


def test_a_checksum_of_the_body_as_sent_is_compared_and_its_top_bit_is_not() -> None:
    data = json.dumps(body({"T": topic("T")})).encode().ljust(2 * bodies.BYTES_AT_ONCE)
    assert read(data, zlib.crc32(data) & 0x7FFFFFFF).topic_configs
    with refuses(Reason.CRC32_NOT_MATCH):
        read(data, (zlib.crc32(data) & 0x7FFFFFFF) ^ 1)


def test_nothing_inflates_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MAX_INFLATED_BYTES", 1_000_000)
    mapping = struct.pack(">i", 1) + struct.pack(">i", 2) + b"{}"
    head = zlib.decompress(compressed(["A"])) + mapping
    assert read(zlib.compress(head.ljust(1_000_000, b"\0"))).topic_configs == {"A": (4, 5, 6, 0)}
    for size in (1_000_001, 10_000_000):
        with refuses(Reason.LIMIT_EXCEEDED):
            read(zlib.compress(head.ljust(size, b"\0")))


def test_many_topics_in_another_form_than_rocketmqs_are_read_with_yield_points() -> None:
    names = [f"T{number}" for number in range(3 * FEW)]
    data = json.dumps(body({name: topic(name) for name in names})).encode()
    assert read(data).topic_configs == dict.fromkeys(names, (4, 4, 6, 0))
    assert yield_points_of(lambda: read(data)) >= 2


def test_a_packed_body_of_empty_blocks_is_read_with_yield_points() -> None:
    packer = zlib.compressobj()
    data = packer.compress(b"") + packer.flush(zlib.Z_SYNC_FLUSH) + b"\0\0\0\xff\xff" * 400_000

    def refused() -> None:
        with refuses(Reason.INVALID_FIELD):
            read(data)

    assert yield_points_of(refused) >= 2_000_000 // bodies.BYTES_AT_ONCE


JUNK = {
    "lists": b"[" + b"[]," * 1_000_000 + b"[]]",
    "nested": b"[" + (b"[" * 900 + b"]" * 900 + b",") * 1_750 + b"[]]",
    "keys without quotes": b"{1:[" + b"[]," * 1_000_000 + b"[]]}",
    "members of a mapping": b'{"topicQueueMappingInfoMap":{"T":{'
    + b",".join(b'"m%d":[' % n + b"[]," * 60_000 + b"[]]" for n in range(15))
    + b"}}}",
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
@pytest.mark.parametrize("is_packed", [False, True])
def test_few_objects_are_made_of_a_large_body(junk: bytes, *, is_packed: bool) -> None:
    version = b'{"counter":8}'
    parts = struct.pack(">i", len(version)) + version + struct.pack(">ii", 0, len(junk)) + junk
    data = zlib.compress(parts) if is_packed else junk if junk.startswith(b'{"') else b'{"x":' + junk + b"}"
    tracemalloc.start()
    try:
        with suppress_refusals(Reason.INVALID_FIELD):
            read(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(data) + 32 * 1024 * 1024


def test_a_wrapper_within_wrappers_is_passed_over() -> None:
    depth = 400
    inner = b'{"topicConfigSerializeWrapper":' * depth + b'{"filterServerList":["127.0.0.1:1"]}' + b"}" * depth
    assert read(inner).filter_servers == ()


def mapped(queues: str) -> bytes:
    """A body whose topic TS has these queues, as they are written, and whose topic T follows."""
    text = json.dumps(body({"T": topic("T")}, topicQueueMappingInfoMap={"TS": {"currIdMap": "HERE", "totalQueues": 9}}))
    return text.replace('"HERE"', queues).encode()


TWO_TOPICS = packed(body({"A": topic("A"), "B": topic("B")}))


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b"\xff",
        b"{}{}",
        b'{"topicConfigTable":[]}',
        b'{"topicConfigTable":{"T":}}',
        b'{"dataVersion":{"counter":"many"}}',
        b'{"dataVersion":[]}',
        b'{"x":' + b"[" * 100_000,
        b"{topicConfigTable:{}}",
        b"{'topicConfigTable':{}}",
        b'{"x":[1,],}',
        b'{"x":1/**/}',
        b'{"x":+1}',
        rb'{"x":"\ud800"}',
        rb'{"x":"a\\\ude00"}',
        b'{"x":9223372036854775808}',
        b'{"x":-9223372036854775809}',
        b'{"x":' + b"9" * 5_000 + b"}",
        b'{"x":{0:' * 100 + b"1" + b"}}" * 100,
        compressed(["A"])[:-9],
        zlib.compress(b"\0\0\0\x7fabc"),
        *(TWO_TOPICS.replace(b'},"B"', b'}%b"B"' % between) for between in (b"", b"{", b",,", b",{")),
        *map(mapped, ("{0:0,1:1", '{0:0,"1:1}', '{0:0,1":1}', "{0:0,1:01}", "{0:0,,1:1}")),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_by_a_clear_error(data: bytes) -> None:
    with refuses(Reason.INVALID_FIELD) as refused:
        read(data)
    assert refused.value.violations[0].field.startswith("body")


# Topics in the form in which RocketMQ writes them are read in another way than others, to the same end

ODD_VALUES = st.sampled_from(
    [
        {"perm": 9},
        {"perm": "6"},
        {"topicName": "other"},
        {"topicName": "a\n"},
        {"order": None},
        {"writeQueueNums": 2**40},
    ]
)
TABLES = st.dictionaries(
    st.sampled_from([*(f"T{number}" for number in range(9)), "", 'q"q', "a\\b", "a b", "\u00fc"]),
    st.fixed_dictionaries(
        {"perm": st.integers(0, 7), "readQueueNums": st.integers(0, 99), "topicSysFlag": st.integers(0, 3)},
        optional={
            "attributes": st.dictionaries(
                st.text(max_size=3), st.text(max_size=3) | st.integers(-(2**63), 2**63 - 1), max_size=2
            ),
            "order": st.booleans(),
        },
    ),
)


@given(TABLES, st.lists(ODD_VALUES, max_size=3))
def test_a_table_reads_the_same_however_it_is_written(table: dict[str, Any], odd: list[dict[str, Any]]) -> None:
    topics = {name: topic(name, **changed) for name, changed in table.items()}
    for name, changed in zip(topics, odd, strict=False):
        topics[name].update(changed)
    plain, spread = read(packed(body(topics))), read(json.dumps(body(topics), indent=1, sort_keys=True).encode())
    expected = (spread.topic_configs, spread.skipped, spread.problems)
    assert (plain.topic_configs, plain.skipped, plain.problems) == expected


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        (b'"perm":6', b'"perm":6x'),
        (b'"perm":6', b'"perm":6,'),
        (b"},", b"}"),
        (b'"attributes":{}', b'"attributes":{"a":"b",,}'),
        (b'"attributes":{}', b'"attributes":{"a":"b""c":"d"}'),
        (b'"T1":{', b'"T1":{{'),
        (b'"order":false', b'"order":False'),
    ],
)
def test_what_is_no_json_is_refused_also_within_topics_that_are_written_as_usual(was: bytes, becomes: bytes) -> None:
    before, tail = packed(body({f"T{number}": topic(f"T{number}") for number in range(3)})).split(b'"T1":', 1)
    data = before + (b'"T1":' + tail).replace(was, becomes, 1)
    with refuses(Reason.INVALID_FIELD):
        read(data)


FOUR = body({f"T{number}": topic(f"T{number}") for number in range(4)})
TOO_MANY: dict[str, bytes] = {
    "topics": packed(FOUR),
    "repeated topics": packed(FOUR).replace(b"T1", b"T0").replace(b"T2", b"T0").replace(b"T3", b"T0"),
    "topics in another form": json.dumps(FOUR).encode(),
    "topics that are passed over": packed(FOUR).replace(b'"perm":6', b'"perm":"x"'),
    "compressed topics": compressed(["A", "A", "A", "A"]),
    "topics that are only announced": zlib.compress(struct.pack(">i", 2) + b"{}" + struct.pack(">i", 4)),
}


@pytest.mark.parametrize("data", TOO_MANY.values(), ids=TOO_MANY)
def test_no_more_topics_are_read_than_a_registration_may_have(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_TOPICS_PER_REGISTRATION", 3)
    with refuses(Reason.LIMIT_EXCEEDED):
        read(data)


def test_a_body_has_a_limit_on_members_that_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b'{"topicQueueMappingInfoMap":{"A":{"x":0,"x":0,"x":0}}}'
    assert read(data).topic_configs == {}
    monkeypatch.setattr(json_reader, "MAX_MEMBERS", 4)
    with refuses(Reason.LIMIT_EXCEEDED, match="members of a body"):
        read(data)


# A table whose fingerprint is held


def test_a_table_that_is_held_is_not_read_and_all_else_is() -> None:
    table = body({"A": topic("A", attributes={"x": "\u00fc"}), "B": topic("B")})
    mark = read(packed(table)).table_fingerprint
    assert mark is not None
    assert mark.topics == 2
    table["filterServerList"] = ["127.0.0.1:1"]
    table["topicConfigSerializeWrapper"]["dataVersion"]["counter"] = 12_345
    found = read(packed(table), held=mark)
    assert (found.topic_configs, found.table_fingerprint) == (None, mark)
    assert (found.data_version.counter, found.filter_servers) == (12_345, ("127.0.0.1:1",))


@pytest.mark.parametrize("change", [{"perm": 4}, {"readQueueNums": 16}, {"topicName": "D"}])
def test_a_table_that_differs_in_one_topic_is_read(change: dict[str, Any]) -> None:
    topics = {name: topic(name) for name in "ABC"}
    mark = read(packed(body(topics))).table_fingerprint
    topics["B"].update(change)
    found = read(packed(body(topics)), held=mark)
    assert found.topic_configs is not None
    assert found.table_fingerprint != mark
    assert found.topic_configs == read(packed(body(topics))).topic_configs


WRAPPERS = st.fixed_dictionaries(
    {"dataVersion": st.fixed_dictionaries({"counter": st.integers(0, 2**63 - 1), "timestamp": st.integers(0, 9)})},
    optional={
        "mappingDataVersion": st.just({"counter": 0, "stateVersion": 0, "timestamp": 0}),
        "topicQueueMappingDetailMap": st.just({}),
        "topicQueueMappingInfoMap": st.sampled_from([{}, {"A": {"currIdMap": {}}}]),
        "x": st.sampled_from([0, {}, {"topicConfigTable": {}}]),
    },
)
WRITTEN_TABLES: st.SearchStrategy[Any] = st.none() | st.dictionaries(
    st.sampled_from("ABC"),
    st.builds(lambda perm: topic("A", perm=perm), st.integers(-1, 9) | st.none() | st.text(max_size=3)),
)


@given(WRAPPERS, WRITTEN_TABLES, st.booleans())
def test_however_a_body_is_written_the_same_is_read(wrapper: dict[str, Any], table: Any, held: bool) -> None:
    """In RocketMQ's own form the table is found without reading what is around it."""
    value = {"filterServerList": [], "topicConfigSerializeWrapper": {**wrapper, "topicConfigTable": table}}
    # In the same order: of two entries that name one topic the last counts.
    written, otherwise = packed(value), json.dumps(value, sort_keys=True).encode()
    mark = read(written).table_fingerprint if held else None
    found, expected = read(written, held=mark), read(otherwise)
    if mark is not None:
        assert found.topic_configs is None
        assert found.table_fingerprint == mark
        around = found.data_version, found.filter_servers, found.mappings, found.skipped
        assert around == (expected.data_version, expected.filter_servers, expected.mappings, expected.skipped)
        found = read(written)
    expected.table_fingerprint = found.table_fingerprint  # of the text, which differs in blanks
    assert found == expected


@pytest.mark.parametrize("cut", range(1, 80, 3))
@pytest.mark.parametrize("is_held", [True, False])
def test_a_body_in_rocketmqs_own_form_that_is_cut_short_is_refused(cut: int, is_held: bool) -> None:
    data = packed(body({"A": topic("A")}, topicQueueMappingDetailMap={}, topicQueueMappingInfoMap={}))
    with refuses(Reason.INVALID_FIELD):
        read(data[:-cut], held=read(data).table_fingerprint if is_held else None)


def test_a_table_beside_which_more_of_topics_is_said_has_no_fingerprint() -> None:
    topics = {"A": topic("A")}
    mark = read(packed(body(topics))).table_fingerprint
    mapping = {"currIdMap": {"0": 0}, "scope": "s", "topic": "A", "totalQueues": 1}
    more = packed(body(topics, topicQueueMappingInfoMap={"A": mapping}))
    twice = (
        packed(body(topics))
        .replace(b'"topicQueue', b'"x')
        .replace(b'"topicConfigTable":', b'"topicConfigTable":' + packed(topics) + b',"topicConfigTable":')
    )
    odd = packed(body({"A": topic("A"), "B": topic("a\n")}))
    for data in (more, twice, odd):
        found = read(data, held=mark)
        assert found.topic_configs == {"A": (4, 4, 6, 0)}
        assert found.table_fingerprint is None


@pytest.mark.parametrize("form", ["%d:%d", '"%d":%d'])
@pytest.mark.parametrize("order", [1, -1])
def test_a_mapping_of_tens_of_thousands_of_queues_is_read_with_yield_points(form: str, order: int) -> None:
    ids = [(queue, queue + 1) for queue in range(20_000)]
    data = mapped("{" + ",".join(form % one for one in ids[::order]) + "}")
    assert read(data).mappings["TS"].queue_ids == tuple(ids)
    assert yield_points_of(lambda: read(data)) >= 20_000 // FEW


@pytest.mark.parametrize("odd", ["-1", "9999999999", '"x"', "[1]", "{2:3}"])
@pytest.mark.parametrize("before", ["0:0,", ""])
def test_an_odd_queue_among_others_has_its_mapping_passed_over(odd: str, before: str) -> None:
    found = read(mapped(f"{{{before}1:{odd},2:2,3:3}}"))
    assert (found.topic_configs, found.mappings, found.skipped) == ({"T": (4, 4, 6, 0)}, {}, 1)


def test_of_a_queue_that_is_there_twice_the_last_counts() -> None:
    assert read(mapped("{0:0,1:1,1:5,0:4}")).mappings["TS"].queue_ids == ((0, 4), (1, 5))


def test_a_mapping_of_more_queues_than_a_topic_may_have_is_passed_over_and_of_many_more_refuses_the_body() -> None:
    def queues(count: int) -> str:
        return "{" + ",".join(f"{queue}:0" for queue in range(count)) + "}"

    assert read(mapped(queues(MAX_QUEUE_NUMS))).skipped == 0
    assert read(mapped(queues(MAX_QUEUE_NUMS + 1))).skipped == 1
    with refuses(Reason.LIMIT_EXCEEDED):
        read(mapped(queues(limits.MAX_MAPPED_QUEUES + 1)))
