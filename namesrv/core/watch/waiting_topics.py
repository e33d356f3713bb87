"""The changed topics that wait to be sent to one watch, in parts so that no step pays for all of them."""

from __future__ import annotations

from collections.abc import Mapping

from namesrv.core.slices import Sliced, emptied
from namesrv.core.watch.affected_topics import MAX_GONE, GoneBroker

PART_TOPICS = 65_536
"""Topics of a part. A table of 700,000 takes 29 ms of one step to grow; one of so many less than three."""

Gone = tuple[GoneBroker, ...]
"""What left the route of a topic."""


class WaitingTopics:
    """Topics by name, each once, with what left their routes since they were sent last."""

    __slots__ = ("_count", "_parts")

    def __init__(self) -> None:
        self._parts: list[dict[str, Gone]] = [{}]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, topic: str) -> bool:
        return self._part_of(topic) is not None

    def _part_of(self, topic: str) -> dict[str, Gone] | None:
        for part in self._parts:
            if topic in part:
                return part
        return None

    def more_gone(self, topic: str, gone: Gone) -> bool:
        """Notes that more left the route of a topic that waits; whether it does wait."""
        part = self._part_of(topic)
        if part is not None and gone:
            part[topic] = _joined(part[topic], gone)
        return part is not None

    def add(self, topic: str, gone: Gone) -> None:
        """Adds a topic that does not wait yet."""
        self._last(1)[topic] = gone
        self._count += 1

    def add_all(self, topics: Mapping[str, Gone]) -> int:
        """Adds many topics of which some may wait already; how many did not. Some thirty times as quick."""
        fresh = topics
        for part in self._parts:
            if known := topics.keys() & part.keys():
                for topic in known:
                    if gone := topics[topic]:
                        part[topic] = _joined(part[topic], gone)
                fresh = {topic: gone for topic, gone in fresh.items() if topic not in known}
        self._last(len(fresh)).update(fresh)
        self._count += len(fresh)
        return len(fresh)

    def take(self) -> tuple[str, Gone]:
        """Takes one of the topics. There must be one."""
        if not self._parts[-1]:
            self._parts.pop()
        self._count -= 1
        return self._parts[-1].popitem()

    def emptied(self) -> Sliced[None]:
        """Drops all of them in slices. Nobody uses them any more."""
        self._count = 0
        for part in self._parts:
            yield from emptied(part)

    def _last(self, count: int) -> dict[str, Gone]:
        """The part with room for so many more."""
        if self._parts[-1] and len(self._parts[-1]) + count > PART_TOPICS:
            self._parts.append({})
        return self._parts[-1]


def _joined(before: Gone, gone: Gone) -> Gone:
    return (before + gone)[-MAX_GONE:]
