"""What the doctor makes of what name servers tell: findings, their order, the exit code, the runbook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
import pytest
from namesrv_api.v1 import admin_service_pb2, route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_api.v1.admin_service_pb2 import Intent
from namesrv_internal.v1.diagnostics_service_pb2 import GetDiagnosticsResponse

from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import CallError, RichError
from nsctl.commands.compare import Held
from nsctl.commands.doctor import (
    FORGOTTEN_MILLIS,
    LAG_MILLIS,
    SHOWN_DOUBTED,
    SHOWN_LOSSES,
    Checked,
    check_clock,
    check_diagnostics,
    check_entries,
    check_liveness,
    check_silence,
    check_status,
    check_topics,
    exit_code,
    together,
)
from nsctl.commands.findings import KINDS, Code, Finding, Severity
from nsctl.commands.history import Clock
from nsctl.compare import BrokerKey, Reported
from nsctl.output import seconds
from nsctl.writable import lacks_writable_queue
from tests.unit.deploy.files import ROOT, headings

NOW = 1_000_000.0
"""Of the name server's clock, which is far behind ours."""
HEALTHY = pb.GetNamesrvStatusResponse(warm=True, version="1", live_broker_count=1, topic_count=1)


def status(**fields: object) -> pb.GetNamesrvStatusResponse:
    made = pb.GetNamesrvStatusResponse()
    made.CopyFrom(HEALTHY)
    made.MergeFrom(pb.GetNamesrvStatusResponse(**fields))  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize(
    ("told", "found"),
    [
        (HEALTHY, []),
        (pb.GetNamesrvStatusResponse(), [Code.WARMING]),
        (status(guard_tripped=True, unconfirmed_broker_count=3), [Code.GUARD_HOLDS_BROKERS]),
        (status(unconfirmed_broker_count=3), [Code.BROKERS_UNCONFIRMED]),
        (status(data_dir_problem="No space left on device"), [Code.DATA_DIR_NOT_WRITTEN]),
    ],
)
def test_a_name_servers_status_is_read(told: pb.GetNamesrvStatusResponse, found: list[Code]) -> None:
    assert [finding.code for finding in check_status("ns-a", told)] == found


def test_a_name_server_that_hangs_is_told_from_one_that_cannot_be_reached() -> None:
    nobody = Endpoint("127.0.0.1", 1)
    hangs = CallError(nobody, RichError(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))
    finding = check_silence(nobody, hangs, None, 5.0)
    assert (finding.code, finding.what) == (Code.UNREACHABLE, "did not answer within 5 s")
    assert "hangs" in finding.do
    refused = CallError(nobody, RichError(grpc.StatusCode.UNAVAILABLE, "connection refused"))
    assert check_silence(nobody, refused, None, 5.0).what == "UNAVAILABLE: connection refused"


@pytest.mark.parametrize(("millis", "found"), [(LAG_MILLIS, []), (LAG_MILLIS + 1, [Code.EVENT_LOOP_HELD_UP])])
def test_a_long_delay_of_the_event_loop_is_found(millis: float, found: list[Code]) -> None:
    told = GetDiagnosticsResponse(loop_lag_millis=millis)
    assert [finding.code for finding in check_diagnostics("ns-a", told)] == found


def test_a_data_directory_that_is_not_written_is_told_with_the_disks_words() -> None:
    (finding,) = check_status("ns-a", status(data_dir_problem="database or disk is full"))
    assert finding.what == "cannot write its data directory: database or disk is full"
    assert "until then it may refuse changes by operators" in finding.do


def live(addr: str = "a:1", broker_id: int = 0, **fields: object) -> route_data_pb2.BrokerLiveInfo:
    given: dict[str, object] = {
        "cluster_name": "c",
        "broker_name": "broker-a",
        "has_channel": True,
        "heartbeat_timeout_millis": 120_000,
        "last_update_timestamp_millis": int(NOW * 1000),
    }
    made = route_data_pb2.BrokerLiveInfo(broker_addr=addr, broker_id=broker_id)
    made.MergeFrom(route_data_pb2.BrokerLiveInfo(**(given | fields)))  # type: ignore[arg-type]
    return made


