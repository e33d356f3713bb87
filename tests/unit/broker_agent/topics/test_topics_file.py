from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from broker_agent.errors import Reason, StartError
from broker_agent.topics.files import TopicsFile, copy_of, replace_keeping_copy
from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable, UnknownParts
from broker_agent.topics.topics_json import decode_topics, encode_topics
from namesrv_common.files import disk
from tests.support.programs.processes import TOPICS
from tests.support.refusals import refuses

UPSTREAM = """{
	"dataVersion":{
		"counter":7,
		"stateVersion":0,
		"timestamp":1651398321850
	},
	"topicConfigTable":{
		"TopicTest":{
			"attributes":{},
			"order":false,
			"perm":6,
			"readQueueNums":4,
			"topicFilterType":"SINGLE_TAG",
			"topicName":"TopicTest",
			"topicSysFlag":0,
			"writeQueueNums":4
		},
		"%RETRY%group":{
			"attributes":{
				"message.type":"FIFO"
			},
			"order":true,
			"perm":2,
			"readQueueNums":1,
			"topicFilterType":"MULTI_TAG",
			"topicName":"%RETRY%group",
			"topicSysFlag":3,
			"writeQueueNums":2
		}
	}
}"""


def table(counter: int = 1, **queues: int) -> TopicConfigTable:
    topics = tuple(TopicConfig(name, number, number, 6) for name, number in queues.items())
    return TopicConfigTable(DataVersion(1_000, counter), topics)


def test_a_file_of_upstream_is_written_back_byte_for_byte() -> None:
    assert encode_topics(decode_topics(UPSTREAM.encode())).decode() == UPSTREAM


def test_a_file_of_rocketmq_4_gets_no_fields_of_5() -> None:
    before = TOPICS.read_bytes()
    after = encode_topics(decode_topics(before))
    assert json.loads(after) == json.loads(before)
    assert b"stateVersion" not in after
    assert b"attributes" not in after


def test_a_table_without_topics_is_written_as_upstream_does() -> None:
    text = encode_topics(table()).decode()
    assert text == '{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"timestamp":1000\n\t},\n\t"topicConfigTable":{}\n}'


def test_unknown_fields_come_back_at_every_level_in_alphabetical_order() -> None:
    document = json.loads(UPSTREAM)
    document["aNew"] = {"x": [1, {"y": None}], "Ünïcode\n": "\t€"}
    document["zNew"] = [[], {}, 1.5, -3, 10**30]
    document["dataVersion"]["epoch"] = {"deep": [True]}
    document["topicConfigTable"]["TopicTest"]["tier"] = "cold"
    again = encode_topics(decode_topics(json.dumps(document).encode()))
    assert json.loads(again) == document
    assert list(json.loads(again)) == ["aNew", "dataVersion", "topicConfigTable", "zNew"]
    assert list(json.loads(again)["dataVersion"]) == ["counter", "epoch", "stateVersion", "timestamp"]
    assert list(json.loads(again)["topicConfigTable"]["TopicTest"]).index("tier") == 4


def test_skipped_topics_stay_in_the_file_and_never_hide_a_good_one() -> None:
    skipped = {"a b": {"perm": [1]}, "T": "bad"}
    text = encode_topics(TopicConfigTable(DataVersion(1, 1), table(T=2).topics, UnknownParts(skipped_topics=skipped)))
    written = json.loads(text)["topicConfigTable"]
    assert written["a b"] == {"perm": [1]}
    assert written["T"]["readQueueNums"] == 2


def test_half_of_a_surrogate_pair_comes_back_as_it_came() -> None:
    content = UPSTREAM.replace('"order":true', '"note":"\\ud800",\n\t\t\t"order":true').encode()
    assert json.loads(encode_topics(decode_topics(content))) == json.loads(content)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(root=st.dictionaries(st.text(), JSON, max_size=3), topic=st.dictionaries(st.text(), JSON, max_size=3))
