"""A broker's topics: the agent's own topics.json, the files that it follows, and the manager of either."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from broker_agent.errors import Reason, StartError
from broker_agent.topics import manager as manager_module
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
from broker_agent.topics.manager import LOOK_SECONDS, TopicConfigManager
from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable, built_in_topics
from broker_agent.topics.topics_json import BrokenTopics, decode_topics, encode_topics, mappings_path
from namesrv_common.files import disk
from tests.support.agents import PassingClock, own_topics, put_topic
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


def test_links_and_permissions_stay_and_so_does_what_another_process_writes(path: Path, tmp_path: Path) -> None:
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
    replace_keeping_copy(path, content(9))
    with refuses(Reason.TOPICS_FILE_CHANGED, match="was written by another process"):
        file.save(numbered(3))
    assert TopicsFile(path).load() == numbered(9)


# The followed files, topics.json and topicQueueMapping.json: what is seen of them, and their faults.


def follower(path: Path, time: PassingClock) -> FollowedTopics:
    return FollowedTopics(path, agent_timing(time))


def seen(followed: FollowedTopics) -> TopicConfigTable | None:
    """What a follower sees of a change, which must look the same twice."""
    assert followed.look() is None
    return followed.look()


def events(logs: Any) -> list[tuple[str, str]]:
    return [(line["event"], line["log_level"]) for line in logs]


@pytest.fixture
def time() -> PassingClock:
    return PassingClock()


@pytest.mark.parametrize(
    ("now", "nanoseconds_later", "attribute", "is_damaged"),
    [
        (b"", 0, None, True),
        (content(1), 0, None, True),
        (content(2)[:-1], 0, None, True),
        (content(2) + b"\n", 0, None, True),
        (content(3), 1, None, False),  # somebody has edited it
        (content(3), 0, b"", False),
        (content(3), 0, b"garbage", False),
        (content(3), 0, b"\xff 1", False),
        (content(3), 0, b"abc 12 13", False),
    ],
)
def test_what_a_disk_has_changed_without_its_time_does_not_match_its_checksum(
    path: Path, now: bytes, nanoseconds_later: int, attribute: bytes | None, *, is_damaged: bool
) -> None:
    try:
        os.setxattr(path, ATTRIBUTE, b"")
    except OSError:
        pytest.skip("the file system of the temporary folder takes no extended attributes")
    replace_keeping_copy(path, content(2))
    assert load_topic_config_table(path) == numbered(2)
    status = path.stat()
    path.write_bytes(now)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + nanoseconds_later))
    if attribute is not None:
        os.setxattr(path, ATTRIBUTE, attribute)
    if is_damaged:
        with pytest.raises(BrokenTopics, match="json: does not match its checksum"):
            load_topic_config_table(path)
    else:
        assert load_topic_config_table(path) == numbered(3)


def test_a_disk_without_links_and_attributes_has_a_copy_and_no_checksum(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_supported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", not_supported)
    monkeypatch.setattr(os, "setxattr", not_supported)
    replace_keeping_copy(path, content(2))
    assert (path.read_bytes(), copy_of(path).read_bytes()) == (content(2), content(1))
    assert ATTRIBUTE not in os.listxattr(path)


def with_static(counter: int) -> bytes:
    hosted = {str(queue): [{"bname": "b", "queueId": queue}] for queue in range(counter)}
    return mappings_json({"topic-1": {"bname": "b", "hostedQueues": hosted, "epoch": 1, "totalQueues": 9}}, counter)


def mapped(table: TopicConfigTable | None) -> tuple[int, int]:
    """Queues in the mapping of the only topic, and the counter of the version."""
    assert table is not None
    (topic,) = table.topics
    return len(topic.mapping.topic_queue_ids if topic.mapping else ()), table.data_version.counter


TWO_TOPICS = encode_topics(numbered(2).with_topics(numbered(3).topics, DataVersion(1_000, 3)))


@pytest.mark.parametrize(
    ("name", "broken", "problem"),
    [
        ("topics.json", b"", "the file is empty"),
        ("topics.json", content(1)[:-1], "not JSON, or cut off: "),
        ("topics.json", content(1) + b"}", "not JSON, or cut off: "),
        ("topics.json", None, "No such file or directory"),
        ("topics.json", TWO_TOPICS, "it has 2 topics, over"),
        ("topicQueueMapping.json", None, "topicQueueMapping.json: No such file or directory"),
    ],
)
def test_a_file_that_stays_broken_is_a_fault_and_logged_once(
    path: Path, time: PassingClock, monkeypatch: pytest.MonkeyPatch, name: str, broken: bytes | None, problem: str
) -> None:
    monkeypatch.setattr(table_module, "MAX_TOPICS", 1)
    mappings_path(path).write_bytes(with_static(1))
    file = path.with_name(name)
    good = file.read_bytes()
    followed = follower(path, time)
    assert mapped(followed.first_table()) == (1, 2)
    with capture_logs() as logs:
        file.unlink()
        if broken is not None:
            file.write_bytes(broken)
        assert followed.look() is None
        for _ in range(100):
            assert followed.look() is None
            is_fault = time.seconds >= 1_000 + BROKEN_SECONDS
            assert (followed.problem or "").startswith(problem) if is_fault else followed.problem is None
            time.advance(0.25)
        assert events(logs) == [("topics_file_broken", "warning")]
        file.write_bytes(good)
        assert mapped(seen(followed)) == (1, 2)
    assert followed.problem is None
    assert events(logs) == [("topics_file_broken", "warning"), ("topics_file_good_again", "info")]


def test_bad_topics_are_left_out_and_20_of_them_named_once(path: Path, time: PassingClock) -> None:
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


def test_the_start_waits_a_moment_for_a_file_that_is_just_being_written(path: Path, time: PassingClock) -> None:
    def wait(event: threading.Event, seconds: float) -> bool:
        if time.seconds > 1_000.1:
            path.write_bytes(content(2))
        return time.wait(event, seconds)

    path.write_bytes(b"{")
    assert FollowedTopics(path, replace(agent_timing(time), wait=wait)).first_table() == numbered(2)


def test_what_is_no_file_is_a_clear_error_within_a_second(path: Path, time: PassingClock) -> None:
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StartError, match="is a named pipe and no file"):
        follower(path, time).first_table()
    assert time.seconds - 1_000 < 1
    copy_of(path).write_bytes(content(1))
    with pytest.raises(StartError, match="is a named pipe and no file"):
        TopicsFile(path).load()  # what may not be read is not taken for broken, so the copy does not stand in


@pytest.mark.parametrize("broken", [b"{", None])
def test_the_copy_stands_in_at_the_start_with_a_warning(path: Path, time: PassingClock, broken: bytes | None) -> None:
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
    path: Path, time: PassingClock, mode: str, copy: bytes | None, problem: str
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


def test_a_missing_file_is_an_error_at_once_or_waited_for(tmp_path: Path, time: PassingClock) -> None:
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


def test_mappings_are_seen_when_they_come_and_when_they_change(path: Path, time: PassingClock) -> None:
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


def test_a_mapping_that_breaks_a_rule_is_left_out_and_its_topic_stays(path: Path, time: PassingClock) -> None:
    mappings_path(path).write_bytes(mappings_json({"topic-1": {"totalQueues": -1}}))
    with capture_logs() as logs:
        followed = follower(path, time)
        assert mapped(followed.first_table()) == (0, 2)
        mappings_path(path).write_bytes(mappings_json({"topic-1": {"totalQueues": -1}}, counter=2))
        assert mapped(seen(followed)) == (0, 3)
    assert followed.problem == "mapping of 'topic-1': totalQueues is -1, must be an integer from 0 to 2147483647"
    assert events(logs) == [("mappings_skipped", "warning")]


# The manager of the topics: it owns the file, or follows the broker's.

BUILT_IN = built_in_topics("c", "b")
TOPIC = TopicConfig("TopicTest", 4, 4, 6)
NOW_MILLIS = VirtualClock().wall_millis()
VERSION = DataVersion(NOW_MILLIS - 1_000, 5)


def written(path: Path, *topics: TopicConfig, version: DataVersion = VERSION) -> Path:
    path.write_bytes(encode_topics(TopicConfigTable(version, topics)))
    return path


def owner(path: Path, built_in: tuple[TopicConfig, ...] = (), **kwargs: Any) -> TopicConfigManager:
    return own_topics(path, built_in, agent_timing(VirtualClock()), **kwargs)


def heard_of(manager: TopicConfigManager) -> list[TopicConfigTable]:
    tables: list[TopicConfigTable] = []
    manager.on_change = tables.append
    return tables


def changes_of(manager: TopicConfigManager) -> list[Callable[[], object]]:
    """Those of calls and of a slave's copy."""
    return [
        lambda: put_topic(manager, replace(TOPIC, perm=2)),
        lambda: manager.delete("TopicTest"),
        lambda: manager.copy((), VERSION),
    ]


