"""The retries of calls to a name server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import grpc
from tenacity import RetryCallState, Retrying, retry_if_exception
from tenacity.nap import sleep_using_event

from broker_agent.errors import NameServerError
from broker_agent.timing import Timing
from namesrv_common.backoff import Backoff

FIRST_WAIT_SECONDS = 0.1
"""Longest wait after the first failure: a lost connection is often back at once."""
LONGEST_WAIT_SECONDS = 2.0
"""Longest wait between two attempts, so that several fit into a registration's 6 s."""

T = TypeVar("T")


def is_retryable(error: BaseException) -> bool:
    """Whether the same call may succeed a moment later.

    A lost channel counts: by then another one is open. A name server that is shutting down says so, and is not
    asked again. Other refusals are final, too.
    """
    if not isinstance(error, NameServerError):
        return False
    rich = error.rich
    if rich.code is grpc.StatusCode.UNAVAILABLE:
        return rich.reason != "SHUTTING_DOWN"
    return rich.reason in {"CHANNEL_GONE", "OVERLOADED"}


class CallRetries:
    """Retries with exponential backoff and jitter, inside the deadline of the whole."""

    def __init__(self, timing: Timing, stopping: threading.Event, sleep: Callable[[float], None] | None = None) -> None:
        """Creates it.

        Args:
            stopping: Once set, waits end and nothing is tried again.
            sleep: How to wait; by default until ``stopping`` is set.
        """
        self._timing = timing
        self._backoff = Backoff(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS, rng=timing.rng)
        self._stopping = stopping
        self._sleep = sleep or sleep_using_event(stopping)

    def run(self, call: Callable[[], T], deadline: float) -> T:
        """Calls until it succeeds, cannot succeed, or the next attempt would begin after the deadline.

        Args:
            deadline: By the injected clock.

        Raises:
            NameServerError: The last attempt's error.
        """

        def out_of_time(state: RetryCallState) -> bool:
            return self._stopping.is_set() or self._timing.clock() + state.upcoming_sleep >= deadline

        retrying = Retrying(
            retry=retry_if_exception(is_retryable), wait=self._wait, stop=out_of_time, sleep=self._sleep, reraise=True
        )
        return retrying(call)

    def _wait(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked_for = error.rich.retry_after_seconds if isinstance(error, NameServerError) else None
        return max(self._backoff(state), asked_for or 0.0)
