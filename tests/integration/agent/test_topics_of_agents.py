"""The topics of a file that an agent follows, and what routes have of them."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from broker_agent.topics.manager import TopicConfigManager
from broker_agent.topics.topics_json import decode_topics
from tests.integration.agent import topics_writer
from tests.integration.agent.topics_writer import as_registered, table
from tests.support.programs.agents import EXACTLY, Agent, name_servers, topics_of
from tests.support.programs.processes import Client, Process, eventually
from tests.support.static_topics import REAL_MAPPINGS, mappings_json

FOLLOW = ("--topics-mode", "follow")


@pytest.fixture
def topics(tmp_path: Path) -> Path:
    file = tmp_path / "config" / "topics.json"
    file.parent.mkdir()
    file.write_text(table(0))
    return file


def test_mappings_of_static_topics_are_in_all_routes_and_change(topics: Path) -> None:
    """The file is RocketMQ's, from the start; then another mapping comes, without a change of topics.json."""
    name = next(iter(as_registered(table(0))))
    mappings = topics.with_name("topicQueueMapping.json")
    mappings.write_bytes(REAL_MAPPINGS.replace(b'"Static":', f'"{name}":'.encode()))
    moved = {"0": [{"bname": "broker-c", "queueId": 1}, {"bname": "broker-d", "queueId": 0}]}
    changed = {"bname": "broker-c", "epoch": 2, "hostedQueues": moved, "scope": "__global__", "totalQueues": 4}

    def queue_ids(client: Client) -> list[tuple[int, int]] | None:
        route = client.route(name)
        if route is None or not route.queue_datas[0].HasField("mapping"):
            return None
        mapping = route.queue_datas[0].mapping
        return list(zip(mapping.topic_queue_ids, mapping.broker_queue_ids, strict=True))

    with (
        name_servers(2, *EXACTLY) as servers,
        Agent(";".join(str(server.endpoint) for server, _ in servers), *FOLLOW, topics=topics),
    ):
        for _, client in servers:
            assert eventually(partial(queue_ids, client)) == [(0, 0), (1, 1)]
        mappings.write_bytes(mappings_json({name: changed}, counter=2))
        for _, client in servers:
            eventually(partial(queue_ids, client), [].__eq__)
            assert topics_of(client) == as_registered(table(0))


REWRITES = 100


def test_a_follower_sees_tables_in_order_and_ends_with_the_last(tmp_path: Path) -> None:
    file = tmp_path / "topics.json"
    file.write_text(topics_writer.table(0))
    manager = TopicConfigManager.follow(file)
    counters: list[int] = []
    manager.on_change = lambda table: counters.append(table.data_version.counter)
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
