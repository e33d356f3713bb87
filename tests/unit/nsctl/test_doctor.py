"""What name servers tell, and what the doctor makes of it: findings, their words and their order, and differences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from namesrv_api.v1 import admin_service_pb2, route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_api.v1.admin_service_pb2 import Intent
from namesrv_internal.v1.diagnostics_service_pb2 import GetDiagnosticsResponse

from nsctl.commands.compare import differences, disagreements
from nsctl.commands.doctor import (
    CONTEST_SECONDS,
    FORGOTTEN_MILLIS,
    INVOLUNTARY,
    LAG_MILLIS,
    LOSS_SECONDS,
    REFUSED_MILLIS,
    SHOWN_LOSSES,
    check_clock,
    check_contests,
    check_diagnostics,
    check_intents,
    check_liveness,
    check_losses,
    check_status,
    check_topics,
    losses,
    together,
)
from nsctl.findings import Code, Finding, Severity, merged
from nsctl.held import BrokerKey, Clock, Held, Reported, lacks_writable_queue, shown_value
from tests.support.fakes.observed_name_server import BROKER, drain, seen
from tests.support.fakes.observed_name_server import live as fleet_live

NOW = 1_000_000.0
"""Of the name server's clock, which is far behind ours."""
HEALTHY = pb.GetNamesrvStatusResponse(warm=True, version="1", live_broker_count=1, topic_count=1)


def status(**fields: object) -> pb.GetNamesrvStatusResponse:
    made = pb.GetNamesrvStatusResponse()
    made.CopyFrom(HEALTHY)
    made.MergeFrom(pb.GetNamesrvStatusResponse(**fields))  # type: ignore[arg-type]
    return made


def live(addr: str = "a:1", broker_id: int = 0, **fields: object) -> route_data_pb2.BrokerLiveInfo:
    made = fleet_live(BrokerKey("c", "broker-a", broker_id, addr), heard_at=NOW)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def drained(cluster: str = "c", **fields: Any) -> Intent:
    return Intent(kind=Intent.KIND_WIPE_WRITE_PERM, cluster_name=cluster, broker_name="b", **fields)


LATE = int(NOW * 1000) - 61_000


@pytest.mark.parametrize(
    ("found", "codes"),
    [
        (check_status(HEALTHY), []),
        (check_status(status(guard_tripped=True, unconfirmed_broker_count=3)), [Code.GUARD_HOLDS_BROKERS]),
        (check_status(status(unconfirmed_broker_count=3)), [Code.BROKERS_UNCONFIRMED]),
        (check_diagnostics(GetDiagnosticsResponse(loop_lag_millis=LAG_MILLIS)), []),
        (check_diagnostics(GetDiagnosticsResponse(loop_lag_millis=LAG_MILLIS + 1)), [Code.EVENT_LOOP_HELD_UP]),
        (check_diagnostics(GetDiagnosticsResponse(refused_ago_millis=0)), [Code.REGISTRATIONS_REFUSED]),
        (check_diagnostics(GetDiagnosticsResponse(skipped_ago_millis=0)), [Code.TOPICS_SKIPPED]),
        (check_diagnostics(GetDiagnosticsResponse(refused_ago_millis=REFUSED_MILLIS)), []),
        (check_diagnostics(GetDiagnosticsResponse(skipped_ago_millis=REFUSED_MILLIS)), []),
        (check_liveness([live()], NOW), []),
        (check_liveness([live(last_update_timestamp_millis=LATE, doubt_ends_at_millis=LATE)], NOW), []),
        (check_liveness([live(has_channel=False)], NOW), [Code.BROKER_WITHOUT_CHANNEL]),
        (check_liveness([live(broker_id=1)], NOW), [Code.GROUP_WITHOUT_MASTER]),
        (check_clock(Clock(100.0, 99.5, 102.0)), []),  # the call took two seconds
        (check_clock(Clock(100.0, 102.5, 102.0)), []),
        (check_intents([Intent(since_millis=1)], FORGOTTEN_MILLIS + 2), [Code.INTENT_FORGOTTEN]),
        (check_intents([Intent(since_millis=1)], FORGOTTEN_MILLIS + 1), [Code.INTENT_IN_FORCE]),
        (check_intents([Intent(since_millis=1, ends_at_millis=9)], FORGOTTEN_MILLIS + 2), [Code.INTENT_IN_FORCE]),
        (seen().findings, [Code.NO_BROKERS]),
        (seen(warm=False).findings, [Code.WARMING]),
    ],
)
def test_a_fault_is_found_and_nothing_else(found: Iterable[Finding], codes: list[Code]) -> None:
    assert [finding.code for finding in found] == codes