def test_the_brokers_own_topics_and_no_others_are_system_topics(path: Path) -> None:
    manager = owner(path, (TopicConfig("broker-a", 1, 1, 6),))
    for name in ("TBW102", "rmq_sys_anything", "broker-a"):
        with refuses(Reason.SYSTEM_TOPIC):
            put_topic(manager, TopicConfig(name, 4, 4, 6))
    for name in ("TopicTest", "RMQ_SYS", "%RETRY%group", "broker-b"):
        put_topic(manager, TopicConfig(name, 4, 4, 6))


def test_built_in_topics_come_once_into_a_new_file_or_one_without_them(path: Path) -> None:
    path.unlink()
    assert owner(path, BUILT_IN).table == TopicConfigTable(DataVersion(NOW_MILLIS, 1), BUILT_IN)
    assert load_topic_config_table(path).topics == BUILT_IN
    benchmark = TopicConfig("BenchmarkTest", 2, 2, 4)
    manager = owner(written(path, benchmark, TOPIC), BUILT_IN)
    assert manager.table.topics[:2] == (benchmark, TOPIC)
    names = {topic.topic_name for topic in BUILT_IN} | {"TopicTest"}
    assert {topic.topic_name for topic in manager.table.topics} == names
    assert manager.table.data_version == DataVersion(NOW_MILLIS, 6)
    before = path.stat().st_mtime_ns
    assert owner(path, BUILT_IN).table == load_topic_config_table(path) == manager.table
    assert path.stat().st_mtime_ns == before, "a file that has everything is not written"


