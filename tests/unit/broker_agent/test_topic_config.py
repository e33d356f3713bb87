from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker_agent.errors import StartError
from broker_agent.topic_config import DataVersion, TopicConfig, load_topic_config_table
from tests.unit.broker_agent.conftest import TOPICS_JSON

TOPIC = {"topicName": "T", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicSysFlag": 0, "order": False}
VERSION = {"counter": 3, "timestamp": 1651398321850}


def written(path: Path, topics: Any, version: Any = VERSION) -> Path:
    file = path / "topics.json"
    file.write_text(json.dumps({"dataVersion": version, "topicConfigTable": topics}), encoding="utf-8")
    return file


def test_the_articles_topics_json_is_read_whole_and_in_order() -> None:
    table = load_topic_config_table(TOPICS_JSON)
    assert table.data_version == DataVersion(timestamp_millis=1651398321850, counter=3)
    assert len(table.topics) == 11
    assert table.topics[0] == TopicConfig("SCHEDULE_TOPIC_XXXX", 18, 18, 6, 0)
    assert table.topics[-1].topic_name == "%RETRY%please_rename_unique_group_name_4"


def test_a_file_of_rocketmq_5_with_more_fields_is_read(tmp_path: Path) -> None:
    topic = TOPIC | {"attributes": {"+message.type": "NORMAL"}, "topicSysFlag": 3}
    table = load_topic_config_table(written(tmp_path, {"T": topic}, VERSION | {"stateVersion": 7, "new": []}))
    assert table.data_version.state_version == 7
    assert table.topics == (TopicConfig("T", 4, 4, 6, 3),)


def test_a_table_without_topics_is_a_table(tmp_path: Path) -> None:
    assert load_topic_config_table(written(tmp_path, {})).topics == ()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"readQueueNums": -1}, "topic 'T': readQueueNums is -1, must be an integer from 0 to 65535"),
        ({"readQueueNums": 65_536}, "topic 'T': readQueueNums is 65536, must be an integer from 0 to 65535"),
        ({"writeQueueNums": 1.5}, "topic 'T': writeQueueNums is 1.5, must be an integer from 0 to 65535"),
        ({"writeQueueNums": True}, "topic 'T': writeQueueNums is True, must be an integer from 0 to 65535"),
        ({"writeQueueNums": None}, "topic 'T': writeQueueNums is None, must be an integer from 0 to 65535"),
        ({"perm": 8}, "topic 'T': perm is 8, must be an integer from 0 to 7"),
        ({"perm": "6"}, "topic 'T': perm is '6', must be an integer from 0 to 7"),
        ({"topicSysFlag": 2**31}, "topic 'T': topicSysFlag is 2147483648, must be an integer from 0 to 2147483647"),
        ({"topicName": "U"}, "topic 'T': topicName is 'U', must be the topic's key in topicConfigTable"),
    ],
)
def test_a_field_that_breaks_its_rule_is_named_with_topic_value_and_rule(
    tmp_path: Path, change: dict[str, Any], expected: str
) -> None:
    file = written(tmp_path, {"T": TOPIC | change})
    with pytest.raises(StartError) as raised:
        load_topic_config_table(file)
    assert str(raised.value) == f"{file}: {expected}"


def test_the_limits_themselves_are_allowed(tmp_path: Path) -> None:
    topic = TOPIC | {"readQueueNums": 65_535, "writeQueueNums": 0, "perm": 7, "topicName": "T" * 127}
    table = load_topic_config_table(written(tmp_path, {"T" * 127: topic}))
    assert table.topics[0] == TopicConfig("T" * 127, 65_535, 0, 7, 0)


@pytest.mark.parametrize(
    ("topics", "version", "expected"),
    [
        ({"T": {"readQueueNums": 1, "perm": 6}}, VERSION, "topic 'T': writeQueueNums is missing"),
        ({"T": 3}, VERSION, "topic 'T': its value is 3, must be a JSON object"),
        ({"": TOPIC}, VERSION, "topic '': topicName is empty"),
        ({"a b": TOPIC}, VERSION, "topic 'a b': topicName 'a b' has characters other than"),
        ({"T\n": TOPIC}, VERSION, r"topicName 'T\n' has characters other than"),
        ({"T" * 128: TOPIC}, VERSION, "has 128 characters, at most 127"),
        ([], VERSION, "topicConfigTable is [], must be a JSON object"),
        (None, VERSION, "topicConfigTable is missing, must be a JSON object"),
        ({}, None, "dataVersion is missing, must be a JSON object"),
        ({}, {"counter": 1}, "dataVersion: timestamp is missing, must be an integer"),
        ({}, {"counter": -1, "timestamp": 1}, "dataVersion: counter is -1, must be an integer"),
    ],
)
def test_a_broken_table_is_refused(tmp_path: Path, topics: Any, version: Any, expected: str) -> None:
    with pytest.raises(StartError) as raised:
        load_topic_config_table(written(tmp_path, topics, version))
    message = str(raised.value)
    assert expected in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "the file is empty"),
        (b" \n", "the file is empty"),
        (TOPICS_JSON.read_bytes()[:200], "not JSON, or cut off: "),
        (b"[]", "the file is [], must be a JSON object"),
        (b"\xff\xfe", "byte 0 is not UTF-8"),
        (b"[" * 200_000, "recursion"),
        (b'{"topicConfigTable": {"T": {}, "T": {}}}', "the key 'T' is there twice in one JSON object"),
    ],
)
def test_a_file_that_is_no_topics_json_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    file = tmp_path / "topics.json"
    file.write_bytes(content)
    with pytest.raises(StartError) as raised:
        load_topic_config_table(file)
    assert str(raised.value).startswith(f"{file}: ")
    assert expected in str(raised.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"missing\.json: No such file or directory"):
        load_topic_config_table(tmp_path / "missing.json")
    with pytest.raises(StartError, match="Is a directory"):
        load_topic_config_table(tmp_path)
