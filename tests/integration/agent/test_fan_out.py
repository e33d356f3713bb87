"""One round of registrations with five name servers, each a process of its own, one of which is healthy."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from broker_agent.broker_outer_api import BrokerOuterAPI
from broker_agent.channel import ConnectionOptions
from broker_agent.name_server import NamesrvTarget
from broker_agent.registration import BrokerState, Registration
from broker_agent.timing import Timing
from broker_agent.topics.files import load_topic_config_table
from groundwork.endpoints import Endpoint
from tests.support.programs.agents import NEVER_SCAN, OddNameServer, free_port
from tests.support.programs.processes import TOPICS, NamesrvProcess, eventually

OPTIONS = ConnectionOptions(connect_timeout_millis=1_000, keepalive_time_millis=5_000, keepalive_timeout_millis=5_000)
ROUND_SECONDS = 2.0
"""Less than the slow name server takes."""


class Fleet:
    """The name servers, and calls to all of them at once."""

    def __init__(self, healthy: Endpoint, stopped: Endpoint, refusing: Endpoint, unavailable: Endpoint, slow: Endpoint):
        timing = Timing()
        self.healthy, self.stopped, self.refusing, self.unavailable, self.slow = (
            NamesrvTarget(endpoint, "test", OPTIONS, self._registration_wanted, timing)
            for endpoint in (healthy, stopped, refusing, unavailable, slow)
        )
        self.targets = (self.healthy, self.stopped, self.refusing, self.unavailable, self.slow)
        self.api = BrokerOuterAPI(self.targets, timing)
        self._ready = threading.Condition()
        self._wanted: list[NamesrvTarget] = []

    def _registration_wanted(self, target: NamesrvTarget) -> None:
        with self._ready:
            self._wanted.append(target)
            self._ready.notify_all()

    def is_idle(self, target: NamesrvTarget) -> bool:
        return not self.api.in_flight(target)

    def open(self, *expected: NamesrvTarget) -> None:
        """Opens all channels and waits for those that can be opened."""
        for target in self.targets:
            target.open()
        with self._ready:
            assert self._ready.wait_for(lambda: {*expected} <= {*self._wanted}, 20)

    def close(self) -> None:
        self.api.stop_registering()
        for target in self.targets:
            target.close()
        self.api.close()


@contextmanager
def five_name_servers() -> Iterator[Fleet]:
    with ExitStack() as resources:
        healthy, stopped = (resources.enter_context(NamesrvProcess(*NEVER_SCAN)) for _ in range(2))
        slow, unavailable = (resources.enter_context(OddNameServer(kind)) for kind in ("slow", "unavailable"))
        refusing = resources.enter_context(free_port())
        fleet = Fleet(healthy.endpoint, stopped.endpoint, refusing, unavailable.endpoint, slow.endpoint)
        resources.callback(fleet.close)
        fleet.open(fleet.healthy, fleet.stopped, fleet.slow)
        stopped.signal(signal.SIGSTOP)  # with its channel open: it takes calls, and answers none
        yield fleet


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with five_name_servers() as started:
        yield started


def registration() -> Registration:
    broker = BrokerState("DefaultCluster", "broker-a", 0, "127.0.0.1:10911", None, permission=6)
    return Registration(broker, load_topic_config_table(TOPICS))


def test_the_results_are_complete_for_those_that_answered_in_time_and_do_not_change_later(fleet: Fleet) -> None:
    results = fleet.api.register_broker_all(registration(), force=True, timeout_seconds=ROUND_SECONDS)
    assert [result.endpoint for result in results] == [fleet.healthy.endpoint]
    before = list(results)
    # The slow one ends after the round: it is not in the results, then or ever.
    eventually(partial(fleet.is_idle, fleet.slow))
    assert list(results) == before
    assert fleet.healthy.status().registered


def test_a_round_that_is_long_enough_has_the_slow_one_too(fleet: Fleet) -> None:
    for target in fleet.targets:
        eventually(partial(fleet.is_idle, target))
    results = fleet.api.register_broker_all(registration(), force=True, timeout_seconds=4 * ROUND_SECONDS)
    # In the order in which they answered.
    assert [result.endpoint for result in results] == [fleet.healthy.endpoint, fleet.slow.endpoint]


def test_no_name_server_is_sent_a_second_registration_while_the_first_is_under_way(fleet: Fleet) -> None:
    for target in fleet.targets:
        eventually(partial(fleet.is_idle, target))
    with ThreadPoolExecutor(20) as rounds:
        for _ in range(20):
            rounds.submit(fleet.api.register_broker_all, registration(), force=True, timeout_seconds=ROUND_SECONDS)
        eventually(lambda: fleet.api.in_flight(fleet.stopped))
    for target in fleet.targets:
        eventually(partial(fleet.is_idle, target))
    assert fleet.slow.status().full_registration_count <= 4
