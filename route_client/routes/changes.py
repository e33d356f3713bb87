"""Buffers of changes, one for each reader, merged by topic, so that no reader can be too slow."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from route_client.routes.cache import RouteChange


class ChangeBuffer:
    """Changes that wait for one reader, oldest topic first, one for each topic at most.

    A change of a topic that still waits is merged into it: from the first before to the last after. Changes that undo
    each other are dropped. So the buffer never holds more than the topics that the client keeps.
    """

    def __init__(self, topics: Collection[str] | None = None) -> None:
        """Takes the topics that the reader wants; None means all."""
        self._topics = None if topics is None else frozenset(topics)
        self._waiting: dict[str, RouteChange] = {}
        self.merged = 0
        """Changes that were merged into a waiting one."""

    def put(self, change: RouteChange) -> bool:
        """Adds a change; returns whether the reader wants it."""
        if self._topics is not None and change.topic not in self._topics:
            return False
        earlier = self._waiting.get(change.topic)
        if earlier is None:
            self._waiting[change.topic] = change
            return True
        self.merged += 1
        merged = replace(change, before=earlier.before, removals=(*earlier.removals, *change.removals))
        if _is_nothing(merged):
            del self._waiting[change.topic]
        else:
            self._waiting[change.topic] = merged
        return True

    def take(self) -> RouteChange | None:
        """Removes the oldest change and returns it; None if nothing waits."""
        if not self._waiting:
            return None
        return self._waiting.pop(next(iter(self._waiting)))

    def __len__(self) -> int:
        return len(self._waiting)


def _is_nothing(change: RouteChange) -> bool:
    stale_before = change.before.stale if change.before is not None else None
    return (change.old_route, stale_before) == (change.new_route, change.after.stale)
