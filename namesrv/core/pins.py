"""Snapshots that are held for a lease, so that several readers, and their retries, read the same revision."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from groundwork.shares import MACHINE, Sharer, Shares
from namesrv.core.errors import Refused, limit_exceeded, snapshot_gone
from namesrv.core.snapshot import RouteSnapshot

MAX_PINNED_REVISIONS = 16
"""Most revisions that are pinned at once, counted for each caller: each may hold a copy of the topic table, and rows
that have been replaced."""

MAX_PINS = 1_000
"""Most pins at once, whatever their revision: a reader that pins again and again must not fill memory."""

MAX_PINNED_SECONDS = 600_000
"""Most seconds of all leases together, a thousand times the default one. Longer leases leave fewer pins."""

FOLLOWERS_PERCENT = 25
"""Share of the revisions that is reserved for followers: without a snapshot they cannot start again."""

UNREAD_PIN_SECONDS = 30.0
"""How long a pin that nobody has read yet does not count as idle: the tasks that will read it are being started."""

RETRY_SECONDS = 1.0
"""When it helps to ask again for a pin that was refused: reads take seconds."""


def too_many_pins(what: str, value: int, limit: int, caller: str) -> Refused:
    """No pin of the caller is idle, and another one would be too many."""
    return limit_exceeded(what, value, limit, caller, retry_after_seconds=RETRY_SECONDS)


class PinShares(NamedTuple):
    """What a pin takes."""

    pins: Shares
    revisions: Shares
    """A caller takes one for each revision that it has pinned, however often."""
    seconds: Shares

    @classmethod
    def usual(cls) -> PinShares:
        def shares(what: str, most: int) -> Shares:
            return Shares(what, most, own=too_many_pins, full=too_many_pins)

        return cls(
            shares("pins", MAX_PINS),
            shares("pinned revisions", MAX_PINNED_REVISIONS),
            shares("seconds of pins", MAX_PINNED_SECONDS),
        )


@dataclass(slots=True)
class _Pin:
    snapshot: RouteSnapshot
    owner: Sharer
    lease_seconds: float
    ends_at: float
    """Seconds of the monotonic clock."""
    idle_from: float
    """Likewise: from then on it may end for another pin of its owner, unless it is being read."""
    readers: int = 0
    """Streams that read it now. It does not end while there are any."""
    released: bool = False
    """Whether it ends with its last reader."""


class Pins:
    """Pinned snapshots by id. Pins of one revision share one snapshot and count as one revision.

    A pin is kept while it is being read, and its lease starts anew when a reader ends. Where a pin would be one too
    many, idle ones of its owner end first. Expired pins are dropped at the next call; ``drop_expired`` is for times
    without calls.
    """

    def __init__(
        self, monotonic: Callable[[], float], new_pin_id: Callable[[], str], shares: PinShares | None = None
    ) -> None:
        """Starts without pins.

        Args:
            new_pin_id: Makes unguessable ids.
            shares: What callers hold, or None for shares of its own.
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
        *,
        follows: bool = False,
        warm: bool | None = None,
    ) -> str:
        """Holds the current revision and returns the pin's id.

        Args:
            take_snapshot: Takes a snapshot of it; called only if no pin has one already.
            lease_seconds: How long the pin is kept unless it is read.
            follows: Whether the reader also reads the changes. It may then use what is reserved for followers.
            warm: Whether the name server is warm, or None if the snapshot does not say.

        Raises:
            LIMIT_EXCEEDED: The owner, or all callers together, hold too much for another one, and no pin of the owner
                is idle.
        """
        self.drop_expired()
        spared = 0 if follows else FOLLOWERS_PERCENT
        self._end_idle(owner, revision, lease_seconds, spared)
        with ExitStack() as taken:
            for shares, amount, spared_percent in self._amounts(owner, revision, lease_seconds, spared):
                shares.take(owner, amount, spared_percent=spared_percent)
                taken.callback(shares.give_back, owner, amount)
            snapshots = {pin.snapshot.revision: pin.snapshot for pin in self._pins.values()}
            snapshot = snapshots.get(revision) or take_snapshot()
            taken.pop_all()
        if snapshot.warm != warm:  # a warm-up may end without a change of the routes
            snapshot = replace(snapshot, warm=warm)
        self._revisions[owner.name, revision] += 1
        pin_id = self._new_pin_id()
        now = self._monotonic()
        self._pins[pin_id] = _Pin(snapshot, owner, lease_seconds, now + lease_seconds, now + UNREAD_PIN_SECONDS)
        return pin_id

    def release(self, pin_id: str) -> bool:
        """Ends a pin, or has it end with its last reader. Returns whether there was one."""
        pin = self._pins.get(pin_id)
        if pin is None or pin.released:
            return False
        pin.released = True
        self._drop_released(pin_id)
        return True

    @contextmanager
    def reading(self, pin_id: str) -> Iterator[RouteSnapshot]:
        """The pinned snapshot, kept as long as this lasts and for a lease afterwards. Raises SNAPSHOT_GONE."""
        self.drop_expired()
        pin = self._pins.get(pin_id)
        if pin is None or pin.released:
            raise snapshot_gone(pin_id)
        pin.readers += 1
        try:
            yield pin.snapshot
        finally:
            pin.readers -= 1
            pin.idle_from = self._monotonic()
            pin.ends_at = pin.idle_from + pin.lease_seconds
            self._drop_released(pin_id)

    def drop_expired(self) -> None:
        now = self._monotonic()
        for pin_id in [pin_id for pin_id, pin in self._pins.items() if not pin.readers and pin.ends_at < now]:
            self._drop(pin_id)

    def _drop_released(self, pin_id: str) -> None:
        pin = self._pins.get(pin_id)
        if pin is not None and pin.released and not pin.readers:
            self._drop(pin_id)

    def _end_idle(self, owner: Sharer, revision: int, lease_seconds: float, spared_percent: int) -> None:
        """Ends idle pins of the owner, those that have been idle for longest first, until another one fits."""
        for shares, amount, spared in self._amounts(owner, revision, lease_seconds, spared_percent):
            while shares.would_refuse(owner, amount, spared_percent=spared):
                ended = self._longest_idle(owner, whole_revision=shares is self._shares.revisions)
                if not ended:
                    return
                for pin_id in ended:
                    self._drop(pin_id)

    def _longest_idle(self, owner: Sharer, *, whole_revision: bool) -> list[str]:
        """The owner's pin, or all its pins of the revision, that has been idle for longest; empty if none is idle."""
        now = self._monotonic()
        groups: dict[object, list[str]] = {}
        for pin_id, pin in self._pins.items():
            if pin.owner.name == owner.name:
                groups.setdefault(pin.snapshot.revision if whole_revision else pin_id, []).append(pin_id)
        idle: list[tuple[float, list[str]]] = []
        for pin_ids in groups.values():
            pins = [self._pins[pin_id] for pin_id in pin_ids]
            since = max(pin.idle_from for pin in pins)
            if since <= now and not any(pin.readers for pin in pins):
                idle.append((since, pin_ids))
        return min(idle)[1] if idle else []

    def _drop(self, pin_id: str) -> None:
        pin = self._pins.pop(pin_id)
        owner, revision = pin.owner, pin.snapshot.revision
        self._revisions[owner.name, revision] -= 1
        if not self._revisions[owner.name, revision]:
            del self._revisions[owner.name, revision]
        for shares, amount, _ in self._amounts(owner, revision, pin.lease_seconds):
            shares.give_back(owner, amount)

    def _amounts(
        self, owner: Sharer, revision: int, lease_seconds: float, spared_percent: int = 0
    ) -> Iterator[tuple[Shares, int, int]]:
        """Returns the shares of a new pin, or of one just dropped, with amounts and the percentage for followers."""
        yield self._shares.pins, 1, 0
        yield self._shares.seconds, math.ceil(lease_seconds), 0
        if not self._revisions[owner.name, revision]:
            yield self._shares.revisions, 1, spared_percent
