"""Pauses that grow from failure to failure, with jitter: callers that failed together do not come back together."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from random import Random

from tenacity import RetryCallState

_MOST_STEPS = 100
"""Growth beyond it would overflow a float."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """A wait for tenacity: a step that grows up to a longest one, times a random factor.

    tenacity's own random waits draw from the module ``random``; here a test gives the source. Where failures are not
    exceptions of one function that is called again, ``after`` gives the pause for their number.
    """

    first: float
    """Seconds of the first step."""
    longest: float
    """Seconds of the longest step."""
    jitter: tuple[float, float] = (0.5, 1.0)
    """Least and greatest share of its step that a pause may take."""
    _: KW_ONLY
    rng: Random
    factor: float = 2.0
    """How much longer each step is than the one before."""

    def __call__(self, retry_state: RetryCallState) -> float:
        """Seconds to wait. Called by tenacity."""
        return self.after(retry_state.attempt_number)

    def after(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row, at least one."""
        step = min(self.longest, self.first * self.factor ** min(failures - 1, _MOST_STEPS))
        return step * self.rng.uniform(*self.jitter)
