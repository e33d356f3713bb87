"""A bound on the bytes of requests under way: a flood of maximal requests is refused and not held."""

from __future__ import annotations

from groundwork.shares import Shares
from namesrv.app.access import Entered
from namesrv.limits import SMALL_REQUEST_BYTES


class RequestMemory:
    """Counts the bytes of large requests, of all calls together, from their parsing until they are answered."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares

    def take(self, entered: Entered, size: int) -> int:
        """Takes room for a request of so many bytes; returns what to give back. A small request takes none.

        Raises:
            OVERLOADED: There is not enough room, or the caller has not enough of it left.
        """
        if size <= SMALL_REQUEST_BYTES:
            return 0
        self._shares.take(entered.sharer, size)
        return size

    def give_back(self, entered: Entered | None, taken: int) -> None:
        """Gives back what ``take`` returned. Whoever was not let in has taken nothing."""
        if taken and entered is not None:
            self._shares.give_back(entered.sharer, taken)
