"""Entries of the journal: what each says, and the names it is found by. Searches are tested with the table."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

from namesrv.core.changes import Cause, Change, KvChange, LiveChange, QueuesChange, Row
from namesrv.core.journal import entry_of, touched_names
from namesrv.core.model import BrokerKey, BrokerLiveInfo, DataVersion, QueueData, RemovalReason

QUEUES = QueueData(BrokerKey("c", "b"), 4, 4, 6, 0, b"", b"", b"")
EPOCH = "000000000000001-00000000"


def live(broker_name: str) -> BrokerLiveInfo:
    return BrokerLiveInfo(BrokerKey("c", broker_name), 0, "10.0.0.1:1", None, DataVersion(1, 1), None, 1, 120.0)


def removed(broker_name: str, topics: Iterable[str]) -> QueuesChange:
    queues = topics if isinstance(topics, Endless) else dict.fromkeys(topics, QUEUES)
    return QueuesChange(BrokerKey("c", broker_name), queues, None, RemovalReason.GROUP_GONE)


def test_an_entry_counts_removed_brokers_and_has_the_first_reason() -> None:
    b = live("b")
    gone = [LiveChange(b.key, b, None, reason) for reason in (RemovalReason.BROKER_DOWN, RemovalReason.REPLACED)]
    entry = entry_of(EPOCH, Change(Cause("ReportBrokerDown", "caller", "why"), (removed("b", {"t"}), *gone), 7, 1_000))
    assert entry[:6] == (EPOCH, 7, 1_000, "caller", "ReportBrokerDown", "why")
    assert (entry.removed_broker_count, entry.removal_reason) == (2, RemovalReason.BROKER_DOWN.value)
    assert entry.position == (EPOCH, 7)
    other = entry_of(EPOCH, Change(Cause("PutKvConfig"), (KvChange(("n", "k"), None, "v"),), 8, 1_000))
    assert (other.removed_broker_count, other.removal_reason) == (0, 0)


class Endless(Mapping[str, QueueData]):
    """Topics that may be counted. A walk through more than a few of them fails."""

    def __contains__(self, topic: object) -> bool:
        return True

    def __getitem__(self, topic: str) -> QueueData:
        return QUEUES

    def __len__(self) -> int:
        return 100_000

    def __iter__(self) -> Iterator[str]:
        for number in itertools.count():
            assert number < 10, "walks the topics"
            yield f"T{number}"


def test_names_of_a_change_are_told_once_and_topics_up_to_a_number() -> None:
    rows: tuple[Row, ...] = (removed("b", ["t", "u"]), removed("a", ["u"]), removed("b", ["t"]))
    change = Change(Cause("x"), rows)
    assert touched_names(change, 2) == (["b", "a"], ["t", "u"])
    assert touched_names(change, 1) == (["b", "a"], None)
    assert touched_names(Change(Cause("x"), (removed("b", Endless()),)), 5) == (["b"], None)
