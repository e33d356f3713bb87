"""A running agent whose broker and list of name servers a test changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from broker_agent_api.v1.broker_agent_service_pb2 import GetAgentStatusRequest, GetAgentStatusResponse
from broker_agent_api.v1.broker_agent_service_pb2_grpc import BrokerAgentServiceStub

from broker_agent.broker_controller import BrokerController
from broker_agent.broker_probe import BrokerProbe
from broker_agent.cli import topic_configs_of
from broker_agent.namesrv_list import NamesrvList
from broker_agent.settings import AgentSettings
from broker_agent.timing import Timing
from tests.support.agents.fixtures import MakeSettings
from tests.support.fakes.registering_name_server import FakeNameServer
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import eventually


class RoundsOnDemand:
    """Lets the test say when a periodic round is due; the rounds follow at once."""

    def __init__(self, timing: Timing) -> None:
        self.timing = replace(timing, wait=self._wait)
        """Of an agent whose rounds these are."""
        self._wait_of_others = timing.wait
        self._rounds = threading.Semaphore(0)
        self._asked_for = self._begun = self._over = 0

    def due(self, rounds: int = 1) -> None:
        self._asked_for += rounds
        self._rounds.release(rounds)

    def wait_until_over(self) -> None:
        """A round that has begun has a registration of its time, however late it sends it."""
        eventually(lambda: self._over == self._asked_for)

    def _wait(self, woken: threading.Event, seconds: float) -> bool:
        if threading.current_thread().name != "broker-agent-periodic":
            return self._wait_of_others(woken, seconds)
        self._over = self._begun
        while not (woken.is_set() or self._rounds.acquire(timeout=0.01)):
            pass
        self._begun += 1
        return woken.is_set()


class ToldProbe(BrokerProbe):
    """Dies and comes back when the test says so."""

    def __init__(self) -> None:
        super().__init__(None, Timing())

    def die(self) -> None:
        self.is_up = False
        self.on_down()

    def come_back(self) -> None:
        self.is_up = True
        self.on_up()


class ToldList(NamesrvList):
    """Has the name servers that the test says."""

    def __init__(self, *servers: FakeNameServer) -> None:
        super().__init__(tuple(server.endpoint for server in servers), None, Timing())

    def change(self, *servers: FakeNameServer) -> None:
        self.take_names(tuple(server.endpoint for server in servers))


class Agent:
    """A controller, and the parts of it that a test drives."""

    def __init__(self, settings: AgentSettings, *servers: FakeNameServer, timing: Timing | None = None) -> None:
        self.rounds = RoundsOnDemand(timing or Timing())
        self.probe, self.list = ToldProbe(), ToldList(*servers)
        self.topics = topic_configs_of(settings, Timing())
        self.controller = BrokerController(settings, self.topics, self.list, self.probe, self.rounds.timing)

    def wait_until_idle(self) -> None:
        """A periodic round leaves out name servers that are busy, also if they find nothing to do."""
        eventually(lambda: not any(target.in_flight for target in self.status().targets))

    def calls(self) -> BrokerAgentServiceStub:
        return BrokerAgentServiceStub(self._connection)

    def status(self) -> GetAgentStatusResponse:
        return self.calls().GetAgentStatus(GetAgentStatusRequest(), timeout=TIMEOUT)

    def start(self) -> None:
        self.controller.start()
        self._connection = grpc.insecure_channel(str(self.controller.fast_listening_on))

    def stop(self) -> None:
        self.controller.stop()
        self._connection.close()


@pytest.fixture
def agent(settings: MakeSettings, tmp_path: Path) -> Callable[..., Any]:
    @contextmanager
    def start(*servers: FakeNameServer, timing: Timing | None = None, **changes: Any) -> Iterator[Agent]:
        own = {"topics_mode": "own", "topics": tmp_path / "own" / "topics.json"}
        (tmp_path / "own").mkdir(exist_ok=True)
        started = Agent(settings(*servers, **(own | changes)), *servers, timing=timing)
        started.start()
        try:
            started.wait_until_idle()
            yield started
        finally:
            started.stop()

    return start


StartAgent = Callable[..., Any]
