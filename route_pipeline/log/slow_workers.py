"""Retries for slow Python workers of Spark: Spark waits ten seconds for one to start, and no setting changes that.

On a machine with more to do than cores, Python alone may need longer. Nothing has been read then.
"""

from __future__ import annotations

from collections.abc import Callable

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from route_pipeline.spark_errors import SPARK_ERRORS

STARTS = 5
"""How often a query is started before it fails: this takes a minute or two, in which a burst of work passes."""

_TOO_SLOW = "Python worker failed to connect back"


def patiently(query: Callable[[], None], wait_seconds: float = 10.0) -> None:
    """Runs a query to its end, again if a Python worker of it did not start in Spark's time.

    Args:
        query: Starts it and waits for it. It goes on at its checkpoint, so it can be run again.
        wait_seconds: Longest time between two tries.
    """
    wait = wait_random_exponential(multiplier=1, max=wait_seconds)
    again = Retrying(stop=stop_after_attempt(STARTS), wait=wait, retry=retry_if_exception(_is_too_slow), reraise=True)
    again(query)


def _is_too_slow(error: BaseException) -> bool:
    return isinstance(error, SPARK_ERRORS) and _TOO_SLOW in str(error)
