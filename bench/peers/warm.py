"""Decides when a peer is warm: its rounds no longer get faster, or it has been loaded for three minutes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

STEADY_SHARE = 0.05
"""Two consecutive rounds that differ by less than this share are steady."""
LOADED_SECONDS = 180.0


class Warm(NamedTuple):
    """The first warm round of a peer. All rounds after it are warm, too."""

    round: int
    """Counted from 1, warm-up rounds included."""
    is_steady: bool
    """Whether the round was steady; otherwise the peer had been loaded for three minutes before it."""

    def __str__(self) -> str:
        reason = "steady" if self.is_steady else "loaded for three minutes"
        return f"round {self.round}, {reason}"


def first_warm(speeds: Sequence[float], seconds: Sequence[float]) -> Warm | None:
    """Returns the first warm round, or None if no round was warm.

    Args:
        speeds: Answers per second in each round, the first one after the start first.
        seconds: Duration of each round.
    """
    loaded, before = 0.0, 0.0
    for number, (speed, lasted) in enumerate(zip(speeds, seconds, strict=True), 1):
        is_steady = abs(speed - before) < STEADY_SHARE * before
        if is_steady or loaded >= LOADED_SECONDS:
            return Warm(number, is_steady)
        loaded, before = loaded + lasted, speed
    return None
