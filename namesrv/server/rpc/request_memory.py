"""A bound on the bytes of requests under way: a flood of maximal requests is refused and not held."""

from __future__ import annotations

from namesrv.config.limits import MAX_REQUEST_BYTES_UNDER_WAY, SMALL_REQUEST_BYTES
from namesrv.core.errors import Overloaded


class RequestMemory:
    """Counts the bytes of large requests, of all calls together, from their parsing until they are answered."""

    def __init__(self, max_bytes: int = MAX_REQUEST_BYTES_UNDER_WAY) -> None:
        self._max_bytes = max_bytes
        self._taken = 0

    def take(self, size: int) -> int:
        """Takes room for a request of so many bytes; returns what to give back. A small request takes none.

        Raises:
            Overloaded: There is not enough room.
        """
        if size <= SMALL_REQUEST_BYTES:
            return 0
        if self._taken + size > self._max_bytes:
            raise Overloaded(f"requests under way: {self._taken + size} bytes are over the limit of {self._max_bytes}")
        self._taken += size
        return size

    def give_back(self, taken: int) -> None:
        """Gives back what ``take`` returned."""
        self._taken -= taken
