"""Targets and a BrokerOuterAPI over fake name servers, without a controller."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Self

from broker_agent.broker_outer_api import BrokerOuterAPI, Results
from broker_agent.name_server import NamesrvTarget
from broker_agent.registration import BrokerState, Registration
from broker_agent.timing import Timing
from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable
from namesrv_common.endpoints import Endpoint
from tests.support.fakes.registering_name_server import FakeNameServer
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import eventually

STATE = BrokerState("C", "broker-a", 0, "10.0.0.1:10911", None, 6)
BROKER = STATE.identity()


def topic(name: str = "T", queues: int = 4) -> TopicConfig:
    return TopicConfig(name, queues, queues, 6)


def registration(counter: int = 0, *topics: TopicConfig, state: BrokerState = STATE) -> Registration:
    return Registration(state, TopicConfigTable(DataVersion(1, counter), topics))


def target_of(endpoint: Endpoint, **more: Any) -> NamesrvTarget:
    return NamesrvTarget(endpoint, "test", lambda _: None, Timing(), **more)


class FanOut(ExitStack):
    """Targets for the name servers, started, with an open channel where there is a name server."""

    def __init__(self, *servers: FakeNameServer, compressed: bool = False) -> None:
        super().__init__()
        self.timing = Timing()
        self.wanted: list[NamesrvTarget] = []
        self.listed = tuple(server.endpoint for server in servers)
        self.content = registration()
        self.results: list[Results] = []
        self.api = BrokerOuterAPI(
            lambda: self.listed,
            lambda endpoint: NamesrvTarget(endpoint, "test", self.wanted.append, self.timing, compressed=compressed),
            lambda: self.content,
            TIMEOUT,
            self.timing,
            on_results=self.results.append,
        )
        self.api.follow_list(open_now=False)
        self.targets = self.api.targets

    def __enter__(self) -> Self:
        self.callback(self.api.close)
        for target in self.targets:
            target.open()
        self.wait_until_wanted(len(self.targets))
        return self

    def wait_until_wanted(self, times: int) -> None:
        """Waits until so many channels were opened, which want a registration each."""
        eventually(lambda: len(self.wanted) >= times)

    def register(
        self, *topics: TopicConfig, force: bool = False, timeout_seconds: float = TIMEOUT, counter: int = 0
    ) -> Results:
        self.content, self.api.register_seconds = registration(counter, *topics), timeout_seconds
        return self.api.register_broker_all(force=force)
