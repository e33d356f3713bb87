"""A bound on the memory of large frames, from their first bytes until they are answered."""

from __future__ import annotations

from collections.abc import Callable

from namesrv.limits import MAX_REQUEST_BYTES_UNDER_WAY, SMALL_REQUEST_BYTES

Granted = Callable[[int], None]
"""Told the size of the frame that there is room for now."""


class FrameMemory:
    """Room for large frames of all connections together. Where there is none, connections wait in their order.

    A broker whose registration is on its way must not be cut for others' registrations: it would leave all routes.
    """

    def __init__(self, max_bytes: int = MAX_REQUEST_BYTES_UNDER_WAY) -> None:
        self._max_bytes = max_bytes
        self._taken = 0
        self._waiting: dict[Granted, int] = {}

    @staticmethod
    def counts(size: int) -> bool:
        """Whether a frame of so many bytes needs room."""
        return size > SMALL_REQUEST_BYTES

    def take(self, size: int, granted: Granted) -> bool:
        """Takes room for a frame; if there is none, calls back once there is."""
        if self._waiting or self._taken + size > self._max_bytes:
            self._waiting[granted] = size
            return False
        self._taken += size
        return True

    def forget(self, granted: Granted) -> None:
        """Whoever waits waits no longer."""
        self._waiting.pop(granted, None)

    def give_back(self, size: int) -> None:
        """Gives back what a frame took; 0 changes nothing."""
        self._taken -= size
        while self._waiting:
            granted, wanted = next(iter(self._waiting.items()))
            if self._taken + wanted > self._max_bytes:
                return
            del self._waiting[granted]
            self._taken += wanted
            granted(wanted)
