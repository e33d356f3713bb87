"""A change as people read it: who, what and how much, in one line that is never long."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, get_args

import pytest

from namesrv.core.changes import (
    Cause,
    Change,
    ClusterChange,
    FilterServersChange,
    GroupChange,
    IntentChange,
    KvChange,
    LiveChange,
    QueuesChange,
    Row,
    SettingChange,
)
from namesrv.core.journal import MAX_SUMMARY_LENGTH, entry_of, summary, touched_names
from namesrv.core.model import (
    BrokerData,
    BrokerKey,
    BrokerLiveInfo,
    DataVersion,
    HoldKey,
    Intent,
    IntentKey,
    IntentKind,
    LiveKey,
    Member,
    QueueData,
    RemovalReason,
    WriteRule,
)

GROUP = BrokerKey("DefaultCluster", "broker-a")
ADDR = "10.0.0.1:10911"
QUEUES = QueueData(GROUP, 4, 4, 6, 0, b"", ())
MASTER = BrokerLiveInfo(GROUP, 0, ADDR, None, DataVersion(1, 1), None, 1, 120.0)
LABELS = (("rack", "r1"),)
DATA = BrokerData(GROUP, (Member(0, ADDR),))
WHO = "broker-a (10.0.0.1:10911, id 0) of DefaultCluster"


def change(*rows: Row) -> Change:
    return Change(Cause("RegisterBroker", "caller"), rows, 7, 1_700_000_000_000)


def put(*topics: str, broker: BrokerKey = GROUP, write: WriteRule = WriteRule.REPORTED) -> QueuesChange:
    return QueuesChange(broker, None, dict.fromkeys(topics, QUEUES), write=write)


def put_on(groups: int) -> tuple[Row, ...]:
    return tuple(put("T", broker=BrokerKey("c", str(number))) for number in range(groups))


def removed(*topics: str, reason: RemovalReason = RemovalReason.GROUP_GONE) -> QueuesChange:
    return QueuesChange(GROUP, dict.fromkeys(topics, QUEUES), None, reason)


def kv(namespace: str, key: str, value: str | None) -> KvChange:
    return KvChange((namespace, key), None, value)


def setting(value: str) -> SettingChange:
    return SettingChange("order_message_enable", None, value)


def registered(live: BrokerLiveInfo) -> LiveChange:
    return LiveChange(live.key, None, live)


def left(live: BrokerLiveInfo, reason: RemovalReason) -> LiveChange:
    return LiveChange(live.key, live, None, reason)


def decided(intent: Intent) -> IntentChange:
    return IntentChange(intent.key, None, intent)


def lifted(intent: Intent) -> IntentChange:
    return IntentChange(intent.key, intent, None)


def intent(kind: IntentKind, key: IntentKey) -> Intent:
    return Intent(kind, key, "caller", 1_700_000_000_000)


WIPE = intent(IntentKind.WIPE_WRITE_PERM, GROUP)
HOLD = intent(IntentKind.TOPIC_HOLD, HoldKey("TopicA", None))

TOLD: list[tuple[tuple[Row, ...], str]] = [
    ((), "nothing"),
    (
        (
            ClusterChange("DefaultCluster", None, frozenset({"broker-a"})),
            put("TopicA"),
            GroupChange(GROUP, None, DATA),
            registered(MASTER),
        ),
        f"{WHO} registered: 1 topic put (TopicA); new group; new cluster DefaultCluster",
    ),
    (
        (registered(MASTER), put("TopicC", "TopicA", "TopicB")),
        f"{WHO} registered: 3 topics put (TopicA, TopicB, TopicC)",
    ),
    (
        (
            left(MASTER, RemovalReason.EXPIRED),
            GroupChange(GROUP, DATA, None, RemovalReason.GROUP_GONE),
            removed("TopicA"),
        ),
        f"{WHO} expired: group gone; 1 topic lost its queues on it (TopicA)",
    ),
    (
        (removed("TopicA", reason=RemovalReason.DELETED_BY_OPERATOR),),
        "broker-a of DefaultCluster: 1 topic lost its queues on it, deleted by an operator (TopicA)",
    ),
    (
        (removed("TopicA", reason=RemovalReason.NOT_IN_REGISTRATION),),
        "broker-a of DefaultCluster: 1 topic lost its queues on it, not in its registration any more (TopicA)",
    ),
    ((removed("TopicB", "TopicA"),), "broker-a of DefaultCluster: 2 topics lost their queues on it (TopicA, TopicB)"),
    (
        (decided(WIPE), put("TopicA", write=WriteRule.WIPED)),
        ("broker-a of DefaultCluster: drain decided; 1 topic put without write permission (TopicA)"),
    ),
    (
        (lifted(WIPE), decided(intent(IntentKind.ADD_WRITE_PERM, GROUP)), put("TopicA", write=WriteRule.ADDED)),
        (
            "broker-a of DefaultCluster: drain lifted; grant of write permission decided; "
            "1 topic put with write permission added (TopicA)"
        ),
    ),
    ((decided(HOLD),), "hold of topic TopicA in all clusters decided"),
    ((lifted(intent(IntentKind.TOPIC_HOLD, HoldKey("TopicA", "other"))),), "hold of topic TopicA in other lifted"),
    (
        (
            GroupChange(
                GROUP,
                DATA,
                replace(DATA.with_member(Member(1, "10.0.0.2:1")), zone_name="z", enable_acting_master=True),
            ),
        ),
        "broker-a of DefaultCluster: 2 brokers in the group now; zone is z now; acting master allowed now",
    ),
    (
        (GroupChange(GROUP, replace(DATA, zone_name="z", enable_acting_master=True), DATA),),
        "broker-a of DefaultCluster: zone is none now; acting master not allowed now",
    ),
    (
        (GroupChange(GROUP, DATA, replace(DATA, members=(Member(0, ADDR, labels=(*LABELS, ("row", "7"))),))),),
        "broker-a of DefaultCluster: labels are rack=r1 (id 0), row=7 (id 0) now",
    ),
    (
        (
            registered(replace(MASTER, unconfirmed=True)),
            GroupChange(
                GROUP, DATA, replace(DATA.with_member(Member(0, ADDR, unconfirmed=True)), write=WriteRule.WIPED)
            ),
        ),
        f"{WHO} is kept unconfirmed: 1 of the group unconfirmed now; write permission taken away now",
    ),
    (
        (FilterServersChange(LiveKey("DefaultCluster", ADDR), None, ("10.0.0.3:1",), broker=GROUP),),
        "broker-a of DefaultCluster: 1 filter server now",
    ),
    ((ClusterChange("DefaultCluster", frozenset(), None, RemovalReason.GROUP_GONE),), "cluster DefaultCluster gone"),
    ((kv("ns", "key", "broker-a:8"),), "KV configuration: 'ns' 'key' put: 'broke'... (10 characters)"),
    ((kv("ns", "two\nlines", None),), r"KV configuration: 'ns' 'two\nlines' removed"),
    ((setting("false"),), "setting order_message_enable put: 'fa'... (5 characters)"),
    (
        (put(*(f"Topic{number:05}" for number in range(10_000))),),
        "broker-a of DefaultCluster: 10,000 topics put (Topic00000, Topic00001, Topic00002, and 9,997 more)",
    ),
    (
        (put("%RETRY%g", "TBW102", GROUP.broker_name, GROUP.cluster_name, "zebra"),),
        "broker-a of DefaultCluster: 5 topics put (zebra, %RETRY%g, DefaultCluster, and 2 more)",
    ),
    (put_on(1_000), "0 of c: 1 topic put (T); 1 of c: 1 topic put (T); 2 of c: 1 topic put (T); and 997 more changes"),
    (put_on(4), "0 of c: 1 topic put (T); 1 of c: 1 topic put (T); 2 of c: 1 topic put (T); and 1 more change"),
]


@pytest.mark.parametrize(("rows", "line"), TOLD, ids=[line for _, line in TOLD])
def test_a_summary_says_who_and_what(rows: tuple[Row, ...], line: str) -> None:
    assert summary(change(*rows)) == line


def test_every_kind_of_row_reason_and_intent_can_be_told() -> None:
    told = [row for rows, _ in TOLD for row in rows]
    assert {type(row) for row in told} == set(get_args(Row))
    lines = {summary(change(left(MASTER, reason))) for reason in RemovalReason}
    assert len(lines) == len(RemovalReason)
    assert len({summary(change(put("T", write=rule))) for rule in WriteRule}) == len(WriteRule)
    for kind in IntentKind:
        key = HoldKey("T", None) if kind is IntentKind.TOPIC_HOLD else GROUP
        assert summary(change(decided(intent(kind, key)))) != summary(change(lifted(intent(kind, key))))


def test_every_part_of_a_group_that_can_change_is_told() -> None:
    (member,) = DATA.members
    members: dict[str, Any] = {"broker_id": 1, "broker_addr": "10.0.0.2:1", "unconfirmed": True, "labels": LABELS}
    assert members.keys() == set(Member._fields)
    others: list[tuple[str, Any]] = [
        *(("members", (member._replace(**{name: value}),)) for name, value in members.items()),
        ("zone_name", "z"),
        ("enable_acting_master", True),
        ("write", WriteRule.ADDED),
    ]
    assert {name for name, _ in others} == {field.name for field in fields(BrokerData) if field.compare} - {"key"}
    for name, value in others:
        assert summary(change(GroupChange(GROUP, DATA, replace(DATA, **{name: value})))).endswith(" now"), name


def test_the_longest_names_do_not_make_a_summary_longer_than_its_limit() -> None:
    topics = [f"%RETRY%{number}".ljust(255, "t") for number in range(9)]
    rows = [put(*topics, broker=BrokerKey("c" * 127, f"{number}" * 127)) for number in range(9)]
    line = summary(change(*rows))
    assert len(line) == MAX_SUMMARY_LENGTH
    assert line.endswith("...")


@pytest.mark.parametrize("value", ["s", "se", "secret", "a very long secret " * 1_000])
@pytest.mark.parametrize("row", [lambda value: kv("", "", value), setting], ids=["KV", "setting"])
def test_a_value_is_never_shown_in_full(row: Callable[[str], Row], value: str) -> None:
    line = summary(change(row(value)))
    assert f"'{value}'" not in line
    assert len(line) < 100


def test_a_summary_is_one_line_whatever_names_and_values_hold() -> None:
    line = summary(change(kv("a\nb", "c\r\nd", "e\u2028f\x85" * 9)))
    assert line.splitlines() == [line]


def found_by(*rows: Row) -> tuple[list[str], list[str]]:
    brokers, topics = touched_names(change(*rows), 10)
    assert topics is not None
    return brokers, topics


def test_a_change_is_about_the_topics_whose_queues_hold_or_order_it_changes() -> None:
    about_topic_a: list[Row] = [
        put("TopicA", "TopicB"),
        removed("TopicA", "TopicB"),
        decided(HOLD),
        lifted(HOLD),
        kv("ORDER_TOPIC_CONFIG", "TopicA", "broker-a:8"),
    ]
    for row in about_topic_a:
        assert "TopicA" in found_by(setting("v"), row)[1], row
    others: list[Row] = [
        put("TopicB"),
        kv("other", "TopicA", "v"),
        decided(WIPE),
        registered(MASTER),
        GroupChange(GROUP, DATA, DATA),
        ClusterChange("TopicA", None, frozenset({"TopicA"})),
    ]
    assert "TopicA" not in found_by(*others)[1]


def test_a_change_is_about_the_groups_that_its_rows_name_in_any_cluster() -> None:
    about_broker_a: list[Row] = [
        put("T"),
        removed("T"),
        GroupChange(GROUP, None, DATA),
        GroupChange(GROUP, DATA, None, RemovalReason.EXPIRED),
        registered(MASTER),
        left(MASTER, RemovalReason.EXPIRED),
        FilterServersChange(LiveKey("DefaultCluster", ADDR), ("10.0.0.3:1",), None, broker=GROUP),
        decided(WIPE),
        lifted(WIPE),
        put("T", broker=BrokerKey("another", "broker-a")),
    ]
    for row in about_broker_a:
        assert found_by(setting("v"), row)[0] == ["broker-a"], row
    others: list[Row] = [
        put("broker-a", broker=BrokerKey("broker-a", "b")),
        ClusterChange("DefaultCluster", None, frozenset({"broker-a", "broker-b"})),
        decided(HOLD),
        kv("ns", "broker-a", "v"),
    ]
    assert "broker-a" not in found_by(*others)[0]


# Entries of the journal, and the names that find them. Searches are tested with the table.


def test_an_entry_counts_removed_brokers_and_has_the_first_reason() -> None:
    gone = [left(MASTER, reason) for reason in (RemovalReason.BROKER_DOWN, RemovalReason.REPLACED)]
    entry = entry_of("epoch", Change(Cause("ReportBrokerDown", "caller", "why"), (removed("t"), *gone), 7, 1_000))
    assert entry[:6] == ("epoch", 7, 1_000, "caller", "ReportBrokerDown", "why")
    assert (entry.removed_broker_count, entry.removal_reason) == (2, RemovalReason.BROKER_DOWN.value)
    assert entry.position == ("epoch", 7)
    other = entry_of("epoch", change(kv("n", "k", "v")))
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
    several = change(removed("t", "u"), put("u", broker=BrokerKey("c", "a")), removed("t"))
    assert touched_names(several, 2) == (["broker-a", "a"], ["t", "u"])
    assert touched_names(several, 1) == (["broker-a", "a"], None)
    assert touched_names(change(QueuesChange(GROUP, None, Endless())), 5) == (["broker-a"], None)
