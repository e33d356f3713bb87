"""A queue and a lock that serve owners round robin, and each owner's items in the order they arrive.

A caller therefore waits for one item of each other owner, however many these have queued. An owner is a principal by
name or, without permits, an address; the server itself is one, too.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

OWN = ""
"""The owner of the server's own work. No caller has an empty name."""

ItemT = TypeVar("ItemT")


class FairQueue(Generic[ItemT]):
    """A queue that serves its owners round robin. Not thread-safe."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, deque[ItemT]] = OrderedDict()
        """Owners with items; the first one is served next."""
        self.last_owner = OWN
        """The owner that was served last. Owners that arrive later are served before it."""

    def __bool__(self) -> bool:
        return bool(self._items)

    def put(self, owner: str, item: ItemT, *, is_next: bool = False) -> None:
        """Adds an item after those of its owner, or before them with ``is_next``."""
        items = self._items.setdefault(owner, deque())
        if is_next:
            items.appendleft(item)
        else:
            items.append(item)

    def get(self) -> ItemT:
        """Removes and returns the next owner's first item."""
        if self.last_owner in self._items:
            self._items.move_to_end(self.last_owner)
        self.last_owner, items = self._items.popitem(last=False)
        item = items.popleft()
        if items:
            self._items[self.last_owner] = items
        return item


class FairLock:
    """A lock whose waiters are a ``FairQueue``, and which a bounded number may hold in one iteration of the event loop.

    A thousand short holders one after the other would otherwise block everything else on the event loop.
    """

    def __init__(self, at_once: int = 1) -> None:
        """Takes how many holders it may have in one iteration, one after the other."""
        self._waiters: FairQueue[asyncio.Future[None]] = FairQueue()
        self._is_held = False
        self._at_once = self._left = at_once
        """How many it may have in an iteration, and how many of them it has not called yet."""
        self._is_due = False
        """Whether the next iteration calls waiters."""
        self.waiting = 0
        """Number of callers that wait for it or hold it."""

    async def acquire(self, owner: str) -> None:
        """Waits for the lock; ``release`` must follow."""
        self.waiting += 1
        is_called = False
        while self._is_held or (not is_called and (self._waiters or not self._left)):
            called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.put(owner, called, is_next=is_called)
            try:
                await called
            except asyncio.CancelledError:
                self.waiting -= 1
                self._call_soon()
                raise
            is_called = True
        self._left -= not is_called
        self._is_held, self._waiters.last_owner = True, owner

    def release(self) -> None:
        self.waiting -= 1
        self._is_held = False
        self._call_soon()

    @asynccontextmanager
    async def held_for(self, owner: str) -> AsyncIterator[None]:
        """Holds the lock for as long as the context lasts."""
        await self.acquire(owner)
        try:
            yield
        finally:
            self.release()

    def _call_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._call)

    def _call(self) -> None:
        """Calls the next waiters that were not cancelled. A waiter that finds the lock held waits again."""
        self._is_due = False
        if self._is_held:
            return
        self._left = self._at_once
        while self._waiters and self._left:
            called = self._waiters.get()
            if not called.done():
                called.set_result(None)
                self._left -= 1
