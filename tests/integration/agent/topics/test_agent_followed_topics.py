"""The agent beside a real broker: topics.json is the broker's, and the name server has what it says."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from tests.integration.agent.topics import topics_writer
from tests.integration.agent.topics.topics_writer import as_registered, table
from tests.support.programs.agents import EXACTLY, Agent, name_servers, topics_of
from tests.support.programs.processes import Client, Process, eventually
from tests.support.static_topics import REAL_MAPPINGS, mappings_json

FOLLOW = ("--topics-mode", "follow")
TIMES = 100


@pytest.fixture
def topics(tmp_path: Path) -> Path:
    file = tmp_path / "config" / "topics.json"
    file.parent.mkdir()
    file.write_text(table(0))
    return file


def test_a_file_that_is_rewritten_a_hundred_times_with_torn_writes_ends_as_exactly_the_last_table(topics: Path) -> None:
    with (
        name_servers(1, *EXACTLY) as [(server, client)],
        Agent(str(server.endpoint), *FOLLOW, topics=topics) as agent,
    ):
        eventually(lambda: topics_of(client), lambda held: held == as_registered(table(0)))
        with Process([sys.executable, topics_writer.__file__, str(topics), str(TIMES)]) as writer:
            writer.wait_for("topics_written")
        eventually(lambda: topics_of(client), lambda held: held == as_registered(table(TIMES)))
        assert server.events("broker_removed") == []
        assert topics.read_text() == table(TIMES)  # the agent has written nothing
        assert sorted(file.name for file in topics.parent.iterdir()) == ["topics.json"]
        assert agent.terminate() == 0


def test_a_changed_file_is_registered_though_the_period_is_far_away(topics: Path) -> None:
    with (
        name_servers(2, *EXACTLY) as servers,
        Agent(";".join(str(server.endpoint) for server, _ in servers), *FOLLOW, topics=topics),
    ):
        for number in (1, 2, 3):
            topics.write_text(table(number))
            expected = as_registered(table(number))
            for _, client in servers:
                assert eventually(partial(topics_of, client), expected.__eq__) == expected


def test_a_file_that_stays_broken_keeps_the_last_good_table_and_a_good_one_is_taken_again(topics: Path) -> None:
    with (
        name_servers(1, *EXACTLY) as [(server, client)],
        Agent(str(server.endpoint), *FOLLOW, topics=topics) as agent,
    ):
        eventually(lambda: topics_of(client), lambda held: held == as_registered(table(0)))
        topics.write_text(table(1)[:500])
        eventually(lambda: [line for line in agent.lines if line["level"] == "warning"])
        assert topics_of(client) == as_registered(table(0))
        topics.write_text(table(2))
        eventually(lambda: topics_of(client), lambda held: held == as_registered(table(2)))


def test_a_broker_without_a_file_has_the_built_in_topics_until_its_first_change(tmp_path: Path) -> None:
    file = tmp_path / "store" / "config" / "topics.json"
    with (
        name_servers(1, *EXACTLY) as [(server, client)],
        Agent(str(server.endpoint), *FOLLOW, "--topics-missing", "wait", topics=file) as agent,
        agent.connect() as calls,
    ):
        built_in = eventually(lambda: topics_of(client))
        assert {"TBW102", "SELF_TEST_TOPIC", "broker-a"} <= built_in.keys()
        assert calls.status().data_version.counter == 0
        file.parent.mkdir(parents=True)
        file.write_text(table(1))
        eventually(lambda: topics_of(client), lambda held: held == as_registered(table(1)))
        assert not calls.status().HasField("topics_problem")


def test_mappings_of_static_topics_are_in_the_routes_of_all_name_servers_and_change_by_themselves(topics: Path) -> None:
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
