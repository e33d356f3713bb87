"""The topics of a file that an agent follows, and what routes have of them."""

from __future__ import annotations

import json
import threading
from functools import partial
from pathlib import Path

from broker_agent.topics.manager import TopicConfigManager
from broker_agent.topics.table import TopicConfigTable
from broker_agent.topics.topics_json import decode_topics
from tests.support.programs.agents import EXACTLY, Agent, name_servers, topics_of
from tests.support.programs.processes import Client, eventually
from tests.support.static_topics import REAL_MAPPINGS, mappings_json


def table(number: int) -> str:
    """Table number so and so: topics come, change and go."""
    names = [f"Topic{i:03}" if i % 5 else f"Topic{i:03}-{number % 3}" for i in range(50 + number % 7)]
    topics = {
        name: {"perm": 6, "readQueueNums": 1 + (number + i) % 16, "writeQueueNums": 1 + (number + i) % 16}
        for i, name in enumerate(names)
    }
    version = {"counter": number, "timestamp": 1_651_398_321_850 + number}
    return json.dumps({"dataVersion": version, "topicConfigTable": topics}, indent="\t")


def decoded(number: int) -> TopicConfigTable:
    return decode_topics(table(number).encode())


def test_mappings_of_static_topics_are_in_all_routes_and_change(tmp_path: Path) -> None:
    """The file is RocketMQ's, from the start; then another mapping comes, without a change of topics.json."""
    topics, mappings = tmp_path / "topics.json", tmp_path / "topicQueueMapping.json"
    topics.write_text(table(0))
    held = {topic.topic_name: (topic.read_queue_nums, topic.write_queue_nums, 6) for topic in decoded(0).topics}
    name = next(iter(held))
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
        Agent(";".join(str(server.endpoint) for server, _ in servers), topics=topics),
    ):
        for _, client in servers:
            assert eventually(partial(queue_ids, client)) == [(0, 0), (1, 1)]
        mappings.write_bytes(mappings_json({name: changed}, counter=2))
        for _, client in servers:
            eventually(partial(queue_ids, client), [].__eq__)
            assert topics_of(client) == held


REWRITES = 100
PAUSE_SECONDS = 0.02
"""Between two tables; within a torn one half of it."""


def write(path: Path, text: str, way: int) -> None:
    """As brokers do: in place, in place and in two halves, by renaming, or by removing it first."""
    if way == 0:
        path.write_text(text)
    elif way == 1:
        with path.open("w") as file:
            file.write(text[: len(text) // 2])
            file.flush()
            threading.Event().wait(PAUSE_SECONDS / 2)
            file.write(text[len(text) // 2 :])
    elif way == 2:
        fresh = path.with_name(path.name + ".tmp")
        fresh.write_text(text)
        fresh.rename(path)
    else:
        path.unlink(missing_ok=True)
        threading.Event().wait(PAUSE_SECONDS / 2)
        path.write_text(text)


def test_a_follower_sees_tables_in_order_and_ends_with_the_last(tmp_path: Path) -> None:
    file = tmp_path / "topics.json"
    file.write_text(table(0))
    manager = TopicConfigManager.follow(file)
    counters: list[int] = []
    manager.on_change = lambda table: counters.append(table.data_version.counter)
    manager.start()
    try:
        for number in range(1, REWRITES + 1):
            write(file, table(number), number % 4)
            threading.Event().wait(PAUSE_SECONDS)
        eventually(lambda: manager.table == decoded(REWRITES))
    finally:
        manager.stop()
    assert counters == sorted(set(counters)), "a table was taken twice, or after a later one"
    assert manager.problem is None
    assert file.read_text() == table(REWRITES)
    assert [entry.name for entry in tmp_path.iterdir()] == ["topics.json"], "the follower has written something"
