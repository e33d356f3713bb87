from __future__ import annotations

import threading

import pytest
from structlog.testing import capture_logs

from broker_agent.timing import ChangeThread, Debounce, Timing
from tests.support.patience import TIMEOUT


def registrations(changes: list[float]) -> list[float]:
    """When a registration begins, for changes at these times."""
    coalescing, begun = Debounce(), []
    for change in [*changes, float("inf")]:
        while (due := coalescing.due()) is not None and due < change:
            coalescing.done(due)
            begun.append(due)
        coalescing.changed(change)
    return begun


def test_one_change_is_registered_a_tenth_of_a_second_later() -> None:
    assert registrations([5.0]) == [pytest.approx(5.1)]


@pytest.mark.parametrize("spacing", [0.0, 0.001, 0.01])
def test_a_hundred_changes_within_a_second_make_one_registration(spacing: float) -> None:
    changes = [5.0 + number * spacing for number in range(100)]
    assert registrations(changes) == [pytest.approx(changes[-1] + 0.1)]


def test_changes_that_never_end_are_registered_every_one_and_a_half_seconds() -> None:
    begun = registrations([number * 0.01 for number in range(1_000)])
    assert len(begun) == 7
    assert begun[0] == pytest.approx(1.5)


def test_changes_that_follow_a_registration_wait_until_a_second_after_it() -> None:
    assert registrations([0.0, 0.2, 0.4]) == [pytest.approx(0.1), pytest.approx(1.1)]


def test_changes_that_were_made_before_the_start_are_registered_and_none_after_the_end() -> None:
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
