from __future__ import annotations

import threading
from collections.abc import Collection

import pytest

from broker_agent.broker_outer_api import Master, RegistrationResults
from broker_agent.name_server import RegisterBrokerResult
from namesrv_common.endpoints import Endpoint

PATIENCE_SECONDS = 20


def ordered(topic: str) -> tuple[RegisterBrokerResult, ...]:
    return (RegisterBrokerResult(Endpoint("a", 1), None, None, {topic: "broker-a:4"}),)


def test_the_first_named_master_wins_and_silence_takes_nothing_back() -> None:
    slave = RegistrationResults(lambda: True, lambda _topics: pytest.fail("no topic is ordered"))
    nobody = RegisterBrokerResult(Endpoint("a", 1), None, None)
    first = RegisterBrokerResult(Endpoint("b", 1), "10.0.0.9:10911", None)
    second = RegisterBrokerResult(Endpoint("c", 1), "10.0.0.8:10911", "10.0.0.8:10912")
    learnt = []
    for results in [(nobody,), (nobody, first, second), (nobody,), ()]:
        slave.take(results, check_order_config=False)
        learnt.append(slave.master)
    assert learnt == [None, *[Master("10.0.0.9:10911", None)] * 3]
    master = RegistrationResults(lambda: False, lambda _topics: pytest.fail("no topic is ordered"))
    master.take((first,), check_order_config=False)
    assert master.master is None


def test_order_topics_on_a_hanging_disk_delay_no_answers() -> None:
    writing, works_again, both_written = threading.Event(), threading.Event(), threading.Event()
    written: list[list[str]] = []

    def write(topics: Collection[str]) -> None:
        writing.set()
        assert works_again.wait(PATIENCE_SECONDS)
        written.append(list(topics))
        if len(written) == 2:
            both_written.set()

    results = RegistrationResults(lambda: False, write)
    results.take(ordered("First"), check_order_config=True)
    assert writing.wait(PATIENCE_SECONDS)
    for topic in ("Second", "Third"):  # come back while the first write hangs; the last answer is the one to keep
        results.take(ordered(topic), check_order_config=True)
    works_again.set()
    assert both_written.wait(PATIENCE_SECONDS)
    results.stop()
    assert written == [["First"], ["Third"]]
