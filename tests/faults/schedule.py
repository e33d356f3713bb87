"""Schedules of faults: the seed decides which come when, how long they last, and whom they meet."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One fault of a schedule."""

    name: str
    seconds: float
    """How long it lasts."""
    seed: str
    """Decides whom it meets."""


@dataclass(frozen=True)
class Round:
    """Faults that come together, and how long the fleet has afterwards."""

    faults: tuple[Fault, ...]
    rest_seconds: float


def schedule(
    seed: int, names: Sequence[str], rounds: int, seconds: Sequence[float], rest: Sequence[float]
) -> list[Round]:
    """Rounds of one fault, or sometimes two at once. Each kind comes before any comes again.

    Args:
        seed: Decides everything.
        names: The kinds.
        rounds: How many rounds.
        seconds: How long faults last: one of these.
        rest: How long the fleet has afterwards: one of these.
    """
    rng = random.Random(seed)
    bag: list[str] = []
    planned = []
    for number in range(rounds):
        faults = []
        for place in range(1 if rng.random() < 0.7 else 2):
            bag = bag or rng.sample(list(names), len(names))
            faults.append(Fault(bag.pop(), rng.choice(seconds), f"{seed}/{number}/{place}"))
        planned.append(Round(tuple(faults), rng.choice(rest)))
    return planned
