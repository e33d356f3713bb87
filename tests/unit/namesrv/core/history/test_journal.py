"""Entries of the journal: what each says, and the names it is found by. Searches are tested with the table."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

from namesrv.core.changes import Cause, Change, KvPut, LiveChange, QueuesRemoved, Row
from namesrv.core.journal import entry_of, touched_names
from namesrv.core.model import BrokerKey, BrokerLiveInfo, DataVersion, RemovalReason

EPOCH = "000000000000001-00000000"


def live(broker_name: str) -> BrokerLiveInfo:
    return BrokerLiveInfo(BrokerKey("c", broker_name), 0, "10.0.0.1:1", None, DataVersion(1, 1), None, 1, 120.0)


def removed(broker_name: str, topics: Collection[str]) -> QueuesRemoved:
    return QueuesRemoved(BrokerKey("c", broker_name), topics, RemovalReason.GROUP_GONE)


def test_an_entry_counts_removed_brokers_and_has_the_first_reason() -> None:
    b = live("b")
    gone = [LiveChange(b.key, b, None, reason) for reason in (RemovalReason.BROKER_DOWN, RemovalReason.REPLACED)]
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
