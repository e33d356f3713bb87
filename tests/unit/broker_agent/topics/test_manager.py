from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker_agent.errors import Reason, StartError
from broker_agent.topics import manager as manager_module
from broker_agent.topics import table as table_module
from broker_agent.topics.files import FollowedTopics, load_topic_config_table, replace_keeping_copy
from broker_agent.topics.manager import LOOK_SECONDS, TopicConfigManager
from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable, built_in_topics
from broker_agent.topics.topics_json import encode_topics
from tests.support.agents import own_topics, put_topic
from tests.support.refusals import refuses
from tests.support.virtual_clock import VirtualClock, agent_timing

BUILT_IN = built_in_topics("c", "b")
TOPIC = TopicConfig("TopicTest", 4, 4, 6)
NOW_MILLIS = VirtualClock().wall_millis()
VERSION = DataVersion(NOW_MILLIS - 1_000, 5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "topics.json"


def written(path: Path, *topics: TopicConfig, version: DataVersion = VERSION) -> Path:
    replace_keeping_copy(path, encode_topics(TopicConfigTable(version, topics)))
    return path


def owner(path: Path, built_in: tuple[TopicConfig, ...] = (), **kwargs: Any) -> TopicConfigManager:
    return own_topics(path, built_in, agent_timing(VirtualClock()), **kwargs)


def heard_of(manager: TopicConfigManager) -> list[TopicConfigTable]:
    tables: list[TopicConfigTable] = []
    manager.on_change = tables.append
    return tables


def test_the_brokers_own_topics_and_no_others_are_system_topics(path: Path) -> None:
    manager = owner(path, (TopicConfig("broker-a", 1, 1, 6),))
    for name in ("TBW102", "rmq_sys_anything", "broker-a"):
        with refuses(Reason.SYSTEM_TOPIC):
            put_topic(manager, TopicConfig(name, 4, 4, 6))
    for name in ("TopicTest", "RMQ_SYS", "%RETRY%group", "broker-b"):
        put_topic(manager, TopicConfig(name, 4, 4, 6))


def test_built_in_topics_come_once_into_a_new_file_or_one_without_them(path: Path) -> None:
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
    monkeypatch.setattr(table_module, "MAX_TOPICS", 2)
    topics = (TOPIC, replace(TOPIC, topic_name="T2"), replace(TOPIC, topic_name="T3"))
    written(path, *topics[:1])
    before = written(path, *topics).read_bytes()
    problem = "it has 3 topics, over the limit of 2: no name server takes more in one registration; delete topics"
    with pytest.raises(StartError, match=f"^{re.escape(f'{path}: {problem}')}"):
        owner(path)
    assert path.read_bytes() == before


def test_a_change_that_the_disk_does_not_take_is_not_made(path: Path) -> None:
    full = False

    def write(file: Path, content: bytes) -> None:
        if full:
            raise OSError(28, "No space left on device")
        replace_keeping_copy(file, content)

    manager = owner(written(path, TOPIC), write=write)
    heard = heard_of(manager)
    full = True
    changes: list[Callable[[], object]] = [
        lambda: put_topic(manager, replace(TOPIC, perm=2)),
        lambda: manager.delete("TopicTest"),
        manager.next_state_version,
        lambda: manager.update_order_topics(["TopicTest"]),
        lambda: manager.copy((), VERSION),
    ]
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
    changes: list[Callable[[], object]] = [
        lambda: put_topic(manager, replace(TOPIC, topic_name="T2")),
        lambda: manager.delete("TopicTest"),
        lambda: manager.copy((), VERSION),
    ]
    for change in changes:
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
