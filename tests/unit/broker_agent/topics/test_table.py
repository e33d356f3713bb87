"""A broker's topics: the table, the files that it is read from, and attributes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from namesrv_api.v1.route_data_pb2 import StaticTopicMapping

from broker_agent.errors import Reason
from broker_agent.topics import topics_json
from broker_agent.topics.files import load_topic_config_table
from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable, built_in_topics, changed_topics
from broker_agent.topics.topic_service import altered_attributes
from broker_agent.topics.topics_json import BrokenTopics, TopicQueueMappings, decode_mappings, decode_topics
from tests.support.programs.processes import TOPICS
from tests.support.refusals import refuses
from tests.support.static_topics import REAL_MAPPINGS, mappings_json

GOOD = {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
TOPIC = {"topicName": "T", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicSysFlag": 0, "order": False}
VERSION = {"counter": 3, "timestamp": 1651398321850}


def content(topics: Any, version: Any = VERSION) -> bytes:
    return json.dumps({"dataVersion": version, "topicConfigTable": topics}).encode()


@pytest.mark.parametrize(
    ("name", "topic", "problem"),
    [
        ("T", TOPIC | {"readQueueNums": -1}, "topic 'T': readQueueNums is -1, must be an integer from 0 to 65535"),
        ("T", TOPIC | {"writeQueueNums": 1.5}, "topic 'T': writeQueueNums is 1.5, must be an integer from 0 to 65535"),
        ("T", TOPIC | {"perm": True}, "topic 'T': perm is True, must be an integer from 0 to 7"),
        ("T", TOPIC | {"perm": 8}, "topic 'T': perm is 8, must be an integer from 0 to 7"),
        ("T", TOPIC | {"topicSysFlag": 2**31}, "topicSysFlag is 2147483648, must be an integer from 0 to 2147483647"),
        ("T", TOPIC | {"order": 1}, "topic 'T': order is 1, must be true or false"),
        ("T", TOPIC | {"topicFilterType": 7}, "topic 'T': topicFilterType is 7, must be a text"),
        ("T", TOPIC | {"attributes": []}, "topic 'T': attributes is [], must be a JSON object"),
        ("T", TOPIC | {"attributes": {"a": 1}}, "topic 'T': attributes['a'] is 1, must be a text"),
        ("T", TOPIC | {"topicName": "U"}, "topic 'T': topicName is 'U', must be the topic's key in topicConfigTable"),
        ("T", {"readQueueNums": 1, "perm": 6}, "topic 'T': writeQueueNums is missing"),
        ("T", {"readQueueNums": 1, "writeQueueNums": 1}, "topic 'T': perm is missing"),
        ("T", 3, "topic 'T': its value is 3, must be a JSON object"),
        ("T\n", TOPIC, r"topic 'T\n': topicName 'T\n' has characters that are not printable"),
    ],
)
def test_a_bad_topic_is_left_out_kept_and_named_with_value_and_rule(name: str, topic: object, problem: str) -> None:
    table = decode_topics(content({"Good": GOOD, name: topic}))
    assert [topic.topic_name for topic in table.topics] == ["Good"]
    assert table.unknown.skipped_topics == {name: topic}
    assert table.unknown.problem is not None
    assert problem in table.unknown.problem
    assert "\n" not in table.unknown.problem


def test_the_limits_themselves_are_allowed_and_the_rest_may_be_absent() -> None:
    table = decode_topics(content({"T" * 127: {"readQueueNums": 65_535, "writeQueueNums": 0, "perm": 7}}))
    assert table.topics[0] == TopicConfig("T" * 127, 65_535, 0, 7, 0)


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (content([]), "topicConfigTable is [], must be a JSON object"),
        (content({}, None), "dataVersion is missing, must be a JSON object"),
        (content({}, {"counter": 1}), "dataVersion: timestamp is missing, must be an integer"),
        (content({"a b": 3}, {"timestamp": 1}), "dataVersion: counter is missing"),
        (content({}, VERSION | {"stateVersion": 2**62 + 1}), "dataVersion: stateVersion is 4611686018427387905"),
        (content({}, {"counter": 2**63 - 1, "timestamp": 1}), "dataVersion: counter is 9223372036854775807, must be"),
        (content({"T": TOPIC | {"new": float("nan")}}), "NaN is no number that JSON has room for"),
        (b" \n", "the file is empty"),
        (TOPICS.read_bytes()[:200], "not JSON, or cut off: "),
        (b"[]", "the file is [], must be a JSON object"),
        (b"\xff\xfe", "byte 0 is not UTF-8"),
        (b"[" * 200_000, "recursion"),
        (b'{"new": 1e999}', "1e999 is no number that JSON has room for"),
        (b'{"topicConfigTable": {"T": {}, "T": {}}}', "the key 'T' is there twice in one JSON object"),
    ],
)
def test_a_file_that_is_no_topics_json_is_refused(tmp_path: Path, broken: bytes, expected: str) -> None:
    file = tmp_path / "topics.json"
    file.write_bytes(broken)
    with pytest.raises(BrokenTopics) as raised:
        load_topic_config_table(file)
    message = str(raised.value)
    assert message.startswith(f"{file}: ")
    assert expected in message
    assert "\n" not in message


def test_a_file_that_is_too_large_is_refused_and_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    size = TOPICS.stat().st_size
    monkeypatch.setattr(topics_json, "MAX_FILE_BYTES", size)
    assert len(load_topic_config_table(TOPICS).topics) == 11
    monkeypatch.setattr(topics_json, "MAX_FILE_BYTES", size - 1)
    with pytest.raises(BrokenTopics, match=f"is larger than {size - 1} bytes"):
        load_topic_config_table(TOPICS)


@pytest.mark.parametrize(("now", "timestamp"), [(2_000, 2_000), (999, 1_000), (0, 1_000), (1_000, 1_000)])
def test_the_next_version_has_a_higher_counter_and_no_earlier_time(now: int, timestamp: int) -> None:
    assert DataVersion(1_000, 7, 3).next(now) == DataVersion(timestamp, 8, 3)
    assert DataVersion(1_000, 7).next(now, state_version=1) == DataVersion(timestamp, 8, 1)


def topics(**queues: int) -> TopicConfigTable:
    return TopicConfigTable(DataVersion(1, 1), tuple(TopicConfig(name, n, n, 6) for name, n in queues.items()))


def test_a_changed_table_keeps_the_order_and_the_old_one_stays() -> None:
    before = topics(a=1, b=2)
    after = before.with_topics(topics(c=3, a=9).topics, DataVersion(2, 2))
    assert after.topics == topics(a=9, b=2, c=3).topics
    assert after.without("b", DataVersion(3, 3)).topics == topics(a=9, c=3).topics
    assert before.topics == topics(a=1, b=2).topics
    assert before.get("c") is None


def test_the_built_in_topics_are_upstreams() -> None:
    topics = built_in_topics("DefaultCluster", "broker-a")
    assert all(topic.read_queue_nums == topic.write_queue_nums for topic in topics)
    assert {topic.topic_name: (topic.read_queue_nums, topic.perm) for topic in topics} == {
        "SELF_TEST_TOPIC": (1, 6),
        "TBW102": (8, 7),
        "BenchmarkTest": (1024, 6),
        "DefaultCluster": (16, 7),
        "broker-a": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "DefaultCluster_REPLY_TOPIC": (1, 6),
        "rmq_sys_REVIVE_LOG_DefaultCluster": (8, 6),
        "rmq_sys_SYNC_BROKER_MEMBER_broker-a": (1, 1),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
    }
    of_one_name = [topic for topic in built_in_topics("same", "same") if topic.topic_name == "same"]
    assert [topic.read_queue_nums for topic in of_one_name] == [1], "the broker's topic replaces the cluster's"


# The topicQueueMapping.json of a broker of RocketMQ 5: read as the broker registers it.


def mapping(epoch: int, queue_ids: Mapping[int, int]) -> StaticTopicMapping:
    """Of a topic with four queues; ``queue_ids`` are those here, and the broker's own queues that they are."""
    return StaticTopicMapping(
        scope="__global__",
        total_queue_nums=4,
        epoch=epoch,
        dirty=False,
        topic_queue_ids=queue_ids.keys(),
        broker_queue_ids=queue_ids.values(),
    )


