"""The topics that groups report, table after table."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tests.faults.fleet.operator import HELD_TOPIC


@dataclass(frozen=True)
class Table:
    """A topic table of a group. Each topic has as many queues as its version says."""

    group: str
    version: int
    topics: tuple[str, ...]


class TopicChanges:
    """Makes the next table of a group: always its first own topic and the one on hold, and some of all others."""

    def __init__(
        self,
        topics: Sequence[str],
        of_one: Mapping[str, Sequence[str]],
        rng: random.Random,
        fixed: Collection[str] = (),
    ) -> None:
        """Makes no table yet.

        Args:
            topics: Those that any group may have.
            of_one: Those that only one group has, by group.
            rng: Decides.
            fixed: Groups whose brokers look at their topics only when they start.
        """
        self._topics = tuple(topics)
        self._changing = [group for group in of_one if group not in fixed]
        self._of_one = dict(of_one)
        self._rng = rng
        self.versions = dict.fromkeys(of_one, 0)
        """The last table of each group."""

    def any_group(self) -> str:
        """Whose topics change next."""
        return self._rng.choice(self._changing)

    def next_of(self, group: str) -> Table:
        """Another table."""
        self.versions[group] += 1
        some = self._rng.sample(self._topics, self._rng.randint(1, len(self._topics)))
        first, *others = self._of_one[group]
        own = [topic for topic in others if self._rng.random() < 0.5]
        return Table(group, self.versions[group], (*some, first, *own, HELD_TOPIC))
