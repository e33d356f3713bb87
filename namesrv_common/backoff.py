"""Pauses that grow from failure to failure, with jitter: callers that failed together do not come back together."""

from __future__ import annotations

from random import Random

from tenacity import RetryCallState

_MOST_STEPS = 100
"""Growth beyond it would overflow a float."""


class Backoff:
    """A wait for tenacity: a step that grows up to a longest one, times a random factor.

    tenacity's own random waits draw from the module ``random``; here a test gives the source. Where failures are not
    exceptions of one function that is called again, ``after`` gives the pause for their number.
    """

    def __init__(
        self,
        first: float,
        longest: float,
        jitter: tuple[float, float] = (0.5, 1.0),
        *,
        rng: Random,
        factor: float = 2.0,
    ) -> None:
        """Takes times in seconds.

        Args:
            jitter: Least and greatest share of its step that a pause may take.
            factor: How much longer each step is than the one before.
        """
        self._first, self._longest, self._factor = first, longest, factor
        self._jitter = jitter
        self._rng = rng

    def __call__(self, retry_state: RetryCallState) -> float:
        """Seconds to wait. Called by tenacity."""
        return self.after(retry_state.attempt_number)

    def after(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row, at least one."""
        return self.step_after(failures) * self._rng.uniform(*self._jitter)

    def step_after(self, failures: int) -> float:
        """The same without jitter."""
        return min(self._longest, self._first * self._factor ** min(failures - 1, _MOST_STEPS))
