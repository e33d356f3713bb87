"""A copy-on-write list as java.util.concurrent has it: RocketMQ's BrokerOuterAPI collects its answers in one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class CopyOnWriteList(Generic[T]):
    """A list that is replaced whole by every change, so that readers need no lock and see no change.

    Unlike the original it can be closed: the tuple that ``close`` returns is final. In RocketMQ a late answer still
    lands in the list that the caller of ``registerBrokerAll`` already holds.
    """

    def __init__(self) -> None:
        self._items: tuple[T, ...] = ()
        self._closed = False
        self._writing = threading.Lock()

    def append(self, item: T) -> bool:
        """Adds an item at the end.

        Returns:
            False, and nothing is added, if the list has been closed.
        """
        with self._writing:
            if self._closed:
                return False
            self._items = (*self._items, item)
            return True

    def snapshot(self) -> tuple[T, ...]:
        """The items as they are now."""
        return self._items

    def close(self) -> tuple[T, ...]:
        """Ends writing and returns the final items."""
        with self._writing:
            self._closed = True
            return self._items

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)