DISK_FULL = check_status(status(data_dir_problem="disk is full"))
SILENT = check_liveness([live(last_update_timestamp_millis=LATE)], NOW)
LOCAL = check_liveness([live("127.0.0.1:1"), live("10.0.0.2:1", broker_name="broker-b")], NOW)
DRAINED = check_intents([drained(since_millis=1_000, caller="ipv4:10.0.0.1:4000", comment="new disks")], 2_000)
OTHERS_CANNOT_CALL = "registered an address that other machines cannot call"
IS_DRAINED = "planned: b is drained since 1970-01-01T00:00:01.000Z by 10.0.0.1, with no end (new disks)"


@pytest.mark.parametrize(
    ("found", "what", "do"),
    [
        (DISK_FULL, "cannot write its data directory: disk is full", "make room"),
        (SILENT, "broker-a (a:1) was last seen 61 s ago", "`nsctl drain broker-a --cluster c` keeps producers away"),
        (LOCAL, f"1 broker {OTHERS_CANNOT_CALL}: broker-a (127.0.0.1:1)", "set the address that clients call"),
        (DRAINED, IS_DRAINED, "`nsctl undrain b --cluster c` lifts it"),
        (check_clock(Clock(100.0, 98.5, 102.0)), "its clock is 1.5 s behind ours", "set the clocks"),
        (check_clock(Clock(100.0, 103.5, 102.0)), "its clock is 1.5 s ahead of ours", "set the clocks"),
    ],
)
def test_a_finding_says_what_is_wrong_and_what_to_do(found: Iterable[Finding], what: str, do: str) -> None:
    (finding,) = found
    assert finding.what == what
    assert do in finding.do


def route(perm: int, *, write_queues: int = 4, broker_id: int = 0) -> route_data_pb2.TopicRouteData:
    queues = route_data_pb2.QueueData(
        broker_name="b", cluster_name="c", read_queue_nums=4, write_queue_nums=write_queues, perm=perm
    )
    addrs = [route_data_pb2.BrokerAddr(broker_id=broker_id, broker_addr="a:1")]
    group = route_data_pb2.BrokerData(cluster_name="c", broker_name="b", broker_addrs=addrs)
    return route_data_pb2.TopicRouteData(queue_datas=[queues], broker_datas=[group])


@pytest.mark.parametrize(
    ("told", "lacks"),
    [
        (route(6), False),
        (route(2), False),
        (route(4), True),
        (route(6, write_queues=0), True),
        (route(6, broker_id=1), True),
        (route(1), False),  # rmq_sys_SYNC_BROKER_MEMBER_... of RocketMQ 5: for nobody to read or write
    ],
)
def test_a_topic_lacks_a_writable_queue_if_somebody_is_meant_to_have_one(
    told: route_data_pb2.TopicRouteData, lacks: bool
) -> None:
    assert lacks_writable_queue(told) is lacks


def told_of_topics(topics: Mapping[str, route_data_pb2.TopicRouteData], *intents: Intent) -> list[tuple[Code, str]]:
    return [(finding.code, finding.what) for finding in check_topics(topics, {"c", "b"}, intents)]


def test_only_topics_of_applications_are_missed_when_nobody_can_write_them() -> None:
    own = ["%DLQ%g", "%RETRY%g", "BenchmarkTest", "RMQ_SYS_ROCKSDB_OFFSET_TOPIC", "SCHEDULE_TOPIC_XXXX", "b", "c"]
    assert told_of_topics(dict.fromkeys([*own, "c_REPLY_TOPIC"], route(4))) == []
    assert told_of_topics(dict.fromkeys([*own, "orders"], route(4))) == [
        (Code.TOPICS_NOT_WRITABLE, "1 topic has no writable queue with a master: orders")
    ]


