"""An agent that owns its topics.json, with failpoints, and one operator who changes all that the file keeps."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from broker_agent_api.v1 import broker_agent_service_pb2 as agent_pb
from broker_agent_api.v1 import topic_config_service_pb2 as pb

from tests.support import failpoints
from tests.support.patience import TIMEOUT
from tests.support.programs.agents import Agent, AgentClient

COUNTED, PASSING = "Counted", "Comes-And-Goes"
QUEUES, ROLE, PRESENCE = "queues of a topic", "state version of the role", "whether a topic is there"
ITEMS = (QUEUES, ROLE, PRESENCE)


class Held(NamedTuple):
    """What may be held of an item."""

    acknowledged: int
    attempted: int
    """What was asked for last: without an answer, it may be there or not."""
    before: int
    """What was acknowledged before that: the copy of the file may be as old."""


class OperatedAgent:
    """Starts the agent again and again on one topics.json. What was acknowledged must be there each time."""

    def __init__(self, folder: Path, namesrv: str) -> None:
        self.topics = folder / "topics.json"
        self.faults = folder / "faults"
        self._namesrv = namesrv
        self.held = dict.fromkeys(ITEMS, Held(0, 0, 0))

    def start(self, faults: str = "") -> Agent:
        """Starts the agent. AssertionError if it ends before it serves."""
        self.faults.write_text(faults)
        environment = failpoints.environment(self.faults)
        return Agent(self._namesrv, "--topics-mode", "own", topics=self.topics, environment=environment)

    def change(self, client: AgentClient, item: str) -> None:
        """Asks for the next value of an item. RpcError if it is not acknowledged."""
        held = self.held[item]
        wanted = 1 - held.acknowledged if item == PRESENCE else held.acknowledged + 1
        self.held[item] = held._replace(attempted=wanted)
        if item == QUEUES:
            self._put(client, COUNTED, wanted)
        elif item == ROLE:
            role = agent_pb.ChangeBrokerRoleRequest(broker_id=0, state_version=None)
            client.agent.ChangeBrokerRole(role, timeout=TIMEOUT)
        elif wanted:
            self._put(client, PASSING, 1)
        else:
            client.topics.DeleteTopic(pb.DeleteTopicRequest(topic=PASSING), timeout=TIMEOUT)
        self.held[item] = Held(wanted, wanted, held.acknowledged)

    def check(self, client: AgentClient, *, from_copy: bool = False) -> None:
        """What was acknowledged is served, or what was asked for after it; from a copy, perhaps what was before it."""
        table = client.table()
        topics = {topic.topic: topic for topic in table.topic_configs}
        found = {
            QUEUES: topics[COUNTED].read_queue_nums if COUNTED in topics else 0,
            ROLE: table.data_version.state_version,
            PRESENCE: int(PASSING in topics),
        }
        for item, value in found.items():
            held = self.held[item]
            allowed = {held.acknowledged, held.attempted, *([held.before] if from_copy else [])}
            assert value in allowed, f"{item} is {value}, not one of {allowed}"
            self.held[item] = Held(value, value, value)

    @property
    def queues(self) -> int:
        """What the counted topic has, in routes too."""
        return self.held[QUEUES].acknowledged

    @staticmethod
    def _put(client: AgentClient, name: str, queues: int) -> None:
        topic = pb.TopicConfig(topic=name, read_queue_nums=queues, write_queue_nums=queues, perm=6)
        client.topics.CreateOrUpdateTopic(pb.CreateOrUpdateTopicRequest(topic_config=topic), timeout=TIMEOUT)
