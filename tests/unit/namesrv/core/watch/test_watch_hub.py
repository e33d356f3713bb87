"""Open watches, without streams and a loop: when they are woken, from where they resume, and what bounds them."""

from __future__ import annotations

import pytest

from namesrv.core import slices
from namesrv.core.changes import ChangeLog
from namesrv.core.errors import Reason
from namesrv.core.model import DataVersion
from namesrv.core.slices import run_steps
from namesrv.core.watch.hub import ChangeReader, Follower
from tests.support.core_fleet import B
from tests.support.refusals import refuses
from tests.unit.namesrv.worlds.watched_fleet import WatchedFleet


def test_only_those_are_woken_whose_topics_changed_and_once_for_many_changes(fleet: WatchedFleet) -> None:
    first, second = fleet.watch("T1"), fleet.watch("T2")
    fleet.told(first), fleet.told(second)
    for number in range(5):
        fleet.register(topics=[("T1", (number, 1, 6, 0))], version=DataVersion(2, number))
    assert fleet.woken() == [first]
    assert fleet.woken() == []
    assert fleet.told(first).keys() == {"T1"}


def test_a_watch_is_woken_when_it_has_been_told_of_all_that_is_absent(
    fleet: WatchedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "SLICE", 1)
    fleet.is_warm = False
    watch = fleet.watch("nowhere", "not-there-either")
    fleet.told(watch)
    fleet.woken()
    fleet.is_warm = True
    telling = fleet.hub.add_absent()
    next(telling)
    fleet.woken()  # somebody else's change has those woken who are to be woken by now
    run_steps(telling)
    assert fleet.woken() == [watch]
    assert fleet.told(watch).keys() == {"nowhere", "not-there-either"}


def test_a_point_that_the_change_log_has_dropped_cannot_be_resumed_from(fleet: WatchedFleet) -> None:
    fleet.state.change_log = ChangeLog(max_changes=2)
    fleet.start_watching()
    for counter in range(4):
        fleet.register(version=DataVersion(2, counter))
    with refuses(Reason.REVISION_COMPACTED):
        fleet.watch("T1", after=1)
    fleet.watch("T1", after=2)


def test_watches_end_if_the_change_log_drops_what_they_have_not_been_told(fleet: WatchedFleet) -> None:
    fleet.state.change_log = ChangeLog(max_changes=2)
    fleet.start_watching()
    watch = fleet.watch("T1")
    fleet.told(watch)
    for counter in range(4):
        fleet.register(version=DataVersion(2, counter))
    assert fleet.woken() == [watch]
    with refuses(Reason.REVISION_COMPACTED):
        fleet.message(watch)


def test_a_bookmark_is_due_only_where_the_revision_moved_on(fleet: WatchedFleet) -> None:
    watch = fleet.watch("T1")
    fleet.told(watch)
    run_steps(fleet.hub.make_bookmarks_due(0, 1))
    assert fleet.woken() == []
    fleet.register(B, topics=["T3"], name="broker-b")
    run_steps(fleet.hub.read_changes())
    run_steps(fleet.hub.make_bookmarks_due(0, 1))
    assert fleet.woken() == [watch]
    assert fleet.told(watch) == {}


def test_bookmarks_come_in_parts_that_are_all_watches_together(fleet: WatchedFleet) -> None:
    opened = [fleet.watch("T1") for _ in range(7)]
    for watch in opened:
        fleet.told(watch)
    fleet.register(B, topics=["T3"], name="broker-b")
    run_steps(fleet.hub.read_changes())
    woken: list[ChangeReader] = []
    for part in range(3):
        run_steps(fleet.hub.make_bookmarks_due(part, 3))
        woken += fleet.woken()
    assert len(woken) == len(opened)
    assert set(woken) == set(opened)


def test_where_too_much_waits_the_wide_watch_ends_and_small_ones_go_on() -> None:
    fleet = WatchedFleet(max_pending=2_000)
    wide, small = fleet.watch(prefixes=[""]), fleet.watch("T1")
    fleet.told(wide), fleet.told(small)
    fleet.register(topics=["T1", *(f"many-{number}" for number in range(2_500))])
    assert set(fleet.woken()) == {wide, small}
    with refuses(Reason.OVERLOADED):
        fleet.message(wide)
    assert fleet.told(small).keys() == {"T1"}
    fleet.hub.close(wide)
    assert fleet.hub.pending_count == 0


def test_a_closed_watch_leaves_nothing_behind(fleet: WatchedFleet) -> None:
    watch = fleet.watch("T1", prefixes=["T"])
    leaving = fleet.hub.close(watch)
    fleet.register(topics=["T1"], version=DataVersion(2, 2))
    assert fleet.woken() == []
    assert fleet.hub.pending_count == 0
    run_steps(leaving)
    assert fleet.hub.name_count == 0


def test_followers_are_woken_by_every_change_until_they_go(fleet: WatchedFleet) -> None:
    run_steps(fleet.hub.read_changes())
    reader = Follower(lambda: None, revision=1)
    fleet.hub.follow(reader)
    assert fleet.woken() == []
    fleet.register(B, topics=["T3"], name="broker-b")
    assert fleet.woken() == [reader]
    fleet.hub.unfollow(reader)
    fleet.unregister(B, name="broker-b")
    assert fleet.woken() == []


def test_many_watches_with_few_changes_each_have_a_bound_together() -> None:
    fleet = WatchedFleet(max_pending=1_000)
    topics = [f"T{number}" for number in range(500)]
    watches = []
    for _ in range(10):
        watches.append(fleet.watch(*topics))
        fleet.told(watches[-1])
    fleet.register(topics=[(topic, (4, 4, 6, 0)) for topic in topics])
    fleet.woken()
    assert fleet.hub.pending_count <= 2_000
    assert sum(watch.failure is not None for watch in watches) == 6