def test_topics_that_a_drain_keeps_from_being_written_are_planned_and_said_with_the_end() -> None:
    wiped = route(4)
    wiped.queue_datas[0].reported_perm = 6
    topics = {"orders": wiped, "payments": wiped, "b": wiped}
    while_drained = "2 topics have no writable queue during a drain"
    for intent, end in ((drained(), "with no end"), (drained(ends_at_millis=1_000), "until 1970-01-01T00:00:01.000Z")):
        found = told_of_topics(topics, intent)
        assert found == [(Code.TOPICS_DRAINED, f"{while_drained} (b {end}): orders, payments")]
        assert Code.TOPICS_DRAINED.severity is Severity.WARNING
    without_a_master = route(4, broker_id=1)
    without_a_master.queue_datas[0].reported_perm = 6
    for told, intents in ((wiped, []), (wiped, [drained("other")]), (without_a_master, [drained()]), (route(4), [])):
        assert [code for code, _ in told_of_topics({"orders": told}, *intents)] == [Code.TOPICS_NOT_WRITABLE]


def entry(addr: str, age_seconds: float = 0.0, reason: str = "CHANNEL_CLOSED") -> admin_service_pb2.AuditEntry:
    return admin_service_pb2.AuditEntry(
        applied_at_millis=int((NOW - age_seconds) * 1000),
        summary=f"broker-{addr} ({addr}:1, id 0) of c lost its channel: group gone; cluster c gone",
        removed_broker_count=1,
        removal_reason=f"REMOVAL_REASON_{reason}",
    )


def told_of_losses(
    entries: list[admin_service_pb2.AuditEntry], *lives: route_data_pb2.BrokerLiveInfo
) -> list[tuple[Code, str]]:
    return [(one.code, one.what) for one in check_losses(losses(entries, INVOLUNTARY), lives, NOW)]


def test_a_broker_that_was_lost_is_told_once_with_the_newest_time_and_reason() -> None:
    entries = [entry("a", 1), entry("a", 60), entry("b", LOSS_SECONDS + 1), entry("c", 0, "UNREGISTERED")]
    said = "broker-a (a:1, id 0) of c left at 1970-01-12T13:46:39.000Z: CHANNEL_CLOSED"
    assert told_of_losses(entries) == [(Code.BROKER_LOST, said)]


def test_a_broker_is_back_also_at_another_address_and_is_told_for_ten_minutes() -> None:
    back = live("elsewhere:1", broker_name="broker-a")
    assert [code for code, _ in told_of_losses([entry("a")], back)] == [Code.BROKER_CAME_BACK]
    assert told_of_losses([entry("a", 601)], back) == []
    assert told_of_losses([entry("a")], live("a:1", unconfirmed=True)) == [], "the guard keeps it"


def test_a_summary_with_an_id_that_no_broker_has_names_none() -> None:
    odd = entry("a")
    odd.summary = odd.summary.replace("id 0", "id " + "9" * 5_000)
    assert told_of_losses([odd]) == []


def test_losses_beyond_a_number_are_counted() -> None:
    names = [f"a{number}" for number in range(SHOWN_LOSSES + 2)]
    back = [live(broker_name=f"broker-{name}") for name in names]
    assert len(told_of_losses(list(map(entry, names)), *back)) == SHOWN_LOSSES
    found = told_of_losses(list(map(entry, names)))
    assert len(found) == SHOWN_LOSSES + 1
    assert found[-1] == (Code.BROKER_LOST, "2 more brokers left within the hour (2 CHANNEL_CLOSED)")


@pytest.mark.parametrize("registers_itself", [True, False])
def test_advice_about_a_broker_names_an_agent_only_if_it_has_one(registers_itself: bool) -> None:
    late = live("a:1", topic_by_topic=registers_itself, last_update_timestamp_millis=int(NOW * 1000) - 61_000)
    back = live("b:1", broker_name="broker-b", topic_by_topic=registers_itself)
    found = [*check_liveness([late], NOW), *check_losses(losses([entry("b")], INVOLUNTARY), [back], NOW)]
    assert [finding.code for finding in found] == [Code.BROKER_SILENT, Code.BROKER_CAME_BACK]
    assert ["agent" in finding.do for finding in found] == [not registers_itself] * 2