def test_brokers_that_are_late_or_watched_by_nobody_are_found_and_groups_without_a_master() -> None:
    assert list(check_liveness("ns-a", [live()], NOW)) == []
    late = int(NOW * 1000) - 61_000
    for broker, code in (
        (live(last_update_timestamp_millis=late), Code.BROKER_SILENT),
        (live(has_channel=False), Code.BROKER_WITHOUT_CHANNEL),
        (live(broker_id=1), Code.GROUP_WITHOUT_MASTER),
    ):
        assert [finding.code for finding in check_liveness("ns-a", [broker], NOW)] == [code]


def doubted(number: int, seconds_left: int, **fields: object) -> route_data_pb2.BrokerLiveInfo:
    ends = int(NOW * 1000) + seconds_left * 1000
    return live(f"10.0.0.{number}:1", 0, broker_name=f"broker-{number}", doubt_ends_at_millis=ends, **fields)


def test_brokers_that_are_doubted_are_one_warning_with_names_and_the_time_that_is_left() -> None:
    silent = int(NOW * 1000) - 130_000
    (finding,) = check_liveness("ns-a", [live(), doubted(1, 43, last_update_timestamp_millis=silent)], NOW)
    assert (finding.code, finding.code.severity) == (Code.BROKERS_DOUBTED, Severity.WARNING)
    said = "1 broker is doubted: broker-1 (10.0.0.1:1); it leaves in 43 s unless it registers again"
    assert finding.what == said
    (finding,) = check_liveness("ns-a", [doubted(number, 40 + number) for number in range(SHOWN_DOUBTED + 2)], NOW)
    assert finding.what == (
        "5 brokers are doubted: broker-0 (10.0.0.0:1), broker-1 (10.0.0.1:1), broker-2 (10.0.0.2:1), ...; "
        "the last leaves in 44 s unless it registers again"
    )


def test_brokers_whose_agents_restart_are_planned_and_no_warning() -> None:
    handed_over = doubted(1, 25, doubt_reason=route_data_pb2.DOUBT_REASON_HANDED_OVER)
    planned, other = check_liveness("ns-a", [handed_over, doubted(2, 43)], NOW)
    assert (planned.code, planned.code.severity) == (Code.BROKERS_HANDED_OVER, Severity.INFO)
    assert planned.what == (
        "1 broker is handed over for a restart of the agent, which is planned: broker-1 (10.0.0.1:1); "
        "it leaves in 25 s unless it registers again"
    )
    assert (other.code, "broker-2" in other.what, "broker-1" in other.what) == (Code.BROKERS_DOUBTED, True, False)


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        (98.5, ["its clock is 1.5 s behind ours"]),
        (99.5, []),
        (102.5, []),  # the call took two seconds
        (103.5, ["its clock is 1.5 s ahead of ours"]),
    ],
)
def test_a_clock_that_is_another_is_told_unless_the_call_took_so_long(theirs: float, said: list[str]) -> None:
    assert [finding.what for finding in check_clock("ns-a", Clock(100.0, theirs, 102.0))] == said


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


def drained(cluster: str = "c", **fields: Any) -> Intent:
    return Intent(kind=Intent.KIND_WIPE_WRITE_PERM, cluster_name=cluster, broker_name="b", **fields)