def test_a_folder_that_cannot_be_written_is_a_clear_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match=r"topics\.json cannot be written: (Not a directory|File exists)"):
        owner(tmp_path / "file" / "topics.json", BUILT_IN)


def test_each_change_is_on_disk_before_a_listener_hears_of_it_and_fails(path: Path) -> None:
    manager = owner(written(path, version=replace(VERSION, state_version=3)))
    heard: list[TopicConfigTable] = []
    on_disk: list[TopicConfigTable] = []

    def hear(table: TopicConfigTable) -> None:
        heard.append(table)
        on_disk.append(load_topic_config_table(path))
        raise RuntimeError("mine")

    manager.on_change = hear
    other, of_master = TopicConfig("T2", 1, 1, 6), (TopicConfig("M", 1, 1, 6),)
    with capture_logs() as logs:
        put_topic(manager, TOPIC)
        put_topic(manager, other)
        put_topic(manager, replace(TOPIC, perm=4))
        for _ in range(2):  # what is as it shall be is no change
            manager.update_order_topics(["TopicTest", "unknown"])
        manager.delete("TopicTest")
        assert manager.next_state_version() == DataVersion(NOW_MILLIS, 11, 4)
        for _ in range(2):
            manager.copy(of_master, DataVersion(17, 3, 2))
    changed = replace(TOPIC, perm=4)
    assert [(table.topics, table.data_version) for table in heard] == [
        ((TOPIC,), DataVersion(NOW_MILLIS, 6, 3)),
        ((TOPIC, other), DataVersion(NOW_MILLIS, 7, 3)),
        ((changed, other), DataVersion(NOW_MILLIS, 8, 3)),
        ((replace(changed, order=True), other), DataVersion(NOW_MILLIS, 9, 3)),
        ((other,), DataVersion(NOW_MILLIS, 10, 3)),
        ((other,), DataVersion(NOW_MILLIS, 11, 4)),
        (of_master, DataVersion(17, 3, 2)),  # as it is
    ]
    assert on_disk == heard
    assert [line["event"] for line in logs].count("topics_listener_failed") == len(heard)
    assert manager.table is heard[-1]


def test_skipped_topics_stay_in_the_file_and_never_hide_a_good_one(path: Path) -> None:
    document = json.loads(written(path).read_text())
    document["topicConfigTable"] = {"Topic Test": {"perm": [1]}, "TopicTest": "bad"}
    path.write_text(json.dumps(document))
    with capture_logs() as logs:
        manager = owner(path)
    assert [line["topics"] for line in logs if line["event"] == "topics_skipped"] == [["Topic Test", "TopicTest"]]
    assert manager.problem is not None
    assert manager.problem.startswith("topic 'Topic Test': readQueueNums")
    put_topic(manager, TOPIC)
    saved = json.loads(path.read_text())["topicConfigTable"]
    assert (saved["Topic Test"], saved["TopicTest"]["readQueueNums"]) == ({"perm": [1]}, 4)


def test_one_topic_too_many_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager_module, "MAX_TOPICS", 2)
    manager = owner(written(path, TOPIC))
    put_topic(manager, replace(TOPIC, topic_name="T2"))
    with refuses(Reason.LIMIT_EXCEEDED, match="topics of the broker: 3 is over the limit of 2"):
        put_topic(manager, replace(TOPIC, topic_name="T3"))
    put_topic(manager, replace(TOPIC, perm=2))


