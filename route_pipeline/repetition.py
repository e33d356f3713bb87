"""A loop that does something every so often, and again soon if it failed; forever."""

from __future__ import annotations

import time
from collections.abc import Callable

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

FIRST_RETRY_SECONDS = 2.0
"""Longest wait before failed work is tried again; it doubles with each failure and is shortened at random."""
SHORTEST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 60.0
"""Longest wait of all: the name servers have been away for minutes by then."""


def repeat(
    work: Callable[[], None],
    seconds: float,
    failures: tuple[type[Exception], ...],
    on_failure: Callable[[str], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Works until it is interrupted, or fails with something else.

    Args:
        work: What to do.
        seconds: Time from the start of one work to the start of the next; at once, if it took longer.
        failures: Errors that may pass by themselves: the work is then tried again, with growing pauses.
        on_failure: Told of each of these, in a line.
        sleep: How to wait.
        clock: Monotonic seconds.
    """

    def tell(state: RetryCallState) -> None:
        assert state.outcome is not None
        on_failure(f"{state.outcome.exception()} (trying again in {state.upcoming_sleep:.1f} s)")

    until_done = Retrying(
        retry=retry_if_exception_type(failures),
        wait=wait_random_exponential(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, min=SHORTEST_RETRY_SECONDS),
        before_sleep=tell,
        sleep=sleep,
    )
    while True:
        started = clock()
        until_done(work)
        sleep(max(0.0, started + seconds - clock()))
