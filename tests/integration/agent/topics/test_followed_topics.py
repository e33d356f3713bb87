"""Whoever follows a topics.json that another process rewrites again and again, torn writes included."""

from __future__ import annotations

import sys
from pathlib import Path

from broker_agent.topics.manager import TopicConfigManager
from broker_agent.topics.topics_json import decode_topics
from tests.integration.agent.topics import topics_writer
from tests.support.programs.processes import Process, eventually

REWRITES = 100


def test_a_follower_sees_tables_in_order_and_ends_with_exactly_the_last_of_a_hundred(tmp_path: Path) -> None:
    file = tmp_path / "topics.json"
    file.write_text(topics_writer.table(0))
    manager = TopicConfigManager.follow(file)
    counters: list[int] = []
    manager.on_change(lambda table: counters.append(table.data_version.counter))
    manager.start()
    last = topics_writer.table(REWRITES)
    try:
        with Process([sys.executable, topics_writer.__file__, str(file), str(REWRITES)]) as writer:
            writer.wait_for("topics_written")
        eventually(lambda: manager.table == decode_topics(last.encode()))
    finally:
        manager.stop()
    assert counters == sorted(set(counters)), "a table was taken twice, or after a later one"
    assert manager.problem is None
    assert file.read_text() == last
    assert [entry.name for entry in tmp_path.iterdir()] == ["topics.json"], "the follower has written something"
