"""What the doctor makes of what name servers tell: findings, their order, the exit code, the runbook."""

from __future__ import annotations

import pytest
from namesrv_api.v1 import admin_service_pb2, route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from nsctl.commands.compare import Held
from nsctl.commands.doctor import (
    FORGOTTEN_MILLIS,
    LAG_MILLIS,
    SHOWN_LOSSES,
    Checked,
    check_clock,
    check_entries,
    check_liveness,
    check_status,
    exit_code,
    lacks_writable_queue,
    together,
)
from nsctl.commands.findings import KINDS, Code, Finding, Severity
from nsctl.commands.history import Clock
from nsctl.compare import BrokerKey, Reported
from nsctl.output import seconds
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
        (status(loop_lag_millis=LAG_MILLIS), []),
        (status(loop_lag_millis=LAG_MILLIS + 1), [Code.EVENT_LOOP_HELD_UP]),
        (status(data_dir_problem="No space left on device"), [Code.DATA_DIR_NOT_WRITTEN]),
        (status(replica=pb.ReplicaStatus(leader_connected=True)), []),
        (status(replica=pb.ReplicaStatus(leader="a:1", problem="it is gone")), [Code.LEADER_LOST]),
    ],
)
def test_a_name_servers_status_is_read(told: pb.GetNamesrvStatusResponse, found: list[Code]) -> None:
    assert [finding.code for finding in check_status("ns-a", told)] == found


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
    found = list(check_entries("ns-a", lost, ["10.0.0.1:1", "10.0.0.100:1"]))
    assert [finding.code for finding in found].count(Code.BROKER_CAME_BACK) == 1
    assert found[1].code is Code.BROKER_CAME_BACK
    assert found[-1].what == "2 more brokers left within the hour (2 CHANNEL_CLOSED)"


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
