"""The files of a broker's topics: the agent's own topics.json, and the files that it follows."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from broker_agent.errors import Reason, StartError
from broker_agent.topics import table as table_module
from broker_agent.topics.files import (
    ATTRIBUTE,
    BROKEN_SECONDS,
    FollowedTopics,
    TopicsFile,
    copy_of,
    load_topic_config_table,
    replace_keeping_copy,
)
from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable
from broker_agent.topics.topics_json import BrokenTopics, decode_topics, encode_topics, mappings_path
from namesrv_common.files import disk
from tests.support.refusals import refuses
from tests.support.static_topics import mappings_json
from tests.support.virtual_clock import VirtualClock, agent_timing

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


def numbered(counter: int) -> TopicConfigTable:
    return TopicConfigTable(DataVersion(1_000, counter), (TopicConfig(f"topic-{counter}", 4, 4, 6),))


def content(counter: int) -> bytes:
    return encode_topics(numbered(counter))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "topics.json"
    path.write_bytes(content(1))
    return path


def test_a_file_is_written_byte_for_byte_as_upstream_does() -> None:
    assert encode_topics(decode_topics(UPSTREAM.encode())).decode() == UPSTREAM
    text = encode_topics(TopicConfigTable(DataVersion(1_000, 1), ())).decode()
    assert text == '{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"timestamp":1000\n\t},\n\t"topicConfigTable":{}\n}'
    named = decode_topics(text.replace("{", '{"größe":1,', 1).encode())
    assert '\t"größe":1'.encode() in encode_topics(named)


TEXT = st.text() | st.just("\ud800")
"""Half of a surrogate pair among them, which JSON may have."""
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.dictionaries(TEXT, JSON, max_size=3)


@given(root=FIELDS, version=FIELDS, topic=FIELDS)
def test_unknown_fields_are_written_back_in_alphabetical_order(
    root: dict[str, Any], version: dict[str, Any], topic: dict[str, Any]
) -> None:
    document = root | json.loads(UPSTREAM)
    document["dataVersion"] = version | document["dataVersion"]
    document["topicConfigTable"]["TopicTest"] = topic | document["topicConfigTable"]["TopicTest"]
    content = json.dumps(document).encode()
    read = decode_topics(content)
    written = json.loads(encode_topics(read))
    assert written == json.loads(content)
    assert decode_topics(encode_topics(read)) == read
    for members in (written, written["dataVersion"], written["topicConfigTable"]["TopicTest"]):
        assert list(members) == sorted(members)


def test_what_was_saved_is_loaded_and_the_table_before_is_its_copy(tmp_path: Path) -> None:
    path = tmp_path / "store" / "config" / "topics.json"
    file = TopicsFile(path)
    assert file.load() is None
    for counter in (1, 2, 3):
        file.save(numbered(counter))
    assert TopicsFile(path).load() == numbered(3)
    assert TopicsFile(copy_of(path)).load() == numbered(2)
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["topics.json", "topics.json.bak"]


@pytest.mark.parametrize("broken", [None, b"", b"{", b"\xff", content(1)[:-1]])
def test_the_copy_stands_in_for_a_missing_or_broken_file(path: Path, broken: bytes | None) -> None:
    path.rename(copy_of(path))
    if broken is not None:
        path.write_bytes(broken)
    file = TopicsFile(path)
    with capture_logs() as logs:
        assert file.load() == numbered(1)
    assert events(logs) == [("topics_restored_from_copy", "warning")]
    assert path.read_bytes() == content(1)
    if broken is not None:
        assert path.with_name("topics.json.broken").read_bytes() == broken
    file.save(numbered(9))  # the restored file is no other writer's


def test_a_replacement_that_may_not_be_durable_is_undone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_file: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(disk, "sync_folder_of", fail)
    with pytest.raises(OSError, match="Input/output error"):
        replace_keeping_copy(path, b"after")
    assert path.read_bytes() == content(1)


def test_another_writer_of_the_file_is_noticed_and_nothing_of_his_is_lost(path: Path) -> None:
    file = TopicsFile(path)
    file.load()
    file.save(numbered(2))
    replace_keeping_copy(path, content(9))
    with refuses(Reason.TOPICS_FILE_CHANGED, match="was written by another process"):
        file.save(numbered(3))
    assert TopicsFile(path).load() == numbered(9)


def test_a_link_stays_a_link_and_its_target_keeps_its_permissions(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link" / "topics.json"
    link.parent.mkdir()
    link.symlink_to(path)
    path.chmod(0o640)
    file = TopicsFile(link)
    file.load()
    file.save(numbered(2))
    assert link.is_symlink()
    assert path.read_bytes() == content(2)
    assert path.stat().st_mode & 0o777 == 0o640


# The followed files, topics.json and topicQueueMapping.json: what is seen of them, and their faults.


class Passing(VirtualClock):
    """Time that passes by itself whenever somebody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.at_wait: Callable[[], object] = lambda: None

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.at_wait()
        self.advance(seconds)
        return event.is_set()


