"""Time as the core sees it: injected, so that tests run on a virtual clock."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Two clocks in one. Deadlines go by ``monotonic``; ``wall_millis`` is only reported."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary point; never goes back."""
        ...

    def wall_millis(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...
