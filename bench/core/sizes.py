"""How much is measured of everything."""

from __future__ import annotations

import argparse
from typing import NamedTuple

from bench.workload import Profile


class Sizes(NamedTuple):
    """How much of everything. The defaults are what reports are about; the test uses tiny ones."""

    registration_topics: int = 10_000
    large_topics: int = 100_000
    expiry_brokers: int = 10_000
    expiring_brokers: int = 1_000
    profiles: tuple[Profile, ...] = (Profile(20_000, 1_000, 1), Profile(100_000, 1_000, 4))
    lookups: int = 200_000
    mapped_queues: int = 50_000
    watches: int = 100
    watched_topics: int = 10_000
    """Of each watch."""


def tiny(topics: int) -> Sizes:
    """Everything with so many topics and a few brokers: shows that it runs, and no more."""
    return Sizes(topics, topics, 20, 2, (Profile(topics, 10, 2),), topics, topics, 3, topics)


def profile_of(text: str) -> Profile:
    """The table that a text such as 1000000x10000x1 asks for. Raises argparse.ArgumentTypeError."""
    numbers = text.split("x")
    if len(numbers) != len(Profile._fields) or not all(number.isascii() and number.isdecimal() for number in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is not TOPICSxBROKERSxWIDTH")
    profile = Profile(*map(int, numbers))
    if not 0 < profile.width <= profile.brokers or profile.topics == 0:
        raise argparse.ArgumentTypeError(f"{text!r} has no topics, or a width that is not from 1 to its brokers")
    return profile