def follower(path: Path, time: Passing) -> FollowedTopics:
    return FollowedTopics(path, agent_timing(time))


def seen(followed: FollowedTopics) -> TopicConfigTable | None:
    """What a follower sees of a change, which must look the same twice."""
    assert followed.look() is None
    return followed.look()


def events(logs: Any) -> list[tuple[str, str]]:
    return [(line["event"], line["log_level"]) for line in logs]


@pytest.fixture
def time() -> Passing:
    return Passing()


@pytest.fixture
def sealed(path: Path) -> Path:
    """A file of the agent's own, with a checksum."""
    replace_keeping_copy(path, content(2))
    if ATTRIBUTE not in os.listxattr(path):
        pytest.skip("the file system of the temporary folder takes no extended attributes")
    return path


def rot(file: Path, content: bytes) -> None:
    """Changes a file as a failing disk does: no time changes with it."""
    status = file.stat()
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("rotten", [b"", content(1), content(2)[:-1], content(2) + b"\n"])
def test_a_file_that_a_disk_has_changed_is_damaged(sealed: Path, rotten: bytes) -> None:
    assert load_topic_config_table(sealed) == numbered(2)
    rot(sealed, rotten)
    with pytest.raises(BrokenTopics, match="json: does not match its checksum"):
        load_topic_config_table(sealed)


def test_a_file_that_somebody_has_edited_is_taken_as_it_is(sealed: Path) -> None:
    before = sealed.stat().st_mtime_ns
    sealed.write_bytes(content(3))
    os.utime(sealed, ns=(before, before + 1))
    assert load_topic_config_table(sealed) == numbered(3)


@pytest.mark.parametrize("attribute", [b"", b"garbage", b"\xff 1", b"abc 12 13"])
def test_an_attribute_that_is_no_checksum_does_not_count(sealed: Path, attribute: bytes) -> None:
    os.setxattr(sealed, ATTRIBUTE, attribute)
    assert load_topic_config_table(sealed) == numbered(2)


def test_a_disk_without_links_and_attributes_has_a_copy_and_no_checksum(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_supported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", not_supported)
    monkeypatch.setattr(os, "setxattr", not_supported)
    replace_keeping_copy(path, content(2))
    assert (path.read_bytes(), copy_of(path).read_bytes()) == (content(2), content(1))
    rot(path, content(3))
    assert load_topic_config_table(path) == numbered(3)


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (b"", "the file is empty"),
        (content(2)[:-1], "not JSON, or cut off: "),
        (content(2) + content(1)[-9:], "not JSON, or cut off: "),
        (None, "No such file or directory"),
        (encode_topics(numbered(2).with_topics(numbered(3).topics, DataVersion(1_000, 3))), "it has 2 topics, over"),
    ],
)
def test_a_file_that_stays_broken_is_a_fault_and_logged_once(
    path: Path, time: Passing, monkeypatch: pytest.MonkeyPatch, broken: bytes | None, problem: str
) -> None:
    monkeypatch.setattr(table_module, "MAX_TOPICS", 1)
    followed = follower(path, time)
    followed.first_table()
    with capture_logs() as logs:
        path.unlink()
        if broken is not None:
            path.write_bytes(broken)
        assert followed.look() is None
        for _ in range(100):
            assert followed.look() is None
            is_fault = time.seconds >= 1_000 + BROKEN_SECONDS
            assert (followed.problem or "").startswith(problem) if is_fault else followed.problem is None
            time.advance(0.25)
        assert events(logs) == [("topics_file_broken", "warning")]
        path.write_bytes(content(2))
        assert seen(followed) == numbered(2)
    assert followed.problem is None
    assert events(logs) == [("topics_file_broken", "warning"), ("topics_file_good_again", "info")]


