"""Pins hold a revision for a lease, share one copy of it, and end by themselves."""

from __future__ import annotations

import itertools
import weakref

import pytest

from namesrv.app.access import FairShares
from namesrv.core.errors import Reason
from namesrv.core.model import DataVersion
from namesrv.core.snapshot import MAX_PINNED_REVISIONS, MAX_PINS, UNREAD_PIN_SECONDS, Pins, RouteSnapshot
from namesrv_common.server.shares import MACHINE, Sharer
from tests.support.core_fleet import Fleet
from tests.support.refusals import refuses

LEASE = 600.0


class PinnedFleet(Fleet):
    """A fleet whose snapshots are pinned."""

    def __init__(self) -> None:
        super().__init__()
        shares = FairShares()
        self.shares = (shares.pins, shares.pinned_revisions)
        new_id = (f"pin-{number}" for number in itertools.count(1)).__next__
        self.pins = Pins(self.clock.monotonic, new_id, pins=shares.pins, revisions=shares.pinned_revisions)

    def pin(self, lease_seconds: float = LEASE, owner: Sharer = MACHINE, *, follows: bool = False) -> str:
        return self.pins.pin(self.state.revision, self.state.snapshot, lease_seconds, owner, follows=follows)

    def pin_next_revision(self, owner: Sharer = MACHINE, *, follows: bool = False) -> str:
        self.register(version=DataVersion(1, self.state.revision + 1))
        return self.pin(LEASE, owner, follows=follows)

    @property
    def used(self) -> list[int]:
        """Pins and revisions that callers hold."""
        return [kind.used for kind in self.shares]

    def revision_of(self, pin_id: str) -> int:
        with self.pins.reading(pin_id) as snapshot:
            return snapshot.revision


@pytest.fixture
def fleet() -> PinnedFleet:
    fleet = PinnedFleet()
    fleet.register()
    return fleet


def test_a_lease_ends_just_after_its_time(fleet: PinnedFleet) -> None:
    pin = fleet.pin(10.0)
    fleet.clock.advance(10.0)
    assert fleet.revision_of(pin) == 1
    fleet.clock.advance(10.001)
    with refuses(Reason.SNAPSHOT_GONE) as caught:
        fleet.revision_of(pin)
    assert caught.value.metadata == {"pin_id": pin}


def test_a_lease_starts_anew_when_a_reader_ends(fleet: PinnedFleet) -> None:
    pin = fleet.pin(10.0)
    for _ in range(5):
        fleet.clock.advance(9.0)
        assert fleet.revision_of(pin) == 1


def test_a_pin_does_not_end_under_its_readers_even_if_one_of_them_fails(fleet: PinnedFleet) -> None:
    pin = fleet.pin(10.0)
    with fleet.pins.reading(pin):
        with pytest.raises(ZeroDivisionError), fleet.pins.reading(pin):
            raise ZeroDivisionError
        fleet.clock.advance(1_000.0)
        fleet.pins.drop_expired()
        assert fleet.revision_of(pin) == 1
    fleet.clock.advance(10.001)
    with refuses(Reason.SNAPSHOT_GONE):
        fleet.revision_of(pin)


def test_pins_of_one_revision_share_one_snapshot(fleet: PinnedFleet) -> None:
    first, second = fleet.pin(), fleet.pin()
    assert first != second
    with fleet.pins.reading(first) as one, fleet.pins.reading(second) as other:
        assert one is other


OF_READERS = MAX_PINNED_REVISIONS * 3 // 4
"""Revisions that may be pinned by readers that do not follow."""


def test_unread_pins_do_not_give_way_to_one_too_many(fleet: PinnedFleet) -> None:
    pins = [fleet.pin(60.0), *(fleet.pin_next_revision() for _ in range(OF_READERS - 1))]
    fleet.pin()
    with refuses(Reason.LIMIT_EXCEEDED) as caught:
        fleet.pin_next_revision()
    assert caught.value.metadata == {"name": "pinned revisions", "value": "13", "limit": "12", "caller": "all"}
    assert caught.value.retry_after_seconds == 1.0
    assert len(fleet.pins) == OF_READERS + 1
    assert fleet.revision_of(pins[0]) == 1