STATIC = mapping(1_795_395_001_105, {0: 0, 1: 1})
MAPPINGS_VERSION = DataVersion(1_795_395_000_380, 1, 0)


def item(broker_name: str, queue: Any) -> dict[str, Any]:
    return {"bname": broker_name, "gen": 0, "logicOffset": 0, "queueId": queue}


def detail(**changed: Any) -> dict[str, Any]:
    hosted = {"0": [item("broker-a", 0)]}
    return {"bname": "broker-a", "epoch": 7, "hostedQueues": hosted, "scope": "__global__", "totalQueues": 4, **changed}


def read(detail: Any) -> StaticTopicMapping:
    return decode_mappings(mappings_json({"T": detail})).mappings["T"]


@pytest.mark.parametrize("text", [b'"x"', b'"{0:\\"[{1:2}"'], ids=["as it is", "with numbers as keys in a text"])
def test_what_a_broker_of_5_5_0_has_written_is_read(text: bytes) -> None:
    """fastjson writes numbers as keys without quotes; currIdMap is empty there, and made of hostedQueues."""
    content = REAL_MAPPINGS.replace(b'"new":"x"', b'"new":' + text)
    assert decode_mappings(content) == TopicQueueMappings(MAPPINGS_VERSION, {"Static": STATIC})


def test_a_queue_is_where_its_history_ends() -> None:
    """RocketMQ keeps the places that a queue had before; of those in other groups none is here."""
    hosted = {
        "3": [item("broker-a", 3)],
        "0": [item("broker-b", 0), item("broker-a", 5)],
        "1": [item("broker-a", 1), item("broker-b", 1)],
        "2": [],
    }
    assert read(detail(hostedQueues=hosted)) == mapping(7, {0: 5, 3: 3})
    assert read(detail(hostedQueues={})) == mapping(7, {})