def test_bad_topics_are_left_out_and_20_of_them_named_once(path: Path, time: Passing) -> None:
    with capture_logs() as logs:
        followed = follower(path, time)
        followed.first_table()
        for counter in (2, 3):
            document = json.loads(content(counter))
            document["topicConfigTable"] = {f"bad topic {number}": {} for number in range(1_000)}
            path.write_text(json.dumps(document))
            read = seen(followed)
            assert read is not None
            assert read.topics == ()
        path.write_bytes(content(4))
        assert seen(followed) == numbered(4)
    assert [(line["event"], line["count"], line["topics"][0], len(line["topics"])) for line in logs] == [
        ("topics_skipped", 1_000, "bad topic 0", 20)
    ]


def test_the_start_waits_a_moment_for_a_file_that_is_just_being_written(path: Path, time: Passing) -> None:
    path.write_bytes(b"{")
    time.at_wait = lambda: time.seconds > 1_000.1 and path.write_bytes(content(2))
    assert follower(path, time).first_table() == numbered(2)


def test_what_is_no_file_is_a_clear_error_within_a_second(path: Path, time: Passing) -> None:
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StartError, match="is a named pipe and no file"):
        follower(path, time).first_table()
    assert time.seconds - 1_000 < 1
    copy_of(path).write_bytes(content(1))
    with pytest.raises(StartError, match="is a named pipe and no file"):
        TopicsFile(path).load()  # what may not be read is not taken for broken, so the copy does not stand in


@pytest.mark.parametrize("broken", [b"{", None])
def test_the_copy_stands_in_at_the_start_with_a_warning(path: Path, time: Passing, broken: bytes | None) -> None:
    replace_keeping_copy(path, content(2))
    path.unlink()
    if broken is not None:
        path.write_bytes(broken)
    followed = follower(path, time)
    with capture_logs() as logs:
        assert followed.first_table(without_file=numbered(7)) == numbered(1)
    assert events(logs) == [("topics_taken_from_copy", "warning")]
    for _ in range(2):
        assert followed.look() is None
        time.advance(BROKEN_SECONDS)
    assert followed.look() is None
    assert followed.problem is not None
    assert path.exists() == (broken is not None)
    path.write_bytes(content(3))
    assert seen(followed) == numbered(3)
    assert followed.problem is None


@pytest.mark.parametrize(
    ("mode", "copy", "problem"),
    [
        ("own", None, "No such file or directory"),
        ("own", b"[]", "the file is [], must be"),
        ("follow", b"[]", "the file is [], must be"),
    ],
)
def test_a_broken_file_without_a_good_copy_stays_and_both_are_named(
    path: Path, time: Passing, mode: str, copy: bytes | None, problem: str
) -> None:
    path.write_bytes(b"{")
    if copy is not None:
        copy_of(path).write_bytes(copy)
    load: Callable[[], object] = TopicsFile(path).load if mode == "own" else follower(path, time).first_table
    with pytest.raises(StartError) as raised:
        load()
    message = str(raised.value)
    assert message.startswith(f"{path}: not JSON, or cut off: ")
    assert f"; {copy_of(path)}: {problem}" in message
    assert path.read_bytes() == b"{"


