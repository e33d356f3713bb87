"""Snapshots that are held for a lease, so that several readers, and their retries, read the same revision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from namesrv.core.errors import LimitExceeded, SnapshotGone
from namesrv.core.snapshot.route_snapshot import RouteSnapshot

MAX_PINNED_REVISIONS = 8
"""Most revisions that are pinned at once: each may hold a copy of the topic table and rows that have been replaced."""

MAX_PINS = 1_000
"""Most pins at once, whatever their revision: a reader that pins again and again must not fill memory."""


@dataclass(slots=True)
class _Pin:
    """A snapshot and the end of its lease."""

    snapshot: RouteSnapshot
    lease_seconds: float
    ends_at: float
    """Seconds of the monotonic clock."""
    readers: int = 0
    """Streams that read it now. It does not end while there are any."""


class Pins:
    """Pinned snapshots by id. Pins of one revision share one snapshot and count as one revision.

    A pin is kept while it is being read, and its lease starts anew when a reader ends. Expired pins are dropped at the
    next call; ``drop_expired`` is for times without calls.
    """

    def __init__(self, monotonic: Callable[[], float], new_pin_id: Callable[[], str]) -> None:
        """Starts without pins.

        Args:
            monotonic: Seconds from an arbitrary point; leases go by it.
            new_pin_id: Makes unguessable ids.
        """
        self._monotonic = monotonic
        self._new_pin_id = new_pin_id
        self._pins: dict[str, _Pin] = {}

    def __len__(self) -> int:
        return len(self._pins)

    def pin(self, revision: int, take_snapshot: Callable[[], RouteSnapshot], lease_seconds: float) -> str:
        """Holds the current revision and returns the pin's id.

        Args:
            revision: The current revision.
            take_snapshot: Takes a snapshot of it; called only if no pin has one already.
            lease_seconds: How long the pin is kept unless it is read.

        Raises:
            LimitExceeded: Too many revisions are pinned, or there are too many pins.
        """
        self.drop_expired()
        if len(self._pins) >= MAX_PINS:
            raise LimitExceeded("pins", len(self._pins) + 1, MAX_PINS)
        snapshots = {pin.snapshot.revision: pin.snapshot for pin in self._pins.values()}
        if revision not in snapshots:
            if len(snapshots) >= MAX_PINNED_REVISIONS:
                raise LimitExceeded("pinned revisions", len(snapshots) + 1, MAX_PINNED_REVISIONS)
            snapshots[revision] = take_snapshot()
        pin_id = self._new_pin_id()
        self._pins[pin_id] = _Pin(snapshots[revision], lease_seconds, self._monotonic() + lease_seconds)
        return pin_id

    @contextmanager
    def reading(self, pin_id: str) -> Iterator[RouteSnapshot]:
        """The pinned snapshot, which is kept as long as this lasts and for a whole lease afterwards.

        Raises:
            SnapshotGone: There is no such pin, or its lease has ended.
        """
        self.drop_expired()
        pin = self._pins.get(pin_id)
        if pin is None:
            raise SnapshotGone(pin_id)
        pin.readers += 1
        try:
            yield pin.snapshot
        finally:
            pin.readers -= 1
            pin.ends_at = self._monotonic() + pin.lease_seconds

    def drop_expired(self) -> None:
        """Lets go of all pins whose lease has ended."""
        now = self._monotonic()
        for pin_id in [pin_id for pin_id, pin in self._pins.items() if not pin.readers and pin.ends_at < now]:
            del self._pins[pin_id]
