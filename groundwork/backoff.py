"""Pauses that grow from failure to failure, with jitter: callers that failed together do not come back together."""

from __future__ import annotations

from random import Random

from tenacity import RetryCallState, Retrying, wait_exponential

_NO_LOOP = Retrying()


class Backoff(wait_exponential):
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
        super().__init__(multiplier=first, max=longest, exp_base=factor)
        self._jitter = jitter
        self._rng = rng

    def __call__(self, retry_state: RetryCallState) -> float:
        """Seconds to wait. Called by tenacity."""
        return super().__call__(retry_state) * self._rng.uniform(*self._jitter)

    def after(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row, at least one."""
        return self(_state(failures))

    def step_after(self, failures: int) -> float:
        """The same without jitter."""
        return super().__call__(_state(failures))


def _state(failures: int) -> RetryCallState:
    state = RetryCallState(_NO_LOOP, None, (), {})
    state.attempt_number = failures
    return state
