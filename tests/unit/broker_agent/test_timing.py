"""Clocks, periods and pauses of the agent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import pytest
from structlog.testing import capture_logs

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


def test_the_first_round_waits_no_longer_than_a_period() -> None:
    with rounds(2.0) as (time, begun):
        time.run(2.0)
    assert begun == [2.0]


@pytest.mark.parametrize(("took", "least", "most"), [(6.0, 27.0, 33.0), (3_600.0, 3_600.0, 3_600.0)])
def test_a_long_round_delays_no_other_and_missed_rounds_are_left_out(took: float, least: float, most: float) -> None:
    with rounds(30.0, took) as (time, begun):
        time.run(took + 90.0)
    assert least <= begun[1] - begun[0] <= most
    assert 27.0 <= begun[2] - begun[1] <= 33.0


def registrations(changes: list[float]) -> list[float]:
    """When a registration begins, for changes at these times. Time passes while the thread waits."""
    time, begun, coming = VirtualClock(0.0), list[float](), list(changes)

    def wait(woken: threading.Event, seconds: float) -> bool:
        if coming and coming[0] <= time.seconds + seconds:
            time.seconds = coming.pop(0)
            thread.changed()
        elif seconds < threading.TIMEOUT_MAX:
            time.advance(seconds)
        else:
            thread.cancel()
        return woken.is_set()

    thread = ChangeThread(lambda: begun.append(time.seconds), replace(agent_timing(time), wait=wait))
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
    assert registrations(changes) == pytest.approx(begun, abs=0.02)


def test_changes_before_the_start_are_registered_and_none_after_the_end() -> None:
    called = threading.Semaphore(0)
    changes = ChangeThread(called.release, Timing())
    changes.changed()
    changes.start()
    assert called.acquire(timeout=TIMEOUT)
    changes.stop()
    changes.changed()
    assert not called.acquire(blocking=False)


def test_a_registration_that_fails_does_not_end_the_thread() -> None:
    calls: list[int] = []
    called = threading.Semaphore(0)

    def fail() -> None:
        calls.append(1)
        called.release()
        raise ZeroDivisionError

    with capture_logs() as logs:
        changes = ChangeThread(fail, Timing())
        changes.start()
        for _ in range(2):
            changes.changed()
            assert called.acquire(timeout=TIMEOUT)
        changes.stop()
    assert [entry["event"] for entry in logs] == ["registration_of_changes_failed"] * 2


def test_work_that_raises_is_logged_and_done_again_later() -> None:
    time, times = VirtualClock(), list[float]()

    def work() -> float:
        times.append(time.seconds)
        raise KeyError

    thread = PeriodicThread("broker-agent-test", work, agent_timing(time))
    with capture_logs() as logs:
        thread.start()
        time.run(AFTER_BUG_SECONDS)
        thread.stop()
        thread.join(10)
    assert times == [1_000.0, 1_000.0 + AFTER_BUG_SECONDS]
    assert [entry["event"] for entry in logs] == ["periodic_work_failed"] * 2


def test_a_thread_that_is_woken_works_once_and_waits_again() -> None:
    time, times = VirtualClock(0.0), list[float]()

    def work() -> float:
        times.append(time.seconds)
        return 10.0

    thread = PeriodicThread("broker-agent-test", work, agent_timing(time), first_delay=60.0)
    thread.start()
    time.settle(1)
    thread.wake()
    eventually(lambda: times == [0.0])
    time.run(10.0)
    thread.stop()
    assert times == [0.0, 10.0]


def test_a_thread_that_is_stopped_before_its_start_does_nothing() -> None:
    done: list[int] = []

    def work() -> float:
        done.append(1)
        return 1.0

    thread = PeriodicThread("broker-agent-test", work, Timing())
    thread.stop()
    thread.start()
    thread.join(10)
    assert done == []
