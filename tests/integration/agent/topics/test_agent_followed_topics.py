"""The agent beside a real broker: topics.json is the broker's, and the name server has what it says."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.integration.agent.topics.topics_writer import as_registered, table
from tests.support.programs.agents import EXACTLY, Agent, name_servers, topics_of
from tests.support.programs.processes import Client, eventually
from tests.support.static_topics import REAL_MAPPINGS, mappings_json

FOLLOW = ("--topics-mode", "follow")


@pytest.fixture
def topics(tmp_path: Path) -> Path:
    file = tmp_path / "config" / "topics.json"
    file.parent.mkdir()
    file.write_text(table(0))
    return file


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