@pytest.mark.parametrize(
    ("odd", "problem"),
    [
        ([], "its value is [], must be a JSON object"),
        (detail(scope=1), "scope is 1, must be a text"),
        (detail(scope="a\tb"), r"scope 'a\tb' has characters"),
        (detail(totalQueues="4"), "totalQueues is '4', must be an integer from 0 to 2147483647"),
        (detail(epoch=2**63), "epoch is 9223372036854775808, must be an integer from 0 to"),
        (detail(hostedQueues=[]), "hostedQueues is [], must be a JSON object"),
        (detail(hostedQueues={"4": []}), "hostedQueues has the queue '4', must be 0 to 3"),
        (detail(hostedQueues={"00": []}), "hostedQueues has the queue '00', must be 0 to 3"),
        (detail(hostedQueues={"0": {}}), "hostedQueues[0] must be a list"),
        (detail(hostedQueues={"0": [None]}), "hostedQueues[0] is missing, must be a JSON object"),
        (
            detail(hostedQueues={"0": [item("broker-a", 65_535)]}),
            "queueId is 65535, must be an integer from 0 to 65534",
        ),
    ],
)
def test_a_bad_mapping_is_left_out_and_named_with_field_and_rule(odd: Any, problem: str) -> None:
    found = decode_mappings(mappings_json({"Good": detail(), "T": odd}))
    assert found.mappings.keys() == {"Good"}
    assert found.skipped == {"T"}
    assert found.problem is not None
    assert found.problem.startswith("mapping of 'T': ")
    assert problem in found.problem


@pytest.mark.parametrize("broken", [b"[]", b"{}", REAL_MAPPINGS[:-2], b'{"topicQueueMappingInfoMap":{}}', b"\xff"])
def test_a_file_that_is_none_is_refused(broken: bytes) -> None:
    with pytest.raises(BrokenTopics):
        decode_mappings(broken)


def test_a_table_with_mappings_has_a_version_of_both_files() -> None:
    table = TopicConfigTable(DataVersion(5_000, 8, 2), (TopicConfig("T", 4, 4, 6), TopicConfig("U", 4, 4, 6)))
    mappings = TopicQueueMappings(DataVersion(6_000, 3, 0), {"T": STATIC, "Gone": STATIC})
    both = mappings.put_into(table)
    assert [topic.mapping for topic in both.topics] == [STATIC, None]
    assert changed_topics(table, both) == both.topics[:1], "an increment has it"
    assert both.data_version == DataVersion(6_000, 11, 2)
    assert TopicQueueMappings().put_into(table) is table
    largest = TopicConfigTable(DataVersion(5_000, 2**63 - 2), ())
    assert mappings.put_into(largest).data_version.counter == 2**63 - 2, "there is a next one"


# Scenario 77 of RocketMQ's tests, for the attributes of topics.

FIXED = {"queue.type": "BatchCQ", "cleanup.policy": "COMPACTION"}
ALL = FIXED | {"message.type": "FIFO"}


def test_a_new_topic_can_have_any_attribute_and_one_with_the_field_none() -> None:
    assert altered_attributes(None, ALL, (), create=True) == ALL
    assert altered_attributes(None, {}, (), create=False) is None
    assert altered_attributes({}, {}, (), create=False) == {}
    assert altered_attributes({"message.type": "FIFO"}, {}, ["message.type"], create=False) == {}


UNKNOWN = "is no attribute of a topic; there are cleanup.policy, message.type, queue.type"
NEVER_CHANGES = "is 'queue.type', which cannot change once the topic is there"
TWICE = "is 'message.type', which the request names twice"


@pytest.mark.parametrize(
    ("create", "to_set", "to_delete", "problem"),
    [
        (True, {"queue.type": "x"}, [], "set_attributes['queue.type']: is 'x', must be BatchCQ or SimpleCQ"),
        (True, {}, ["message.type"], "delete_attributes[0]: is 'message.type': a new topic has nothing to take away"),
        (False, {"queue.type": "SimpleCQ"}, [], f"set_attributes['queue.type']: {NEVER_CHANGES}"),
        (False, {}, ["queue.type"], f"delete_attributes[0]: {NEVER_CHANGES}"),
        (False, {}, ["other"], "delete_attributes[0]: is 'other', which the topic does not have"),
        (False, {}, ["message.type", "message.type"], f"delete_attributes[1]: {TWICE}"),
        (False, {"message.type": "DELAY"}, ["message.type"], f"delete_attributes[0]: {TWICE}"),
        (True, {"": "x"}, [], f"set_attributes['']: {UNKNOWN}"),
        (False, {"+message.type": "FIFO"}, [], f"set_attributes['+message.type']: {UNKNOWN}"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(
    create: bool, to_set: Mapping[str, str], to_delete: Sequence[str], problem: str
) -> None:
    with refuses(Reason.INVALID_FIELD) as raised:
        altered_attributes(None if create else ALL, to_set, to_delete, create=create)
    assert problem in str(raised.value)
