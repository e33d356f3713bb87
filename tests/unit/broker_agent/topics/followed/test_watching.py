"""The thread that watches a followed file: what is written, replaced, or reached over another link is seen soon."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_agent.topics.followed_files import FollowedTopics
from broker_agent.topics.owned_file import replace_keeping_copy
from broker_agent.topics.table import TopicConfigTable
from tests.support.patience import TIMEOUT
from tests.support.timing import agent_timing
from tests.unit.broker_agent.topics.followed.files import Passing, content, table


class Watching:
    """A follower whose thread runs; its tables are waited for."""

    def __init__(self, path: Path) -> None:
        self.tables: queue.Queue[TopicConfigTable] = queue.Queue()
        self._followed = FollowedTopics(path, agent_timing(Passing()))
        self._followed.first_table()
        self._followed.start(self.tables.put)

    def wait_for(self, expected: TopicConfigTable) -> None:
        while self.tables.get(timeout=TIMEOUT) != expected:
            pass

    def stop(self) -> None:
        self._followed.stop()


@pytest.fixture
def watching(path: Path) -> Iterator[Watching]:
    watching = Watching(path)
    yield watching
    watching.stop()


def test_the_watching_thread_sees_a_file_that_is_replaced_or_written_over(watching: Watching, path: Path) -> None:
    replace_keeping_copy(path, content(2))
    watching.wait_for(table(2))
    path.write_bytes(content(33))
    watching.wait_for(table(33))


def test_the_watching_thread_sees_the_file_in_a_folder_that_went_away_and_came_back(
    watching: Watching, path: Path
) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))
    path.parent.mkdir()
    path.write_bytes(content(2))
    watching.wait_for(table(2))
    replace_keeping_copy(path, content(3))
    watching.wait_for(table(3))


def test_the_watching_thread_sees_a_link_on_the_way_to_the_file_change(tmp_path: Path) -> None:
    """As a mounted configuration of a container is replaced."""
    for counter in (1, 2):
        folder = tmp_path / f"data{counter}"
        folder.mkdir()
        (folder / "topics.json").write_bytes(content(counter))
    (tmp_path / "data").symlink_to("data1")
    (tmp_path / "topics.json").symlink_to("data/topics.json")
    watching = Watching(tmp_path / "topics.json")
    (tmp_path / "new").symlink_to("data2")
    (tmp_path / "new").replace(tmp_path / "data")
    watching.wait_for(table(2))
    watching.stop()
