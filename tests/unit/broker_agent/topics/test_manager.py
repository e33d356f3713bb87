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


def test_a_new_broker_has_the_built_in_topics_in_its_file(path: Path) -> None:
    manager = owner(path, BUILT_IN)
    assert manager.table.topics == BUILT_IN
    assert manager.table.data_version == DataVersion(NOW_MILLIS, 1)
    assert load_topic_config_table(path) == manager.table


def test_the_brokers_own_topics_and_no_others_are_system_topics(path: Path) -> None:
    manager = owner(path, (TopicConfig("broker-a", 1, 1, 6),))
    for name in ("TBW102", "rmq_sys_anything", "broker-a"):
        with refuses(Reason.SYSTEM_TOPIC):
            put_topic(manager, TopicConfig(name, 4, 4, 6))
    for name in ("TopicTest", "RMQ_SYS", "%RETRY%group", "broker-b"):
        put_topic(manager, TopicConfig(name, 4, 4, 6))


def test_missing_built_in_topics_come_once_with_a_new_version(path: Path) -> None:
    benchmark = TopicConfig("BenchmarkTest", 2, 2, 4)
    manager = owner(written(path, benchmark, TOPIC), BUILT_IN)
    assert manager.table.topics[:2] == (benchmark, TOPIC)
    assert {topic.topic_name for topic in manager.table.topics} == {topic.topic_name for topic in BUILT_IN} | {
        "TopicTest"
    }
    assert manager.table.data_version == DataVersion(NOW_MILLIS, 6)
    before = path.stat().st_mtime_ns
    assert owner(path, BUILT_IN).table == load_topic_config_table(path) == manager.table
    assert path.stat().st_mtime_ns == before, "a file that has everything is not written"


def test_a_folder_that_cannot_be_written_is_a_clear_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match=r"topics\.json cannot be written: (Not a directory|File exists)"):
        owner(tmp_path / "file" / "topics.json", BUILT_IN)


def test_a_change_is_on_disk_before_the_listener_hears_of_it(path: Path) -> None:
    manager = owner(written(path))
    heard: list[TopicConfigTable] = []
    on_disk: list[TopicConfigTable] = []

    def hear(table: TopicConfigTable) -> None:
        heard.append(table)
        on_disk.append(load_topic_config_table(path))

    manager.on_change = hear
    put_topic(manager, TOPIC)
    put_topic(manager, replace(TOPIC, perm=4))
    manager.delete("TopicTest")
    assert [table.data_version.counter for table in heard] == [6, 7, 8]
    assert [table.topics for table in heard] == [(TOPIC,), (replace(TOPIC, perm=4),), ()]
    assert on_disk == heard
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


def test_a_role_change_takes_a_higher_state_version(path: Path) -> None:
    manager = owner(written(path, TOPIC, version=replace(VERSION, state_version=3)))
    assert manager.next_state_version() == DataVersion(NOW_MILLIS, 6, 4)
    put_topic(manager, replace(TOPIC, perm=2))
    assert load_topic_config_table(path).data_version == DataVersion(NOW_MILLIS, 7, 4)


def test_an_order_configuration_marks_the_topics_that_it_names(path: Path) -> None:
    manager = owner(written(path, TOPIC, replace(TOPIC, topic_name="T2")))
    heard = heard_of(manager)
    manager.update_order_topics(["TopicTest", "unknown"])
    manager.update_order_topics(["TopicTest"])
    assert [[topic.order for topic in table.topics] for table in heard] == [[True, False]]


def test_a_slave_takes_its_masters_topics_and_version_as_they_are(path: Path) -> None:
    manager = owner(written(path, TOPIC))
    heard = heard_of(manager)
    version = DataVersion(17, 3, 2)
    manager.copy((replace(TOPIC, topic_name="M"),), version)
    manager.copy((replace(TOPIC, topic_name="M"),), version)
    assert [(table.topics[0].topic_name, table.data_version) for table in heard] == [("M", version)]
    assert load_topic_config_table(path) == manager.table


def test_a_listener_that_fails_is_logged_and_the_change_is_made(path: Path) -> None:
    manager = owner(written(path))

    def fail(_table: TopicConfigTable) -> None:
        raise RuntimeError("mine")

    manager.on_change = fail
    with capture_logs() as logs:
        put_topic(manager, TOPIC)
    assert load_topic_config_table(path) == manager.table
    assert "topics_listener_failed" in [line["event"] for line in logs]


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


def test_a_brokers_table_is_taken_with_its_version_even_an_older_one(following: Following) -> None:
    following.rewrite(TOPIC)
    assert following.heard == [], "the same content is no change"
    for version in (DataVersion(1, 6), DataVersion(2, 7, 1), DataVersion(1, 2)):
        assert following.rewrite(replace(TOPIC, perm=version.counter), version=version).data_version == version
    assert len(following.heard) == 3


def test_a_file_edited_by_hand_gets_a_version_that_no_name_server_has_seen(following: Following) -> None:
    versions = {VERSION}
    for perm in (1, 2, 3):
        versions.add(following.rewrite(replace(TOPIC, perm=perm)).data_version)
    assert len(versions) == 4
    assert following.rewrite(replace(TOPIC, perm=3)).data_version in versions
    assert following.rewrite(TOPIC, version=DataVersion(1, 6)).data_version == DataVersion(1, 6)


def test_a_new_role_wins_until_the_file_has_a_higher_state_version(following: Following) -> None:
    assert following.manager.next_state_version().state_version == 1
    assert following.rewrite(version=DataVersion(1, 6)).data_version == DataVersion(1, 6, 1)
    assert following.rewrite(version=DataVersion(1, 7, 9)).data_version == DataVersion(1, 7, 9)
