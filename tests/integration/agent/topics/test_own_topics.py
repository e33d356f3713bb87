"""An agent that owns its topics.json: what is made by calls reaches the name servers, and few messages carry it."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker_agent_api.v1 import topic_config_service_pb2 as topics_pb

from tests.support.patience import TIMEOUT
from tests.support.programs.agents import EXACTLY, Agent, AgentClient, name_servers, topics_of
from tests.support.programs.processes import eventually

TOPICS = 100


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "topics.json"


def create(agent: AgentClient, name: str, queues: int = 4) -> None:
    topic = topics_pb.TopicConfig(topic=name, read_queue_nums=queues, write_queue_nums=queues, perm=6)
    agent.topics.CreateOrUpdateTopic(topics_pb.CreateOrUpdateTopicRequest(topic_config=topic), timeout=TIMEOUT)


@pytest.fixture
def names() -> list[str]:
    return [f"Made-{number:03}" for number in range(TOPICS)]


def test_a_topic_that_is_deleted_goes_from_a_name_server_that_takes_tables_exactly(file: Path) -> None:
    with (
        name_servers(1, *EXACTLY) as [(server, client)],
        Agent(str(server.endpoint), "--topics-mode", "own", topics=file) as agent,
        agent.connect() as calls,
    ):
        create(calls, "Short-Lived")
        eventually(lambda: client.route("Short-Lived"))
        calls.topics.DeleteTopic(topics_pb.DeleteTopicRequest(topic="Short-Lived"), timeout=TIMEOUT)
        eventually(lambda: client.route("Short-Lived"), lambda route: route is None)


def test_what_an_agent_made_is_there_again_after_it_was_killed(file: Path, names: list[str]) -> None:
    with name_servers(1) as [(server, client)]:
        with Agent(str(server.endpoint), "--topics-mode", "own", topics=file) as agent, agent.connect() as calls:
            for name in names[:5]:
                create(calls, name)
            agent.kill()
            eventually(client.snapshot, lambda messages: not any(m.chunk.live_brokers for m in messages))
        with Agent(str(server.endpoint), "--topics-mode", "own", topics=file):
            eventually(lambda: topics_of(client).keys(), lambda held: held >= {*names[:5]})