def told_of_topics(topics: Mapping[str, route_data_pb2.TopicRouteData], *intents: Intent) -> list[tuple[Code, str]]:
    routes = [pb.NamedTopicRoute(topic=topic, route=told) for topic, told in topics.items()]
    return [(finding.code, finding.what) for finding in check_topics("ns-a", routes, {"c", "b"}, intents)]


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
    while_drained = "planned: 2 topics have no writable queue while a broker is drained"
    for intent, end in ((drained(), "with no end"), (drained(ends_at_millis=1_000), "until 1970-01-01T00:00:01.000Z")):
        found = told_of_topics(topics, intent)
        assert found == [(Code.TOPICS_DRAINED, f"{while_drained} (b {end}): orders, payments")]
        assert Code.TOPICS_DRAINED.severity is Severity.INFO
    without_a_master = route(4, broker_id=1)
    without_a_master.queue_datas[0].reported_perm = 6
    for told, intents in ((wiped, []), (wiped, [drained("other")]), (without_a_master, [drained()]), (route(4), [])):
        assert [code for code, _ in told_of_topics({"orders": told}, *intents)] == [Code.TOPICS_NOT_WRITABLE]


def entry(number: int) -> admin_service_pb2.AuditEntry:
    return admin_service_pb2.AuditEntry(
        applied_at_millis=1_000 + number,
        cause="channel end",
        summary=f"b-{number} (10.0.0.{number}:1, id 0) of c lost its channel",
        removed_broker_count=1,
        removal_reason=route_data_pb2.REMOVAL_REASON_CHANNEL_CLOSED,
    )


def test_losses_are_told_one_by_one_up_to_a_number_and_those_that_are_back_apart() -> None:
    lost = [entry(number) for number in range(SHOWN_LOSSES + 2)]
    found = list(check_entries("ns-a", lost, [live("10.0.0.1:1"), live("10.0.0.100:1")]))
    assert [finding.code for finding in found].count(Code.BROKER_CAME_BACK) == 1
    assert found[1].code is Code.BROKER_CAME_BACK
    assert found[-1].what == "2 more brokers left within the hour (2 CHANNEL_CLOSED)"


@pytest.mark.parametrize("registers_itself", [True, False])
def test_advice_about_a_broker_names_an_agent_only_if_it_has_one(registers_itself: bool) -> None:
    late = live("10.0.0.1:1", topic_by_topic=registers_itself, last_update_timestamp_millis=int(NOW * 1000) - 61_000)
    found = [*check_liveness("ns-a", [late], NOW), *check_entries("ns-a", [entry(1)], [late])]
    assert [finding.code for finding in found] == [Code.BROKER_SILENT, Code.BROKER_CAME_BACK]
    assert ["agent" in finding.do for finding in found] == [not registers_itself] * 2
    (lost,) = check_entries("ns-a", [entry(1)], [])
    assert lost.do == "see its machine, its own log, and the log of its agent if it has one"


def test_name_servers_are_compared_with_one_another() -> None:
    one = Checked(HEALTHY, [], Held({}, {}))
    other = Checked(status(version="2"), [], Held({BrokerKey("c", "b", 0, "a:1"): Reported(1, b"")}, None))
    assert [finding.code for finding in together([one, one])] == [Code.SAME_NAME_TWICE]
    assert {finding.code for finding in together([one, other])} >= {Code.VERSIONS_DIFFER, Code.NAME_SERVERS_DISAGREE}


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ((), 0),
        ((Code.INTENT_IN_FORCE,), 0),
        ((Code.INTENT_IN_FORCE, Code.BROKER_LOST), 5),
        ((Code.BROKER_LOST, Code.UNREACHABLE), 1),
    ],
)
def test_the_exit_code_is_that_of_the_worst(codes: tuple[Code, ...], code: int) -> None:
    assert exit_code([Finding(one, "ns-a", "", "") for one in codes]) == code


def test_each_kind_of_finding_has_a_severity_a_command_and_a_paragraph_of_the_runbook() -> None:
    assert KINDS.keys() == set(Code)
    page = headings(ROOT / "docs/runbook.md")
    for code in Code:
        severity, command = KINDS[code]
        assert severity in Severity
        assert command.startswith("nsctl ")
        assert len(page[code.name.lower()]) > 80, code


def test_only_an_intent_without_an_end_can_be_forgotten() -> None:
    assert seconds("1d") * 1_000 == FORGOTTEN_MILLIS
