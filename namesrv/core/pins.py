"""Snapshots that are held for a lease, so that several readers, and their retries, read the same revision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from namesrv.core.errors import Reason, Refused, limit_exceeded
from namesrv.core.snapshot import RouteSnapshot
from namesrv_common.server.shares import MACHINE, Sharer, Shares

MAX_PINNED_REVISIONS = 16
"""Most revisions that are pinned at once, counted for each caller: each holds rows that have been replaced since."""

MAX_PINS = 1_000
"""Most pins at once, whatever their revision: a reader that pins again and again must not fill memory."""

FOLLOWERS_PERCENT = 25
"""Share of the revisions that is reserved for followers: without a snapshot they cannot start again."""

UNREAD_PIN_SECONDS = 30.0
"""How long a pin that nobody has read yet does not count as idle: the tasks that will read it are being started."""

RETRY_SECONDS = 1.0
"""When it helps to ask again for a pin that was refused: reads take seconds."""


def too_many_pins(what: str, value: int, limit: int, caller: str) -> Refused:
    """No pin of the caller is idle, and another one would be too many."""
    return limit_exceeded(what, value, limit, caller, retry_after_seconds=RETRY_SECONDS)


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
    """Pinned snapshots by id. Pins of one revision share one snapshot.

    A pin is kept while it is being read, and its lease starts anew when a reader ends. Where a pin would be one too
    many, the revision of its owner that has been idle for longest ends first. Expired pins are dropped at the next
    call; ``drop_expired`` is for times without calls.
    """

    def __init__(
        self, monotonic: Callable[[], float], new_pin_id: Callable[[], str], *, pins: Shares, revisions: Shares
    ) -> None:
        """Starts without pins.

        Args:
            new_pin_id: Makes unguessable ids.
            pins: What callers hold of pins.
            revisions: What callers hold of revisions: one for each that a caller has pinned, however often.
        """
        self._monotonic = monotonic
        self._new_pin_id = new_pin_id
        self._shares = pins
        self._revision_shares = revisions
        self._pins: dict[str, _Pin] = {}

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
        held = (pin.snapshot for pin in self._pins.values() if pin.snapshot.revision == revision)
        snapshot = next(held, None) or take_snapshot()
        self._take(owner, revision, 0 if follows else FOLLOWERS_PERCENT)
        if snapshot.warm != warm:  # a warm-up may end without a change of the routes
            snapshot = replace(snapshot, warm=warm)
        pin_id, now = self._new_pin_id(), self._monotonic()
        self._pins[pin_id] = _Pin(snapshot, owner, lease_seconds, now + lease_seconds, now + UNREAD_PIN_SECONDS)
        return pin_id

    def release(self, pin_id: str) -> bool:
        """Ends a pin, or has it end with its last reader. Returns whether there was one."""
        pin = self._pins.get(pin_id)
        if pin is None or pin.released:
            return False
        pin.released = True
        self.drop_expired()
        return True

    @contextmanager
    def reading(self, pin_id: str) -> Iterator[RouteSnapshot]:
        """The pinned snapshot, kept as long as this lasts and for a lease afterwards. Raises SNAPSHOT_GONE."""
        self.drop_expired()
        pin = self._pins.get(pin_id)
        if pin is None or pin.released:
            text = f"no snapshot is pinned as {pin_id[:64]!r} (any more); pin again"
            raise Refused(Reason.SNAPSHOT_GONE, text, pin_id=pin_id[:64])
        pin.readers += 1
        try:
            yield pin.snapshot
        finally:
            pin.readers -= 1
            pin.idle_from = self._monotonic()
            pin.ends_at = pin.idle_from + pin.lease_seconds
            self.drop_expired()

    def drop_expired(self) -> None:
        """Ends pins that nobody reads and that were released, or whose lease has ended."""
        now = self._monotonic()
        self._drop(lambda pin: not pin.readers and (pin.released or pin.ends_at < now))

    def _take(self, owner: Sharer, revision: int, spared_percent: int) -> None:
        """Takes shares of a pin; idle revisions of the owner end until there are enough."""
        while self._shares.would_refuse(owner) or (
            not self._has_pinned(owner, revision)
            and self._revision_shares.would_refuse(owner, spared_percent=spared_percent)
        ):
            if not self._drop_oldest_idle(owner):
                break
        if not self._shares.would_refuse(owner) and not self._has_pinned(owner, revision):
            self._revision_shares.take(owner, spared_percent=spared_percent)
        self._shares.take(owner)

    def _has_pinned(self, owner: Sharer, revision: int) -> bool:
        return any(pin.owner.name == owner.name and pin.snapshot.revision == revision for pin in self._pins.values())

    def _drop_oldest_idle(self, owner: Sharer) -> bool:
        """Ends the owner's pins of the revision that has been idle for longest. Returns whether one was idle."""
        idle_from: dict[int, float] = {}
        for pin in self._pins.values():
            if pin.owner.name == owner.name:
                revision = pin.snapshot.revision
                idle_from[revision] = max(idle_from.get(revision, 0.0), math.inf if pin.readers else pin.idle_from)
        oldest = min(idle_from, key=idle_from.__getitem__, default=None)
        if oldest is None or idle_from[oldest] > self._monotonic():
            return False
        self._drop(lambda pin: pin.owner.name == owner.name and pin.snapshot.revision == oldest)
        return True

    def _drop(self, ends: Callable[[_Pin], bool]) -> None:
        for pin_id, pin in [(pin_id, pin) for pin_id, pin in self._pins.items() if ends(pin)]:
            del self._pins[pin_id]
            self._shares.give_back(pin.owner)
            if not self._has_pinned(pin.owner, pin.snapshot.revision):
                self._revision_shares.give_back(pin.owner)
