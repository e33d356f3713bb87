"""The topicQueueMapping.json of a broker of RocketMQ 5: read as the broker registers it."""

from __future__ import annotations

from typing import Any

import pytest

from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable, TopicQueueMapping
from broker_agent.topics.topics_json import BrokenTopics, TopicQueueMappings, decode_mappings
from tests.support.static_topics import REAL_MAPPINGS, mappings_json

STATIC = TopicQueueMapping("__global__", 4, 1_795_395_001_105, is_dirty=False, queue_ids=((0, 0), (1, 1)))
VERSION = DataVersion(1_795_395_000_380, 1, 0)


def item(broker_name: str, queue: Any) -> dict[str, Any]:
    return {"bname": broker_name, "gen": 0, "logicOffset": 0, "queueId": queue}


def detail(**changed: Any) -> dict[str, Any]:
    hosted = {"0": [item("broker-a", 0)]}
    return {"bname": "broker-a", "epoch": 7, "hostedQueues": hosted, "scope": "__global__", "totalQueues": 4, **changed}


def read(detail: Any) -> TopicQueueMapping:
    return decode_mappings(mappings_json({"T": detail})).mappings["T"]


def test_what_a_broker_of_5_5_0_has_written_is_read() -> None:
    """fastjson writes numbers as keys without quotes; currIdMap is empty there, and made of hostedQueues."""
    assert decode_mappings(REAL_MAPPINGS) == TopicQueueMappings(VERSION, {"Static": STATIC})


def test_keys_that_are_numbers_are_not_looked_for_in_texts() -> None:
    found = decode_mappings(REAL_MAPPINGS.replace(b'"new":"x"', b'"new":"{0:\\"[{1:2}"'))
    assert found.mappings == {"Static": STATIC}


def test_a_queue_is_where_its_history_ends() -> None:
    """RocketMQ keeps the places that a queue had before; of those in other groups none is here."""
    hosted = {
        "3": [item("broker-a", 3)],
        "0": [item("broker-b", 0), item("broker-a", 5)],
        "1": [item("broker-a", 1), item("broker-b", 1)],
        "2": [],
    }
    assert read(detail(hostedQueues=hosted)).queue_ids == ((0, 5), (3, 3))


def test_a_broker_whose_queues_have_moved_has_a_mapping_without_queues() -> None:
    assert read(detail(hostedQueues={})) == TopicQueueMapping("__global__", 4, 7, is_dirty=False, queue_ids=())


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
        (detail(hostedQueues={"-1": []}), "hostedQueues has the queue '-1', must be 0 to 3"),
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


@pytest.mark.parametrize(
    "broken", [b"", b"{", b"[]", b"{}", REAL_MAPPINGS[:-2], b'{"topicQueueMappingInfoMap":{}}', b"\xff"]
)
def test_a_file_that_is_none_is_refused(broken: bytes) -> None:
    with pytest.raises(BrokenTopics):
        decode_mappings(broken)


def test_a_table_with_mappings_has_a_version_of_both_files() -> None:
    table = TopicConfigTable(DataVersion(5_000, 8, 2), (TopicConfig("T", 4, 4, 6), TopicConfig("U", 4, 4, 6)))
    mappings = TopicQueueMappings(DataVersion(6_000, 3, 0), {"T": STATIC, "Gone": STATIC})
    both = mappings.put_into(table)
    assert [topic.mapping for topic in both.topics] == [STATIC, None]
    assert both.data_version == DataVersion(6_000, 11, 2)
    assert TopicQueueMappings().put_into(table) is table


def test_the_largest_versions_of_both_files_leave_room_for_a_next_one() -> None:
    table = TopicConfigTable(DataVersion(5_000, 2**63 - 2), ())
    assert TopicQueueMappings(DataVersion(1, 9)).put_into(table).data_version.counter == 2**63 - 2
