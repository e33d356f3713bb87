"""A bound on the bytes of requests under way: a flood of maximal requests is refused and not held."""

from __future__ import annotations

from namesrv.app.access import Entered
from namesrv.limits import SMALL_REQUEST_BYTES
from namesrv_common.server.rpc_handlers import Memory
from namesrv_common.server.shares import Shares


class RequestMemory(Memory):
    """Counts the bytes of large requests, of all calls together, from their parsing until they are answered."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares

    def take(self, entered: Entered, size: int) -> int:
        """Takes memory for a request of so many bytes; returns how much to give back. A small request takes none.

        Raises:
            OVERLOADED: Too little memory is left, in all or for the caller.
        """
        if size <= SMALL_REQUEST_BYTES:
            return 0
        self._shares.take(entered.sharer, size)
        return size

    def give_back(self, entered: Entered | None, taken: int) -> None:
        """Gives back the memory that ``take`` returned. Before admission a call has taken none."""
        if taken and entered is not None:
            self._shares.give_back(entered.sharer, taken)