def test_a_missing_file_is_an_error_at_once_or_waited_for(tmp_path: Path, time: Passing) -> None:
    missing = tmp_path / "store" / "topics.json"
    with pytest.raises(StartError, match=r"topics\.json: No such file or directory"):
        follower(missing, time).first_table()
    assert time.seconds == 1_000
    followed = follower(missing, time)
    with capture_logs() as logs:
        assert followed.first_table(without_file=numbered(7)) == numbered(7)
    assert events(logs) == [("topics_file_awaited", "warning")]
    for _ in range(20):
        time.advance(1.0)
        assert followed.look() is None
    assert followed.problem is None  # a broker may have no file for years
    missing.parent.mkdir()
    missing.write_bytes(content(2))
    assert seen(followed) == numbered(2)


def with_static(counter: int) -> bytes:
    hosted = {str(queue): [{"bname": "b", "queueId": queue}] for queue in range(counter)}
    return mappings_json({"topic-1": {"bname": "b", "hostedQueues": hosted, "epoch": 1, "totalQueues": 9}}, counter)


def mapped(table: TopicConfigTable | None) -> tuple[int, int]:
    """Queues in the mapping of the only topic, and the counter of the version."""
    assert table is not None
    (topic,) = table.topics
    return len(topic.mapping.topic_queue_ids if topic.mapping else ()), table.data_version.counter


def test_mappings_are_seen_when_they_come_and_when_they_change(path: Path, time: Passing) -> None:
    followed = follower(path, time)
    mappings = mappings_path(path)
    assert mapped(followed.first_table()) == (0, 1)
    mappings.write_bytes(with_static(1))
    assert mapped(seen(followed)) == (1, 2)
    assert followed.look() is None
    mappings.write_bytes(with_static(2))
    assert mapped(seen(followed)) == (2, 3)
    path.write_bytes(content(1).replace(b'"perm":6', b'"perm":4'))
    assert mapped(seen(followed)) == (2, 3)
    assert mapped(follower(path, time).first_table()) == (2, 3)  # the same version after a restart
    mappings.write_bytes(b"{")
    with pytest.raises(StartError, match=r"topicQueueMapping\.json: not JSON, or cut off"):
        follower(path, time).first_table()
    copy_of(mappings).write_bytes(with_static(1))
    assert mapped(follower(path, time).first_table()) == (1, 2)


def test_mappings_that_are_gone_stay_and_are_a_fault_after_a_while(path: Path, time: Passing) -> None:
    mappings = mappings_path(path)
    mappings.write_bytes(with_static(1))
    followed = follower(path, time)
    assert mapped(followed.first_table()) == (1, 2)

    def faults() -> list[str]:
        return [] if followed.problem is None else [followed.problem]

    mappings.unlink()
    with capture_logs() as logs:
        assert seen(followed) is None
        assert faults() == []
        time.advance(BROKEN_SECONDS)
        assert followed.look() is None
        assert faults() == ["topicQueueMapping.json: No such file or directory"]
        mappings.write_bytes(with_static(3))
        assert mapped(seen(followed)) == (3, 4)
    assert faults() == []
    assert events(logs) == [("topics_file_broken", "warning"), ("topics_file_good_again", "info")]


def test_a_mapping_that_breaks_a_rule_is_left_out_and_its_topic_stays(path: Path, time: Passing) -> None:
    mappings_path(path).write_bytes(mappings_json({"topic-1": {"totalQueues": -1}}))
    with capture_logs() as logs:
        followed = follower(path, time)
        assert mapped(followed.first_table()) == (0, 2)
        mappings_path(path).write_bytes(mappings_json({"topic-1": {"totalQueues": -1}}, counter=2))
        assert mapped(seen(followed)) == (0, 3)
    assert followed.problem == "mapping of 'topic-1': totalQueues is -1, must be an integer from 0 to 2147483647"
    assert events(logs) == [("mappings_skipped", "warning")]