def test_whatever_is_read_is_written_back(root: dict[str, Any], topic: dict[str, Any]) -> None:
    document = root | json.loads(UPSTREAM)
    document["topicConfigTable"]["TopicTest"] = topic | document["topicConfigTable"]["TopicTest"]
    read = decode_topics(json.dumps(document).encode())
    assert json.loads(encode_topics(read)) == document
    assert decode_topics(encode_topics(read)) == read


def test_what_was_saved_is_loaded_and_the_table_before_is_its_copy(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    file = TopicsFile(path)
    assert file.load() is None
    file.save(table(1, a=1))
    file.save(table(2, a=2))
    file.save(table(3, a=3))
    assert TopicsFile(path).load() == table(3, a=3)
    assert TopicsFile(copy_of(path)).load() == table(2, a=2)
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["topics.json", "topics.json.bak"]


@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff", UPSTREAM[:-1].encode()])
def test_the_copy_stands_in_for_a_missing_or_broken_file(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "topics.json"
    copy_of(path).write_bytes(UPSTREAM.encode())
    if content is not None:
        path.write_bytes(content)
    with capture_logs() as logs:
        loaded = TopicsFile(path).load()
    assert loaded == decode_topics(UPSTREAM.encode())
    assert [(line["event"], line["log_level"]) for line in logs] == [("topics_restored_from_copy", "warning")]
    assert path.read_bytes() == UPSTREAM.encode()
    if content is not None:
        assert (tmp_path / "topics.json.broken").read_bytes() == content


@pytest.mark.parametrize(("copy", "problem"), [(None, "No such file or directory"), (b"[]", "the file is [], must be")])
def test_a_broken_file_without_a_good_copy_stays_as_it_is(tmp_path: Path, copy: bytes | None, problem: str) -> None:
    path = tmp_path / "topics.json"
    path.write_bytes(b"{")
    if copy is not None:
        copy_of(path).write_bytes(copy)
    with pytest.raises(StartError) as raised:
        TopicsFile(path).load()
    message = str(raised.value)
    assert message.startswith(f"{path}: not JSON, or cut off: ")
    assert f"; {copy_of(path)}: {problem}" in message
    assert path.read_bytes() == b"{"


def test_a_file_that_may_not_be_read_is_never_taken_for_a_broken_one(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.mkdir()
    copy_of(path).write_bytes(encode_topics(table(1, a=1)))
    with pytest.raises(StartError, match="Is a directory"):
        TopicsFile(path).load()


def test_a_replacement_that_may_not_be_durable_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "topics.json"
    path.write_bytes(b"before")

    def fail(_file: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(disk, "sync_folder_of", fail)
    with pytest.raises(OSError, match="Input/output error"):
        replace_keeping_copy(path, b"after")
    assert path.read_bytes() == b"before"


def test_another_writer_of_the_file_is_noticed_and_nothing_of_his_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    file = TopicsFile(path)
    file.load()
    file.save(table(1, a=1))
    replace_keeping_copy(path, encode_topics(table(9, b=1)))
    with refuses(Reason.TOPICS_FILE_CHANGED, match="was written by another process"):
        file.save(table(2, a=2))
    assert TopicsFile(path).load() == table(9, b=1)


def test_a_link_stays_a_link_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    target, link = tmp_path / "store" / "topics.json", tmp_path / "topics.json"
    target.write_bytes(encode_topics(table(1, a=1)))
    link.symlink_to(target)
    file = TopicsFile(link)
    file.load()
    file.save(table(2, a=2))
    assert link.is_symlink()
    assert TopicsFile(target).load() == table(2, a=2)


def test_who_may_read_the_file_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_bytes(b"{}")
    path.chmod(0o640)
    replace_keeping_copy(path, b"[]")
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_file_system_without_hard_links_gets_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "topics.json"
    path.write_bytes(b"before")
    replace_keeping_copy(path, b"after")
    assert path.read_bytes() == b"after"
    assert copy_of(path).read_bytes() == b"before"
