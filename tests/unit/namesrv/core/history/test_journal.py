"""Entries of changes in memory: what an entry says, the names it is found by, and searches that give way.

That searches find what they should is compared with the table of the journal, in storage.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

from namesrv.core.changes import Cause, Change, ChangeLog, KvPut, LiveRemoved, QueuesRemoved, Row
from namesrv.core.journal import JournalQuery, entries_in_memory, entry_of, touched_names
from namesrv.core.model import BrokerKey, BrokerLiveInfo, DataVersion, RemovalReason

EPOCH = "000000000000001-00000000"
A_MILLISECOND = 2_000
"""Changes and rows that a search looks at before it gives way."""


def live(broker_name: str) -> BrokerLiveInfo:
    return BrokerLiveInfo(BrokerKey("c", broker_name), 0, "10.0.0.1:1", None, DataVersion(1, 1), None, 1, 120.0)


def removed(broker_name: str, topics: Collection[str]) -> QueuesRemoved:
    return QueuesRemoved(BrokerKey("c", broker_name), topics, RemovalReason.GROUP_GONE)


def searched(log: ChangeLog, query: JournalQuery) -> tuple[int, list[int]]:
    """How often a search gave way, and the revisions that it found."""
    search = entries_in_memory(log, EPOCH, query)
    for slices in itertools.count():
        try:
            next(search)
        except StopIteration as end:
            return slices, [entry.revision for entry in end.value]
    raise AssertionError


def test_an_entry_counts_removed_brokers_and_has_the_first_reason() -> None:
    gone = [LiveRemoved(live("b"), RemovalReason.BROKER_DOWN), LiveRemoved(live("b"), RemovalReason.REPLACED)]
    entry = entry_of(EPOCH, Change(7, 1_000, Cause("ReportBrokerDown", "caller", "why"), (removed("b", {"t"}), *gone)))
    assert entry[:6] == (EPOCH, 7, 1_000, "caller", "ReportBrokerDown", "why")
    assert (entry.removed_broker_count, entry.removal_reason) == (2, RemovalReason.BROKER_DOWN.value)
    assert entry.position == (EPOCH, 7)
    other = entry_of(EPOCH, Change(8, 1_000, Cause("PutKvConfig"), (KvPut("n", "k", "v"),)))
    assert (other.removed_broker_count, other.removal_reason) == (0, 0)


class Endless(Collection[str]):
    """Topics that may be counted. A walk through more than a few of them fails."""

    def __contains__(self, topic: object) -> bool:
        return True

    def __len__(self) -> int:
        return 100_000

    def __iter__(self) -> Iterator[str]:
        for number in itertools.count():
            assert number < 10, "walks the topics"
            yield f"T{number}"


def test_names_of_a_change_are_told_once_and_topics_up_to_a_number() -> None:
    rows: tuple[Row, ...] = (removed("b", ["t", "u"]), removed("a", ["u"]), removed("b", ["t"]))
    change = Change(1, 0, Cause("x"), rows)
    assert touched_names(change, 2) == (["b", "a"], ["t", "u"])
    assert touched_names(change, 1) == (["b", "a"], None)
    assert touched_names(Change(1, 0, Cause("x"), (removed("b", Endless()),)), 5) == (["b"], None)


def test_a_search_through_very_many_changes_gives_way() -> None:
    log = ChangeLog()
    for number in range(3 * A_MILLISECOND):
        log.append(number, Cause("x"), (KvPut("n", "k", "v"),))
    slices, found = searched(log, JournalQuery(10, topic="t"))
    assert found == []
    assert slices >= 5
    assert searched(log, JournalQuery(2)) == (0, [3 * A_MILLISECOND, 3 * A_MILLISECOND - 1])


def test_a_search_within_one_very_wide_change_gives_way() -> None:
    log = ChangeLog()
    rows = [removed(f"b{number}", {f"t{number}"}) for number in range(5 * A_MILLISECOND)]
    log.append(1, Cause("x"), tuple(rows))
    slices, found = searched(log, JournalQuery(1, topic="t1", broker_name=rows[-1].broker.broker_name))
    assert found == [1]
    assert slices >= 4
    slices, found = searched(log, JournalQuery(1, topic="t1", broker_name="b"))
    assert found == []
    assert slices >= 4
