"""Targets and a BrokerOuterAPI over fake name servers, without a controller."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from broker_agent.broker_outer_api import BrokerOuterAPI, Results
from broker_agent.channel import ConnectionOptions
from broker_agent.name_server import NamesrvTarget
from broker_agent.registration import BrokerState, Registration
from broker_agent.timing import Timing
from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable
from namesrv_common.endpoints import Endpoint
from tests.support.fakes.registering_name_server import FakeNameServer
from tests.support.patience import TIMEOUT

OPTIONS = ConnectionOptions(connect_timeout_millis=5_000, keepalive_time_millis=5_000, keepalive_timeout_millis=5_000)
IMPATIENT = replace(OPTIONS, connect_timeout_millis=500)
"""For those that wait for a name server which is not there."""
STATE = BrokerState("C", "broker-a", 0, "10.0.0.1:10911", None, 6)
BROKER = STATE.identity()


def table(counter: int = 0, *topics: TopicConfig) -> TopicConfigTable:
    return TopicConfigTable(DataVersion(1, counter), topics)


def topic(name: str = "T", queues: int = 4) -> TopicConfig:
    return TopicConfig(name, queues, queues, 6)


def registration(counter: int = 0, *topics: TopicConfig, state: BrokerState = STATE) -> Registration:
    return Registration(state, table(counter, *topics))


class Listener:
    """Remembers what a target said, and lets a test wait for it."""

    def __init__(self) -> None:
        self.wanted: list[NamesrvTarget] = []
        self.accepted = 0
        self._happened = threading.Condition()

    def registration_wanted(self, target: NamesrvTarget) -> None:
        with self._happened:
            self.wanted.append(target)
            self._happened.notify_all()

    def registration_accepted(self) -> None:
        with self._happened:
            self.accepted += 1
            self._happened.notify_all()

    def wait_until_wanted(self, times: int) -> None:
        with self._happened:
            assert self._happened.wait_for(lambda: len(self.wanted) >= times, TIMEOUT)


def target_of(
    endpoint: Endpoint,
    listener: Listener | None = None,
    timing: Timing | None = None,
    options: ConnectionOptions = OPTIONS,
    **more: Any,
) -> NamesrvTarget:
    timing = timing or Timing()
    return NamesrvTarget(endpoint, "test", options, (listener or Listener()).registration_wanted, timing, **more)


class FanOut:
    """Targets for the name servers, started, with an open channel where there is a name server."""

    def __init__(
        self,
        *servers: FakeNameServer,
        target_class: type[NamesrvTarget] = NamesrvTarget,
        options: ConnectionOptions = OPTIONS,
        timing: Timing | None = None,
        **more: Any,
    ) -> None:
        self.timing = timing or Timing()
        self.listener = Listener()

        def make(endpoint: Endpoint) -> NamesrvTarget:
            wanted, accepted = self.listener.registration_wanted, self.listener.registration_accepted
            return target_class(endpoint, "test", options, wanted, self.timing, on_accepted=accepted, **more)

        self.listed = tuple(server.endpoint for server in servers)
        self.content = registration()
        self.results: list[Results] = []
        self.api = BrokerOuterAPI(
            lambda: self.listed, make, lambda: self.content, TIMEOUT, self.timing, on_results=self.results.append
        )
        self.api.follow_list(open_now=False)
        self.targets = self.api.targets
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.callback(self.api.close)
        for target in self.targets:
            target.open()
        self.listener.wait_until_wanted(len(self.targets))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def register(
        self,
        *topics: TopicConfig,
        force: bool = False,
        timeout_seconds: float = TIMEOUT,
        counter: int = 0,
        state: BrokerState = STATE,
    ) -> Results:
        return self.register_all(registration(counter, *topics, state=state), force=force, seconds=timeout_seconds)

    def register_all(self, content: Registration, *, force: bool = False, seconds: float = TIMEOUT) -> Results:
        self.content, self.api.register_seconds = content, seconds
        return self.api.register_broker_all(force=force)