def replaced(*addrs: str, age_seconds: float = 0.0) -> list[admin_service_pb2.AuditEntry]:
    """The journal of a broker id that these addresses lost, the newest first."""
    entries = [entry("a", age_seconds + number, "REPLACED") for number in range(len(addrs))]
    for one, addr in zip(entries, addrs, strict=True):
        one.summary = f"b ({addr}, id 0) of c was replaced; b (other:1, id 0) of c registered: 1 broker in the group"
    return entries


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (replaced("a:1", "b:1", "a:1"), ["id 0 of b of c is claimed in turn by a:1, b:1"]),
        (replaced("a:1"), []),
        (replaced("b:1", "a:1"), []),
        (replaced("a:1", "b:1", "a:1", age_seconds=CONTEST_SECONDS), []),
    ],
)
def test_an_address_that_takes_its_id_back_is_found_and_a_move_is_not(
    entries: list[admin_service_pb2.AuditEntry], said: list[str]
) -> None:
    found = list(check_contests(losses(entries, {route_data_pb2.REMOVAL_REASON_REPLACED}), NOW))
    assert [finding.what for finding in found] == said
    assert {finding.code for finding in found} <= {Code.BROKER_ID_CONTESTED}


def test_a_fact_that_several_name_servers_say_is_told_once_with_all_of_them() -> None:
    one, other = (
        Finding(Code.BROKER_LOST, f"left at 2026-01-01T00:00:0{number}.000Z", "", subject="broker-a")
        for number in range(2)
    )
    info = Finding(Code.INTENT_IN_FORCE, "x", "")
    found = merged([("ns-a", info), ("ns-a", one), ("ns-b", other), ("", info)])
    assert [(finding.code, finding.what, finding.at) for finding in found] == [
        (Code.BROKER_LOST, one.what, ("ns-a", "ns-b")),
        (Code.INTENT_IN_FORCE, "x", ("ns-a",)),
    ]


def test_name_servers_are_compared_with_one_another() -> None:
    one, other = seen(fleet_live()).held, seen(name="ns-b", version="2").held
    assert one is not None
    assert other is not None
    assert [finding.code for finding in together([one, one], ())] == [Code.SAME_NAME_TWICE]
    found = {finding.code: finding.what for finding in together([one, other], ["broker"])}
    assert found.keys() == {Code.VERSIONS_DIFFER, Code.NAME_SERVERS_DISAGREE}
    assert found[Code.NAME_SERVERS_DISAGREE] == "name servers differ in brokers or topics"


# What differs between what name servers hold.


def test_what_is_not_in_all_or_not_the_same_differs_and_the_rest_does_not() -> None:
    assert differences([]) == differences([{"a": 1}]) == differences([{"a": 1}, {"a": 1}]) == []
    found = differences([{"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 9}, {"a": 1, "b": 2}])
    assert found == [("b", ("2", "9", "2")), ("c", ("3", "not there", "not there"))]


def test_a_name_server_that_says_nothing_is_not_compared() -> None:
    assert differences([{"a": 1}, None]) == []
    assert differences([{"a": 1}, None, {}]) == [("a", ("1", None, "not there"))]


def test_content_is_compared_whole_and_shown_in_short() -> None:
    one, other = ({BROKER: Reported(0, b"same" + end)} for end in (b"1", b"2"))
    [difference] = differences([one, other])
    assert difference.said == ("version 0, content 73616d65",) * 2


def test_long_values_are_shown_in_short_and_differ_where_only_their_ends_do() -> None:
    assert shown_value("broker-a:4") == "broker-a:4"
    one, other = shown_value("x" * 100), shown_value("x" * 99 + "y")
    assert one != other
    assert one.startswith(f"{'x' * 30}... (100 characters, SHA-256 ")


def told(**fields: object) -> Held:
    found = seen(live()).held
    assert found is not None
    return replace(found, **{"settings": {("orderMessageEnable",): "false"}, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("other", "kinds"),
    [
        (told(kv={("ORDER_TOPIC_CONFIG", "orders"): "broker-a:4"}), ["kv"]),
        (told(settings={("orderMessageEnable",): "true"}), ["setting"]),
        (told(kv=None, settings=None), []),
    ],
)
def test_kv_configuration_and_settings_are_compared_where_they_may_be_read(other: Held, kinds: list[str]) -> None:
    assert list(disagreements([told(), other])) == kinds


def test_drains_that_end_at_another_time_differ() -> None:
    ending = drain()
    ending.ends_at_millis = 1_000
    one, other = (seen(live(), intents=(intent,)).held for intent in (drain(), ending))
    [difference] = disagreements([one, other])["intent"]
    assert difference.said == ("in force", "until 1970-01-01T00:00:01.000Z")