def test_no_agent_starts_with_too_many_topics(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "MAX_TOPICS", 1)
    replace_keeping_copy(path, TWO_TOPICS)
    problem = "it has 2 topics, over the limit of 1: no name server takes more in one registration; delete topics"
    with pytest.raises(StartError, match=f"^{re.escape(f'{path}: {problem}')}"):
        owner(path)
    assert path.read_bytes() == TWO_TOPICS


def test_a_change_that_the_disk_does_not_take_is_not_made(path: Path) -> None:
    full = False

    def write(file: Path, content: bytes) -> None:
        if full:
            raise OSError(28, "No space left on device")
        replace_keeping_copy(file, content)

    manager = owner(written(path, TOPIC), write=write)
    heard = heard_of(manager)
    full = True
    changes = changes_of(manager)
    changes += [manager.next_state_version, lambda: manager.update_order_topics(["TopicTest"])]
    for change in changes:
        with refuses(Reason.NOT_DURABLE):
            change()
    assert (manager.table.topics, manager.table.data_version, heard) == ((TOPIC,), VERSION, [])
    full = False
    manager.delete("TopicTest")
    assert load_topic_config_table(path) == manager.table


def test_changes_of_many_threads_are_all_made_and_heard_of_in_order(path: Path) -> None:
    manager = owner(written(path))
    heard = heard_of(manager)
    with ThreadPoolExecutor(8, thread_name_prefix="broker-agent-test") as pool:
        for number in range(40):
            pool.submit(put_topic, manager, replace(TOPIC, topic_name=f"T{number}"))
    assert [table.data_version.counter for table in heard] == list(range(6, 46))
    assert {topic.topic_name for topic in manager.table.topics} == {f"T{number}" for number in range(40)}
    assert load_topic_config_table(path) == manager.table == heard[-1]


class Following:
    """A manager that follows a file on virtual time."""

    def __init__(self, path: Path) -> None:
        self._path, self._time = path, VirtualClock()
        timing = agent_timing(self._time)
        followed = FollowedTopics(path, timing)
        self.manager = TopicConfigManager(followed.first_table(), timing, followed=followed)
        self.heard = heard_of(self.manager)
        self.manager.start()

    def rewrite(self, *topics: TopicConfig, version: DataVersion = VERSION) -> TopicConfigTable:
        written(self._path, *topics, version=version)
        self._time.run(3 * LOOK_SECONDS)  # a changed file has to look the same twice
        return self.manager.table


@pytest.fixture
def following(path: Path) -> Iterator[Following]:
    started = Following(written(path, TOPIC))
    yield started
    started.manager.stop()


def test_a_followed_file_is_never_changed_or_written(following: Following, path: Path) -> None:
    manager, before = following.manager, path.stat()
    for change in changes_of(manager):
        with refuses(Reason.TOPICS_FOLLOWED, match="change topics at the broker"):
            change()
    manager.update_order_topics(["TopicTest"])
    manager.next_state_version()
    assert manager.follows
    assert manager.table.topics == (TOPIC,)
    assert (path.stat().st_mtime_ns, [entry.name for entry in path.parent.iterdir()]) == (
        before.st_mtime_ns,
        ["topics.json"],
    )


def test_a_table_keeps_its_version_unless_it_is_edited_by_hand(following: Following) -> None:
    following.rewrite(TOPIC)
    assert following.heard == [], "the same content is no change"
    versions = {VERSION}
    for perm in (1, 2, 3):
        versions.add(following.rewrite(replace(TOPIC, perm=perm)).data_version)
    assert len(versions) == 4, "no name server has seen the version of another content"
    assert following.rewrite(replace(TOPIC, perm=3)).data_version in versions
    for version in (DataVersion(1, 6), DataVersion(2, 7, 1), DataVersion(1, 2)):  # even an older one
        assert following.rewrite(replace(TOPIC, perm=version.counter), version=version).data_version == version
    future = DataVersion(2 * NOW_MILLIS, 8)
    following.rewrite(TOPIC, version=future)
    assert following.rewrite(version=future).data_version == DataVersion(2 * NOW_MILLIS + 1, 8)
    assert len(following.heard) == 8


def test_a_new_role_wins_until_the_file_has_a_higher_state_version(following: Following) -> None:
    assert following.manager.next_state_version().state_version == 1
    assert following.rewrite(version=DataVersion(1, 6)).data_version == DataVersion(1, 6, 1)
    assert following.rewrite(version=DataVersion(1, 7, 9)).data_version == DataVersion(1, 7, 9)
