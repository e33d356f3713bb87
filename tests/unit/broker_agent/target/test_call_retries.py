from __future__ import annotations

import threading

import grpc
import pytest

from broker_agent.errors import NameServerError
from broker_agent.registration_sync import CallRetries
from broker_agent.timing import Timing
from namesrv_common.grpc_errors import RichError
from tests.support.timing import agent_timing
from tests.support.virtual_clock import VirtualClock

UNAVAILABLE = RichError(grpc.StatusCode.UNAVAILABLE, "no connection")


class Attempts:
    """Virtual time, a call that fails as told, and the waits between its attempts."""

    def __init__(self, *errors: RichError, always: RichError | None = None) -> None:
        self.clock = VirtualClock(0.0)
        self.count = 0
        self.waits: list[float] = []
        self.stopping = threading.Event()
        self._errors = list(errors)
        self._always = always
        self._retries = CallRetries(agent_timing(self.clock), self.stopping, self._sleep)

    def run(self, deadline: float = 6.0) -> str:
        return self._retries.run(self._call, deadline)

    def _call(self) -> str:
        self.count += 1
        error = self._errors.pop(0) if self._errors else self._always
        if error is not None:
            raise NameServerError(error)
        return "answer"

    def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.clock.advance(seconds)


def test_an_unavailable_name_server_is_tried_again_with_growing_waits() -> None:
    attempts = Attempts(*[UNAVAILABLE] * 4)
    assert attempts.run() == "answer"
    assert attempts.count == 5
    for wait, step in zip(attempts.waits, [0.1, 0.2, 0.4, 0.8], strict=True):
        assert step / 2 <= wait <= step


def test_no_attempt_begins_after_the_deadline() -> None:
    attempts = Attempts(always=UNAVAILABLE)
    with pytest.raises(NameServerError, match="no connection"):
        attempts.run(deadline=6.0)
    assert 3.0 < attempts.clock.seconds < 6.0


@pytest.mark.parametrize(
    "error",
    [
        RichError(grpc.StatusCode.INVALID_ARGUMENT, "bad", "INVALID_FIELD"),
        RichError(grpc.StatusCode.FAILED_PRECONDITION, "old", "STALE_STATE_VERSION"),
        RichError(grpc.StatusCode.RESOURCE_EXHAUSTED, "large", "LIMIT_EXCEEDED"),
        RichError(grpc.StatusCode.UNAVAILABLE, "going", "SHUTTING_DOWN"),
        RichError(grpc.StatusCode.DEADLINE_EXCEEDED, "late"),
    ],
    ids=lambda error: error.reason or error.code.name,
)
def test_what_cannot_succeed_a_moment_later_is_not_tried_again(error: RichError) -> None:
    attempts = Attempts(error)
    with pytest.raises(NameServerError):
        attempts.run()
    assert attempts.count == 1


def test_an_overloaded_name_server_is_left_alone_for_as_long_as_it_asks() -> None:
    attempts = Attempts(RichError(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", "OVERLOADED", retry_after_seconds=3.0))
    assert attempts.run() == "answer"
    assert attempts.waits == [3.0]


def test_nothing_is_tried_again_once_the_agent_stops() -> None:
    attempts = Attempts(always=UNAVAILABLE)
    attempts.stopping.set()
    with pytest.raises(NameServerError):
        attempts.run()
    assert attempts.count == 1


def test_a_defect_is_not_taken_for_a_passing_fault() -> None:
    retries = CallRetries(Timing(), threading.Event())
    with pytest.raises(ZeroDivisionError):
        retries.run(lambda: 1 // 0, deadline=float("inf"))
