"""Clocks, periods and pauses of the agent, and the probe of its broker."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import pytest
from structlog.testing import capture_logs

from broker_agent.broker_probe import BrokerProbe
from broker_agent.timing import AFTER_BUG_SECONDS, ChangeThread, PeriodicThread, RegistrationThread, Timing
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import eventually
from tests.support.virtual_clock import VirtualClock, agent_timing


@contextmanager
def rounds(period_seconds: float, first_took_seconds: float = 0.0) -> Iterator[tuple[VirtualClock, list[float]]]:
    """Periodic rounds on virtual time from 0, and when each began. Only the first one takes time."""
    time, begun = VirtualClock(0.0), list[float]()

    def register() -> None:
        begun.append(time.seconds)
        if len(begun) == 1:
            time.advance(first_took_seconds)
        raise ZeroDivisionError

    thread = RegistrationThread(register, period_seconds, agent_timing(time))
    thread.start()
    yield time, begun
    thread.stop()


def test_rounds_begin_after_10_s_and_have_jitter_although_they_fail() -> None:
    with capture_logs() as logs, rounds(30.0) as (time, begun):
        time.run(6_000)
    pauses = [after - before for before, after in pairwise(begun)]
    assert begun[0] == 10
    assert 27 <= min(pauses) < 28
    assert 32 < max(pauses) <= 33
    assert sum(pauses) / len(pauses) == pytest.approx(30, abs=0.5)
    assert {entry["event"] for entry in logs} == {"round_of_registrations_failed"}
    with rounds(2.0) as (time, begun):
        time.run(2.0)
    assert begun == [2.0], "the first one waits no longer than a period"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_of_rounds_that_has_ended_by_itself_is_a_problem() -> None:
    ended, stopped = RegistrationThread(sys.exit, 0.001, Timing()), RegistrationThread(list, 30.0, Timing())
    for thread in (ended, stopped):
        assert thread.problem is None
        thread.start()
    stopped.stop()
    eventually(lambda: ended.problem)
    assert stopped.problem is None


@pytest.mark.parametrize(("took", "least", "most"), [(6.0, 27.0, 33.0), (3_600.0, 3_600.0, 3_600.0)])
def test_a_long_round_delays_no_other_and_missed_rounds_are_left_out(took: float, least: float, most: float) -> None:
    with rounds(30.0, took) as (time, begun):
        time.run(took + 90.0)
    assert least <= begun[1] - begun[0] <= most
    assert 27.0 <= begun[2] - begun[1] <= 33.0


def registrations(changes: list[float]) -> list[float]:
    """When registrations begin, for changes at these times. Each fails. Time passes while the thread waits."""
    time, begun, coming = VirtualClock(0.0), list[float](), list(changes)

    def register() -> None:
        begun.append(time.seconds)
        raise ZeroDivisionError

    def wait(woken: threading.Event, seconds: float) -> bool:
        if coming and coming[0] <= time.seconds + seconds:
            time.seconds = coming.pop(0)
            thread.changed()
        elif seconds < threading.TIMEOUT_MAX:
            time.advance(seconds)
        else:
            thread.cancel()
        return woken.is_set()

    thread = ChangeThread(register, replace(agent_timing(time), wait=wait))
    while coming and coming[0] == 0.0:  # before the start
        coming.pop(0)
        thread.changed()
    thread.start()
    thread.join(TIMEOUT)
    return begun


A_SECOND = [number * 0.01 for number in range(100)]


@pytest.mark.parametrize(
    ("changes", "begun"),
    [
        ([5.0], [5.1]),
        ([0.0] * 100, [0.1]),
        (A_SECOND, [A_SECOND[-1] + 0.1]),
        ([number * 0.01 for number in range(300)], [1.5, 3.0]),
        ([0.0, 0.2, 0.4], [0.1, 1.1]),
    ],
    ids=["one", "at once", "within a second", "without an end", "after a registration"],
)
def test_changes_within_a_moment_are_one_registration(changes: list[float], begun: list[float]) -> None:
    with capture_logs() as logs:
        assert registrations(changes) == pytest.approx(begun, abs=0.02)
    assert [entry["event"] for entry in logs] == ["registration_of_changes_failed"] * len(begun)


def test_a_thread_works_once_when_woken_and_after_an_error_until_stopped() -> None:
    time, times = VirtualClock(0.0), list[float]()

    def work() -> float:
        times.append(time.seconds)
        if len(times) == 2:
            raise KeyError
        return 5.0

    thread = PeriodicThread("broker-agent-test", work, agent_timing(time), first_delay=60.0)
    with capture_logs() as logs:
        thread.start()
        time.settle(1)
        thread.wake()
        eventually(lambda: times == [0.0])
        time.run(5.0 + AFTER_BUG_SECONDS)
        thread.stop()
        never = PeriodicThread("broker-agent-test", work, agent_timing(time))
        never.stop()
        never.start()
        never.join(10)
    assert times == [0.0, 5.0, 5.0 + AFTER_BUG_SECONDS]
    assert [entry["event"] for entry in logs] == ["periodic_work_failed"]


# BrokerProbe: three failed looks, a second apart, are a dead broker. One that succeeds is a living one.


class Broker:
    """A broker that is there or not, as the test says, and a probe that looks at it on virtual time."""

    def __init__(self) -> None:
        self.time = VirtualClock()
        self.alive = True
        self.seconds_to_answer = 0.0
        self.looks: list[float] = []
        self.told: list[tuple[str, float]] = []
        self.probe = BrokerProbe(self._check, agent_timing(self.time))
        self.probe.on_down = lambda: self.told.append(("down", self.time.seconds))
        self.probe.on_up = lambda: self.told.append(("up", self.time.seconds))

    def _check(self) -> None:
        self.looks.append(self.time.seconds)
        self.time.advance(self.seconds_to_answer)
        if not self.alive:
            raise ConnectionRefusedError("nobody there")

    def is_alive(self, alive: bool, seconds: float) -> None:
        self.alive = alive
        self.time.run(seconds)


def test_three_failures_in_a_row_are_a_dead_broker_and_one_success_revives() -> None:
    broker = Broker()
    broker.alive = False
    with capture_logs() as logs:
        assert not broker.probe.first_look()
        assert not broker.probe.is_up
        broker.probe.start()
        broker.time.run(10.0)
        assert broker.told == [], "it was never there"
        broker.is_alive(True, 5.0)
        assert broker.told == [("up", 1_011.0)]
        for _ in range(2):
            broker.is_alive(False, 2.0)
            assert (broker.told[1:], broker.probe.is_up) == ([], True)
            broker.is_alive(True, 1.0)
        broker.is_alive(False, 3.0)
        assert (broker.told[1:], broker.probe.is_up) == ([("down", 1_024.0)], False)
        broker.time.run(100.0)
        broker.is_alive(True, 60.0)
        broker.probe.stop()
    assert broker.told[2:] == [("up", 1_125.0)]
    assert [(entry["event"], entry.get("error")) for entry in logs] == [
        ("broker_not_up", "nobody there"),
        ("broker_up", None),
        ("broker_down", "nobody there"),
        ("broker_up", None),
    ]


def test_a_look_that_takes_its_time_does_not_put_off_the_next_one() -> None:
    broker = Broker()
    broker.probe.start()
    broker.time.settle(1)
    broker.seconds_to_answer = 0.6
    broker.time.run(3.0)
    broker.probe.stop()
    assert broker.looks == pytest.approx([1_000.0, 1_001.0, 1_002.0, 1_003.0])
