"""Snapshots that are held for a lease, so that several readers, and their retries, read the same revision."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from groundwork.shares import MACHINE, Sharer, Shares
from namesrv.core.errors import SnapshotGone
from namesrv.core.snapshot import RouteSnapshot

MAX_PINNED_REVISIONS = 8
"""Most revisions that are pinned at once, counted for each caller: each may hold a copy of the topic table, and rows
that have been replaced."""

MAX_PINS = 1_000
"""Most pins at once, whatever their revision: a reader that pins again and again must not fill memory."""

MAX_PINNED_SECONDS = 600_000
"""Most seconds of all leases together, a thousand times the usual one: whoever asks for long ones has fewer."""


class PinShares(NamedTuple):
    """What a pin takes."""

    pins: Shares
    revisions: Shares
    """A caller takes one for each revision that it has pinned, however often."""
    seconds: Shares

    @classmethod
    def usual(cls) -> PinShares:
        return cls(
            Shares("pins", MAX_PINS),
            Shares("pinned revisions", MAX_PINNED_REVISIONS),
            Shares("seconds of pins", MAX_PINNED_SECONDS),
        )


@dataclass(slots=True)
class _Pin:
    snapshot: RouteSnapshot
    owner: Sharer
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

    def __init__(
        self, monotonic: Callable[[], float], new_pin_id: Callable[[], str], shares: PinShares | None = None
    ) -> None:
        """Starts without pins.

        Args:
            new_pin_id: Makes unguessable ids.
            shares: What callers hold; None: nobody else hands any out.
        """
        self._monotonic = monotonic
        self._new_pin_id = new_pin_id
        self._shares = shares or PinShares.usual()
        self._pins: dict[str, _Pin] = {}
        self._revisions: Counter[tuple[str, int]] = Counter()
        """Pins of each caller at each revision."""

    def __len__(self) -> int:
        return len(self._pins)

    def pin(
        self,
        revision: int,
        take_snapshot: Callable[[], RouteSnapshot],
        lease_seconds: float,
        owner: Sharer = MACHINE,
    ) -> str:
        """Holds the current revision and returns the pin's id.

        Args:
            take_snapshot: Takes a snapshot of it; called only if no pin has one already.
            lease_seconds: How long the pin is kept unless it is read.

        Raises:
            LimitExceeded: The owner, or all callers together, hold too much for another one.
        """
        self.drop_expired()
        with ExitStack() as taken:
            for shares, amount in self._amounts(owner, revision, lease_seconds):
                shares.take(owner, amount)
                taken.callback(shares.give_back, owner, amount)
            snapshots = {pin.snapshot.revision: pin.snapshot for pin in self._pins.values()}
            snapshot = snapshots.get(revision) or take_snapshot()
            taken.pop_all()
        self._revisions[owner.name, revision] += 1
        pin_id = self._new_pin_id()
        self._pins[pin_id] = _Pin(snapshot, owner, lease_seconds, self._monotonic() + lease_seconds)
        return pin_id

    def close(self) -> None:
        """Lets go of all pins: whoever reads one goes on with it."""
        for pin_id in tuple(self._pins):
            self._drop(pin_id)

    @contextmanager
    def reading(self, pin_id: str) -> Iterator[RouteSnapshot]:
        """The pinned snapshot, kept as long as this lasts and for a lease afterwards. Raises SnapshotGone."""
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
        now = self._monotonic()
        for pin_id in [pin_id for pin_id, pin in self._pins.items() if not pin.readers and pin.ends_at < now]:
            self._drop(pin_id)

    def _drop(self, pin_id: str) -> None:
        pin = self._pins.pop(pin_id)
        owner, revision = pin.owner, pin.snapshot.revision
        self._revisions[owner.name, revision] -= 1
        if not self._revisions[owner.name, revision]:
            del self._revisions[owner.name, revision]
        for shares, amount in self._amounts(owner, revision, pin.lease_seconds):
            shares.give_back(owner, amount)

    def _amounts(self, owner: Sharer, revision: int, lease_seconds: float) -> Iterator[tuple[Shares, int]]:
        """What a pin takes that is to come, or has just gone."""
        yield self._shares.pins, 1
        yield self._shares.seconds, math.ceil(lease_seconds)
        if not self._revisions[owner.name, revision]:
            yield self._shares.revisions, 1
