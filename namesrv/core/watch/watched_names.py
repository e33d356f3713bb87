"""The watchers of each name, spread over parts so that no step pays for all names when their table grows."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

PARTS = 256
"""A power of two. One table of 350,000 names takes 15 ms of one step to grow, and of 700,000 twice as long."""

_MASK = PARTS - 1

WatcherT = TypeVar("WatcherT", bound=Hashable)


class WatchedNames(Generic[WatcherT]):
    """Names, each with its watchers in the order in which they came."""

    __slots__ = ("_count", "_parts")

    def __init__(self) -> None:
        self._parts: list[dict[str, dict[WatcherT, None]]] = [{} for _ in range(PARTS)]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, name: str) -> bool:
        return name in self._parts[hash(name) & _MASK]

    def add(self, name: str, watcher: WatcherT) -> None:
        """Adds a watcher of a name."""
        part = self._parts[hash(name) & _MASK]
        watchers = part.get(name)
        if watchers is None:
            part[name] = {watcher: None}
            self._count += 1
        else:
            watchers[watcher] = None

    def remove(self, name: str, watcher: WatcherT) -> None:
        """Removes a watcher of a name, also one that was never added."""
        part = self._parts[hash(name) & _MASK]
        watchers = part.get(name)
        if watchers is None:
            return
        watchers.pop(watcher, None)
        if not watchers:
            del part[name]
            self._count -= 1

    def watchers(self, name: str) -> tuple[WatcherT, ...]:
        """All watchers of a name."""
        return tuple(self._parts[hash(name) & _MASK].get(name, ()))

    def names(self) -> Iterator[str]:
        """All names, also while others come and go: of these it may or may not have each."""
        for part in self._parts:
            yield from tuple(part)