def test_the_pin_that_is_idle_for_longest_gives_way(fleet: PinnedFleet) -> None:
    pins = [fleet.pin(), *(fleet.pin_next_revision() for _ in range(OF_READERS - 1))]
    for pin in (pins[4], pins[2]):
        assert fleet.revision_of(pin)
        fleet.clock.advance(1.0)
    with fleet.pins.reading(pins[3]):
        fleet.pin_next_revision()
        with refuses(Reason.SNAPSHOT_GONE):
            fleet.revision_of(pins[4])
        fleet.pin_next_revision()
        with refuses(Reason.SNAPSHOT_GONE):
            fleet.revision_of(pins[2])
        with refuses(Reason.LIMIT_EXCEEDED):
            fleet.pin_next_revision()  # one is being read, the others were pinned a moment ago
        fleet.clock.advance(UNREAD_PIN_SECONDS)
        fleet.pin_next_revision()
        with refuses(Reason.SNAPSHOT_GONE):
            fleet.revision_of(pins[0])


def test_a_revision_gives_way_only_if_nobody_reads_it(fleet: PinnedFleet) -> None:
    read, idle = fleet.pin(), fleet.pin()
    assert fleet.revision_of(idle) == 1
    others = [fleet.pin_next_revision() for _ in range(OF_READERS - 1)]
    assert fleet.revision_of(others[0]) == 2
    with fleet.pins.reading(read):
        fleet.pin_next_revision()
    assert fleet.revision_of(idle) == 1
    with refuses(Reason.SNAPSHOT_GONE):
        fleet.revision_of(others[0])


def test_pins_of_another_caller_do_not_give_way(fleet: PinnedFleet) -> None:
    first, second = Sharer("first"), Sharer("second")
    kept = [fleet.pin_next_revision(first) for _ in range(5)]
    for pin_id in kept:
        assert fleet.revision_of(pin_id)
    for _ in range(20):
        fleet.revision_of(fleet.pin_next_revision(second))
    for pin_id in kept:
        assert fleet.revision_of(pin_id)


def test_one_caller_pins_no_more_than_its_half(fleet: PinnedFleet) -> None:
    greedy = Sharer("greedy")
    for _ in range(MAX_PINNED_REVISIONS // 2):
        fleet.pin_next_revision(greedy, follows=True)
    with refuses(Reason.LIMIT_EXCEEDED) as caught:
        fleet.pin_next_revision(greedy, follows=True)
    assert caught.value.metadata == {"name": "pinned revisions", "value": "9", "limit": "8", "caller": "greedy"}
    assert fleet.used == [8, 8]
    fleet.pin(owner=Sharer("pipeline"))


def test_a_released_pin_ends_at_once_or_with_its_last_reader(fleet: PinnedFleet) -> None:
    first, second = fleet.pin(), fleet.pin()
    assert fleet.pins.release(first)
    assert not fleet.pins.release(first)
    assert fleet.used == [1, 1]
    with fleet.pins.reading(second) as snapshot:
        assert fleet.pins.release(second)
        with refuses(Reason.SNAPSHOT_GONE):
            fleet.revision_of(second)
        assert snapshot.revision == 1
        assert len(fleet.pins) == 1
    assert len(fleet.pins) == 0
    assert fleet.used == [0, 0]


def test_a_thousand_pins_can_be_held_and_not_one_more(fleet: PinnedFleet) -> None:
    for _ in range(MAX_PINS):
        fleet.pin()
    with refuses(Reason.LIMIT_EXCEEDED) as caught:
        fleet.pin()
    assert caught.value.metadata == {"name": "pins", "value": "1001", "limit": "1000", "caller": "all"}


def test_what_ended_is_freed_by_the_scan_though_nobody_calls(fleet: PinnedFleet) -> None:
    pin = fleet.pin(10.0)
    with fleet.pins.reading(pin) as snapshot:
        rows = weakref.ref(snapshot.tables.topic_queue_table)
    del snapshot
    fleet.register(topics=["another"], version=DataVersion(1, 2))
    fleet.clock.advance(10.001)
    assert rows() is not None
    fleet.pins.drop_expired()
    assert (rows(), len(fleet.pins), fleet.used) == (None, 0, [0, 0])


def test_a_snapshot_that_cannot_be_taken_holds_no_share(fleet: PinnedFleet) -> None:
    def fails() -> RouteSnapshot:
        raise MemoryError

    with pytest.raises(MemoryError):
        fleet.pins.pin(fleet.state.revision, fails, LEASE)
    assert fleet.used == [0, 0]
