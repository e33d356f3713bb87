"""The change log: revisions without gaps, bounds, and readers that walk on from what they hold."""

from __future__ import annotations

import pytest

from namesrv.core.changes import Cause, Change, ChangeLog, FilterServersChange, LiveChange, QueuesChange
from namesrv.core.model import BrokerKey, BrokerLiveInfo, DataVersion, LiveKey, QueueData, RemovalReason

QUEUES = QueueData(BrokerKey("c", "b"), 4, 4, 6, 0, b"", ())


def change(topics: int) -> Change:
    """A change of one row with so many topics."""
    lost = {f"T{number}": QUEUES for number in range(topics)}
    return Change(Cause("test"), (QueuesChange(QUEUES.broker, lost, None, RemovalReason.GROUP_GONE),))


def filled(log: ChangeLog, changes: int, topics: int = 1) -> ChangeLog:
    for _ in range(changes):
        log.append(change(topics), 0)
    return log


def revisions_from(change: Change | None) -> list[int]:
    """The revisions that a reader sees who walks on from a change."""
    seen = []
    while change is not None:
        seen.append(change.revision)
        change = change.next
    return seen


def test_an_empty_log_is_at_revision_0_and_has_nothing_to_read() -> None:
    log = ChangeLog()
    assert (log.last.revision, log.compacted_revision, len(log)) == (0, 0, 0)
    assert log.after(0) is None


def test_revisions_have_no_gaps_and_each_can_be_read_after() -> None:
    log = filled(ChangeLog(), 5)
    assert [revisions_from(log.after(revision)) for revision in (0, 3, 5)] == [[1, 2, 3, 4, 5], [4, 5], []]
    assert [change.revision for change in log.newest_first()] == [5, 4, 3, 2, 1]


@pytest.mark.parametrize(("bounds", "topics", "kept"), [({"max_changes": 3}, 1, 3), ({"max_rows": 20}, 9, 2)])
def test_so_many_changes_and_rows_are_kept_and_not_one_more(bounds: dict[str, int], topics: int, kept: int) -> None:
    log = filled(ChangeLog(**bounds), kept, topics)
    assert (log.compacted_revision, len(log)) == (0, kept)
    filled(log, 1, topics)
    assert (log.compacted_revision, len(log)) == (1, kept)
    assert revisions_from(log.after(1)) == list(range(2, kept + 2))


def test_a_change_over_the_bound_displaces_all_others_and_stays() -> None:
    log = filled(ChangeLog(max_rows=20), 3)
    filled(log, 1, topics=100)
    assert (log.compacted_revision, len(log)) == (3, 1)
    assert revisions_from(log.after(3)) == [4]
    filled(log, 1)
    assert revisions_from(log.after(log.compacted_revision)) == [5]


def test_labels_and_filter_servers_count_by_number_and_length() -> None:
    def of_labels(*labels: tuple[str, str]) -> int:
        live = BrokerLiveInfo(QUEUES.broker, 0, "a:1", None, DataVersion(1, 1), None, 1, 120.0, labels=labels)
        return Change(Cause("test"), (LiveChange(live.key, None, live),)).weight

    def of_filter_servers(*servers: str) -> int:
        row = FilterServersChange(LiveKey("c", "a:1"), None, servers, broker=QUEUES.broker)
        return Change(Cause("test"), (row,)).weight

    assert (of_labels(), of_labels(("a", "1"), ("b", "2")), of_labels(("k" * 240, "v" * 80))) == (2, 4, 2 + 1 + 4)
    assert (of_filter_servers(), of_filter_servers("f:1", "f" * 158 + ":1")) == (2, 2 + 1 + 3)


def test_a_reader_walks_on_from_a_change_that_has_been_dropped() -> None:
    log = ChangeLog(max_changes=2)
    held = change(1)
    log.append(held, 0)
    filled(log, 9)
    assert log.compacted_revision == 8
    assert revisions_from(held) == list(range(1, 11))


def test_listeners_are_told_each_change_once_the_cached_answers_first() -> None:
    log, told = filled(ChangeLog(), 1), list[tuple[str, int, bool]]()

    def listen(name: str, *, first: bool = False) -> None:
        log.listen(lambda change: told.append((name, change.revision, log.last is change)), first=first)

    listen("another")
    listen("cached answers", first=True)
    listen("a third")
    filled(log, 2)
    names = ("cached answers", "another", "a third")
    assert told == [(name, revision, True) for revision in (2, 3) for name in names]
