"""Agents, and what they register with."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
from broker_agent_api.v1 import broker_agent_service_pb2 as agent_pb
from broker_agent_api.v1 import topic_config_service_pb2 as topics_pb
from broker_agent_api.v1.broker_agent_service_pb2_grpc import BrokerAgentServiceStub
from broker_agent_api.v1.topic_config_service_pb2_grpc import TopicConfigServiceStub

from namesrv_common.endpoints import Endpoint
from tests.support.fakes.scripted_namesrv import ScriptedNamesrv
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import BIN, TOPICS, Client, NamesrvProcess, Process

NEVER_SCAN = ("--scan-not-active-broker-interval-millis", "0")
"""For a name server: whatever leaves does so for another reason than its expiry."""
EXACTLY = ("--delete-topic-with-broker-registration",)
"""For a name server: a topic that a whole table no longer has is removed."""


class Agent(Process):
    """An agent that has started, and its calls. Its broker is taken for alive unless the arguments say otherwise."""

    def __init__(
        self,
        namesrv: str,
        *arguments: str,
        broker_id: int = 0,
        broker_addr: str = "127.0.0.1:10911",
        topics: Path = TOPICS,
        probe: str = "none",
        environment: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        super().__init__(
            [
                *prefix,
                *(str(BIN / "broker-agent"), "serve", "--listen", "127.0.0.1:0", "--log-format", "json"),
                *("--broker-name", "broker-a", "--broker-id", str(broker_id), "--broker-addr", broker_addr),
                *("--namesrv", namesrv),
                *("--topics", str(topics), "--probe", probe, *arguments),
            ],
            environment,
        )
        started = self.wait_for("agent_started")
        self.endpoint = Endpoint.parse(started["fast_listening_on"])
        self.ordinary = Endpoint.parse(started["listening_on"])
        """The listener for clients."""

    @contextmanager
    def connect(self) -> Iterator[AgentClient]:
        """A connection to it."""
        with grpc.insecure_channel(str(self.endpoint), [("grpc.use_local_subchannel_pool", 1)]) as connection:
            yield AgentClient(connection)


class AgentClient:
    """The calls of an agent."""

    def __init__(self, connection: grpc.Channel) -> None:
        self.agent = BrokerAgentServiceStub(connection)
        self.topics = TopicConfigServiceStub(connection)

    def status(self) -> agent_pb.GetAgentStatusResponse:
        """The agent's status."""
        return self.agent.GetAgentStatus(agent_pb.GetAgentStatusRequest(), timeout=TIMEOUT)

    def table(self) -> topics_pb.ListTopicsResponse:
        """All topics and their version."""
        answer = topics_pb.ListTopicsResponse()
        for chunk in self.topics.ListTopics(topics_pb.ListTopicsRequest(), timeout=TIMEOUT):
            answer.MergeFrom(chunk)
        return answer

    def target(self, endpoint: Endpoint) -> agent_pb.NamesrvTargetStatus:
        """How one name server is doing; the default instance if the agent knows of none there."""
        targets = {target.endpoint: target for target in self.status().targets}
        return targets.get(str(endpoint), agent_pb.NamesrvTargetStatus())


def joined(*endpoints: Endpoint | NamesrvProcess | ScriptedNamesrv) -> str:
    """A name server list."""
    return ";".join(str(item if isinstance(item, Endpoint) else item.endpoint) for item in endpoints)


def topics_of(client: Client) -> dict[str, tuple[int, int, int]]:
    """Read queues, write queues and permission of each topic that a name server holds, of a single broker."""
    rows = [row for message in client.snapshot() for row in message.chunk.topics]
    return {
        row.topic: (queue.read_queue_nums, queue.write_queue_nums, queue.perm)
        for row in rows
        for queue in row.queue_datas
    }


@contextmanager
def repeating(work: Callable[[], object], pause_seconds: float = 0.01) -> Iterator[list[object]]:
    """Does something again and again while the block runs, with pauses, and collects what it returns."""
    returned: list[object] = []
    ending = threading.Event()

    def run() -> None:
        while not ending.wait(pause_seconds):
            returned.append(work())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield returned
    finally:
        ending.set()
        thread.join()


@contextmanager
def held_port() -> Iterator[Endpoint]:
    """A port where nobody listens, but a program that is told to: nobody else gets it."""
    with socket.socket() as holder:
        # With this set for both, another one may listen there although it is bound here.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield Endpoint("127.0.0.1", holder.getsockname()[1])
