"""An agent in this process, on fake name servers: its parts, its fixtures, and one that a test drives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import grpc
import pytest
from broker_agent_api.v1.broker_agent_service_pb2 import GetAgentStatusRequest, GetAgentStatusResponse
from broker_agent_api.v1.broker_agent_service_pb2_grpc import BrokerAgentServiceStub

from broker_agent.broker_controller import BrokerController
from broker_agent.broker_probe import BrokerProbe
from broker_agent.cli import topic_configs_of
from broker_agent.listener import ANYONE, AgentServer, Callers
from broker_agent.name_server import NamesrvTarget
from broker_agent.namesrv_list import NamesrvList
from broker_agent.registration import BrokerState, Registration
from broker_agent.settings import AgentSettings
from broker_agent.timing import Timing
from broker_agent.topics.files import TopicsFile
from broker_agent.topics.manager import TopicConfigChange, TopicConfigManager
from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable
from broker_agent.topics.topic_service import SERVICE as TOPIC_SERVICE
from namesrv_common.endpoints import Endpoint
from tests.support.fakes.registering_name_server import FakeNameServer
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import TOPICS, eventually
from tests.support.virtual_clock import VirtualClock

STATE = BrokerState("C", "broker-a", 0, "10.0.0.1:10911", None, 6)


class PassingClock(VirtualClock):
    """Time that passes by itself whenever somebody waits. It keeps how long the waits were."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.advance(seconds)
        return event.is_set()


def topic(name: str = "T", queues: int = 4) -> TopicConfig:
    return TopicConfig(name, queues, queues, 6)


def registration(counter: int = 0, *topics: TopicConfig, state: BrokerState = STATE) -> Registration:
    return Registration(state, TopicConfigTable(DataVersion(1, counter), topics))


def own_topics(
    path: Path,
    built_in: Collection[TopicConfig] = (),
    timing: Timing | None = None,
    write: Callable[[Path, bytes], None] | None = None,
) -> TopicConfigManager:
    """The topics of an agent that owns the file."""
    timing, file = timing or Timing(), TopicsFile(path, write)
    return TopicConfigManager(file.first_table(built_in, timing), timing, file=file, built_in=built_in)


def put_topic(manager: TopicConfigManager, topic: TopicConfig) -> TopicConfigChange:
    """Changes a broker's topic as a call of an operator does."""
    return manager.edit(topic.topic_name, lambda _before: topic)


def target_of(endpoint: Endpoint, **more: Any) -> NamesrvTarget:
    return NamesrvTarget(endpoint, "test", lambda _: None, Timing(), **more)


def settings_of(*name_servers: FakeNameServer, **changes: Any) -> AgentSettings:
    """Settings of a master; arguments replace fields."""
    values: dict[str, Any] = {
        "broker_name": "broker-a",
        "broker_id": 0,
        "broker_addr": "10.0.0.1:10911",
        "namesrv": [str(server.endpoint) for server in name_servers] or ["127.0.0.1:9876"],
        "topics": TOPICS,
        "listen": "127.0.0.1:0",
        "probe": "none",
    }
    return AgentSettings.load(None, values | changes)


@contextmanager
def topic_agent(servicer: object, callers: Callers = ANYONE) -> Iterator[Endpoint]:
    """Runs a TopicConfigService on a real loopback port for the time of the block."""
    server = AgentServer(Endpoint("127.0.0.1", 0), [(TOPIC_SERVICE, servicer)], callers)
    server.start()
    try:
        yield server.endpoint
    finally:
        server.stop()


class Agent:
    """A controller, and the parts of it that a test drives. It runs for the time of a block.

    The test says when a periodic round is due; the rounds follow at once.
    """

    def __init__(self, settings: AgentSettings, *servers: FakeNameServer, timing: Timing | None = None) -> None:
        timing = timing or Timing()
        self._rounds, self._wait_of_others = threading.Semaphore(0), timing.wait
        self.list = NamesrvList(tuple(server.endpoint for server in servers), None, Timing())
        self.topics = topic_configs_of(settings, Timing())
        probe, timing = BrokerProbe(None, Timing()), replace(timing, wait=self._wait)
        self.controller = BrokerController(settings, self.topics, self.list, probe, timing)

    def status(self) -> GetAgentStatusResponse:
        return self.calls.GetAgentStatus(GetAgentStatusRequest(), timeout=TIMEOUT)

    def rounds_are_due(self, rounds: int) -> None:
        self._rounds.release(rounds)

    def _wait(self, woken: threading.Event, seconds: float) -> bool:
        if threading.current_thread().name != "broker-agent-periodic":
            return self._wait_of_others(woken, seconds)
        while not (woken.is_set() or self._rounds.acquire(timeout=0.01)):
            pass
        return woken.is_set()

    def __enter__(self) -> Self:
        self.controller.start()
        self._connection = grpc.insecure_channel(str(self.controller.fast_listening_on))
        self.calls = BrokerAgentServiceStub(self._connection)
        # A periodic round leaves out name servers that are busy, also if they find nothing to do.
        eventually(lambda: not any(target.in_flight for target in self.status().targets))
        return self

    def __exit__(self, *_: object) -> None:
        self.controller.stop()
        self._connection.close()


# Fixtures, which conftest.py imports.

StartNameServer = Callable[..., FakeNameServer]
StartAgent = Callable[..., Agent]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("broker-agent"):
            thread.join(TIMEOUT)
            assert not thread.is_alive(), f"{thread.name} is left"


@pytest.fixture
def name_server() -> Iterator[StartNameServer]:
    """Starts fake name servers; all are stopped after the test."""
    with ExitStack() as servers:
        yield lambda *args, **kwargs: servers.enter_context(FakeNameServer(*args, **kwargs))


@pytest.fixture
def server(name_server: StartNameServer) -> FakeNameServer:
    """A fake name server."""
    return name_server()


@pytest.fixture
def agent(tmp_path: Path) -> StartAgent:
    """Starts agents that own their topics; arguments replace settings."""

    def start(*servers: FakeNameServer, timing: Timing | None = None, **changes: Any) -> Agent:
        own = {"topics_mode": "own", "topics": tmp_path / "own" / "topics.json"}
        (tmp_path / "own").mkdir(exist_ok=True)
        return Agent(settings_of(*servers, **(own | changes)), *servers, timing=timing)

    return start
