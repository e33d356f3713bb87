"""Entries of changes in memory: what an entry says, the names it is found by, and searches that take breaths.

That searches find what they should is compared with the table of the journal, in storage.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

from namesrv.core.changes import Cause, Change, ChangeLog, KvPut, LiveRemoved, QueuesRemoved, Row
from namesrv.core.journal import JournalQuery, entries_in_memory, entry_of, touched_names
from namesrv.core.model import BrokerKey, BrokerLiveInfo, DataVersion, RemovalReason
from namesrv.core.pace import FEW
from tests.support.breaths import breaths_of

EPOCH = "000000000000001-00000000"


def live(broker_name: str) -> BrokerLiveInfo:
    return BrokerLiveInfo(BrokerKey("c", broker_name), 0, "10.0.0.1:1", None, DataVersion(1, 1), None, 1, 120.0)


def removed(broker_name: str, topics: Collection[str]) -> QueuesRemoved:
    return QueuesRemoved(BrokerKey("c", broker_name), topics, RemovalReason.GROUP_GONE)


def searched(log: ChangeLog, query: JournalQuery) -> tuple[int, list[int]]:
    """How many breaths a search took, and the revisions that it found."""
    found: list[int] = []
    breaths = breaths_of(
        lambda: found.extend(entry.revision for entry in entries_in_memory(log.newest_first(), EPOCH, query))
    )
    return breaths, found


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


def test_a_search_through_very_many_changes_takes_breaths() -> None:
    log = ChangeLog()
    for number in range(3 * FEW):
        log.append(number, Cause("x"), (KvPut("n", "k", "v"),))
    breaths, found = searched(log, JournalQuery(10, topic="t"))
    assert found == []
    assert breaths >= 5
    assert searched(log, JournalQuery(2)) == (2, [3 * FEW, 3 * FEW - 1])


def test_a_search_within_one_very_wide_change_takes_breaths() -> None:
    log = ChangeLog()
    rows = [removed(f"b{number}", {f"t{number}"}) for number in range(5 * FEW)]
    log.append(1, Cause("x"), tuple(rows))
    breaths, found = searched(log, JournalQuery(1, topic="t1", broker_name=rows[-1].broker.broker_name))
    assert found == [1]
    assert breaths >= 4
    breaths, found = searched(log, JournalQuery(1, topic="t1", broker_name="b"))
    assert found == []
    assert breaths >= 4
