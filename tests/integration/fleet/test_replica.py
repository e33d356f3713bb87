"""Read-only copies as real processes: what they answer, what they refuse, and how they take the loss of a leader."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from namesrv_api.v1 import admin_service_pb2, registration_service_pb2, route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_internal.v1.replica_service_pb2 import FollowTablesRequest

from groundwork.grpc_errors import RichError
from namesrv.server.listener import ADMIN_SERVICE, REGISTRATION_SERVICE, REPLICA_SERVICE
from namesrv.server.replica_calls import LEADERS_CALLS
from tests.integration.fleet.replicas import (
    NEVER_SCANS,
    TIMEOUT,
    health,
    live_brokers,
    pair,
    reaches,
    replica_of,
    rows,
    status,
    watching,
)
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.registrations import identity, register_group
from tests.support.secured.fleet import TOKENS, Place

ROUTE, ADMIN = "/namesrv_api.v1.RouteService", "/namesrv_api.v1.AdminService"


def answers(client: Client) -> list[Message]:
    """What the calls that read say, without the name of who says it."""
    routes, admin = client.routes, client.admin
    found: list[Any] = [
        routes.GetTopicRoute(pb.GetTopicRouteRequest(topic="T1"), timeout=TIMEOUT),
        routes.BatchGetTopicRoutes(pb.BatchGetTopicRoutesRequest(topics=["T2", "none"]), timeout=TIMEOUT),
        routes.GetBrokerClusterInfo(pb.GetBrokerClusterInfoRequest(), timeout=TIMEOUT),
        routes.ListTopics(pb.ListTopicsRequest(), timeout=TIMEOUT),
        routes.ListTopics(pb.ListTopicsRequest(cluster_name="DefaultCluster"), timeout=TIMEOUT),
        routes.ListTopics(pb.ListTopicsRequest(filter=pb.TOPIC_FILTER_SYSTEM), timeout=TIMEOUT),
        routes.GetRouteDigest(pb.GetRouteDigestRequest(), timeout=TIMEOUT),
        admin.ListIntents(admin_service_pb2.ListIntentsRequest(), timeout=TIMEOUT),
        admin.ListKvConfigs(admin_service_pb2.ListKvConfigsRequest(), timeout=TIMEOUT),
        admin.ListAuditEntries(admin_service_pb2.ListAuditEntriesRequest(page_size=3), timeout=TIMEOUT),
    ]
    for answer in found:
        answer.header.namesrv_name = ""
    return found


def test_a_copy_answers_as_its_leader_does(tmp_path: Path) -> None:
    with pair("--data-dir", str(tmp_path)) as (leader, replica, _):
        register_group(leader, "T1", "T2")
        register_group(leader, "T2", "T3", port=20911)
        admin = leader.admin
        kv = admin_service_pb2.PutKvConfigRequest(namespace="ORDER_TOPIC_CONFIG", key="T1", value="broker-10911:4")
        admin.PutKvConfig(kv, timeout=TIMEOUT)
        wipe = admin_service_pb2.WipeWritePermOfBrokerRequest(force=True, broker_name="broker-20911", comment="why")
        admin.WipeWritePermOfBroker(wipe, timeout=TIMEOUT)
        config = admin_service_pb2.UpdateNamesrvConfigRequest(values={"orderMessageEnable": "true"})
        admin.UpdateNamesrvConfig(config, timeout=TIMEOUT)
        hold = admin_service_pb2.DeleteTopicRequest(force=True, topic="T3", hold=True)
        admin.DeleteTopic(hold, timeout=TIMEOUT)
        expected = answers(leader)
        eventually(lambda: answers(replica), lambda seen: seen == expected)
        assert replica.route("T1").order_topic_conf == "broker-10911:4"  # type: ignore[union-attr]
        assert rows(replica) == rows(leader)
        assert live_brokers(replica) == live_brokers(leader)
        seen, wanted = status(replica), status(leader)
        assert seen.header.epoch == wanted.header.epoch
        assert (seen.live_broker_count, seen.topic_count, seen.warm) == (2, 2, True)
        assert (seen.replica.leader_connected, seen.replica.copies, seen.replica.problem) == (True, 1, "")
        assert seen.replica.leader_name == wanted.header.namesrv_name
        assert not wanted.HasField("replica")


def test_what_changes_something_is_refused_and_the_error_names_the_leader() -> None:
    with pair() as (leader, replica, process):
        register_group(leader, "T1")
        reaches(replica, 1)
        registrations = REGISTRATION_SERVICE
        calls = [method for method in registrations.methods if not method.server_streaming]
        calls += LEADERS_CALLS
        for method in calls:
            error = replica.failure(f"/{method.containing_service.full_name}/{method.name}", b"")
            assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "READ_ONLY_REPLICA"), method
            assert error.metadata == {"leader": str(process.endpoint)}
        error = replica.stream_failure("/namesrv_api.v1.RegistrationService/OpenChannel", b"")
        assert error.reason == "READ_ONLY_REPLICA"
        assert health(replica, registrations.full_name) == "NOT_SERVING"
        assert health(replica, REPLICA_SERVICE.full_name) == "SERVING"
        assert rows(replica) == rows(leader)


def test_every_call_of_an_operator_either_reads_or_is_the_leaders() -> None:
    reads = ("Get", "List", "Explain")
    assert [method for method in ADMIN_SERVICE.methods if not method.name.startswith(reads)] == LEADERS_CALLS


def test_a_watch_at_a_copy_is_told_of_each_change_and_why_brokers_left() -> None:
    with pair() as (leader, replica, _):
        register_group(leader, "T1")
        reaches(replica, 1)
        with watching(replica, "T1") as stream:
            assert next(stream).changes[0].route.broker_datas[0].broker_name == "broker-10911"
            channel = leader.open_channel()
            register_group(leader, "T1", port=20911, channel_id=channel.id)
            assert len(next(stream).changes[0].route.broker_datas) == 2
            channel.close()
            gone = next(stream).changes[0]
            assert [(row.broker_name, row.reason) for row in gone.removals if row.broker_addr] == [
                ("broker-20911", route_data_pb2.REMOVAL_REASON_CHANNEL_CLOSED)
            ]
            broker = identity("127.0.0.1:10911", name="broker-10911")
            request = registration_service_pb2.UnregisterBrokerRequest(broker=broker)
            leader.registration.UnregisterBroker(request, timeout=TIMEOUT)
            last = next(stream).changes[0]
            assert not last.HasField("route")
            assert route_data_pb2.REMOVAL_REASON_UNREGISTERED in {row.reason for row in last.removals}


def test_a_watch_begun_at_the_leader_goes_on_at_the_copy() -> None:
    with pair() as (leader, replica, _):
        register_group(leader, "T1")
        with watching(leader, "T1") as stream:
            header = next(stream).header
        reaches(replica, 1)
        register_group(leader, "T1", port=20911)
        with watching(replica, "T1", after=header) as stream:
            message = next(message for message in stream if message.changes)
            assert len(message.changes[0].route.broker_datas) == 2
            assert message.header.epoch == header.epoch


def test_before_the_first_copy_nothing_is_known_and_nothing_said_to_be_absent() -> None:
    with NamesrvProcess(*NEVER_SCANS) as leader:
        endpoint = leader.endpoint
        assert leader.terminate() == 0
        with NamesrvProcess("--follow", str(endpoint)) as replica, replica.connect() as client:
            error = client.failure(f"{ROUTE}/GetTopicRoute", pb.GetTopicRouteRequest(topic="T1"))
            assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "REGISTRY_WARMING")
            error = client.failure(f"{ADMIN}/ListIntents", b"")
            assert error.reason == "REGISTRY_WARMING"
            assert (health(client), health(client, "")) == ("NOT_SERVING", "SERVING")
            seen = eventually(lambda: status(client), lambda seen: "UNAVAILABLE" in seen.replica.problem)
            assert (seen.warm, seen.replica.leader_connected, seen.replica.copies) == (False, False, 0)
            assert not seen.replica.HasField("behind_millis")
            with NamesrvProcess(*NEVER_SCANS, port=endpoint.port) as again, again.connect() as to_leader:
                register_group(to_leader, "T1")
                eventually(lambda: health(client), lambda seen: seen == "SERVING")
                eventually(lambda: client.addrs("T1"))


def test_a_copy_goes_on_without_its_leader_and_begins_anew_when_that_restarts(tmp_path: Path) -> None:
    durable = (*NEVER_SCANS, "--data-dir", str(tmp_path))
    with NamesrvProcess(*durable) as leader, leader.connect() as client:
        register_group(client, "T1", "T2")
        stale = ("--follow-stale-millis", "4000")
        with replica_of(leader, arguments=stale) as replica, replica.connect() as to_replica:
            reaches(to_replica, 1)
            with watching(to_replica, "T1") as stream:
                first = next(stream)
                leader.kill()
                lost = eventually(lambda: status(to_replica), lambda seen: not seen.replica.leader_connected)
                assert "UNAVAILABLE" in lost.replica.problem
                assert to_replica.addrs("T1") == {0: "127.0.0.1:10911"}
                eventually(lambda: health(to_replica), lambda seen: seen == "NOT_SERVING")
                assert status(to_replica).replica.behind_millis >= 4000
                assert to_replica.addrs("T1") == {0: "127.0.0.1:10911"}
                with NamesrvProcess(*durable, port=leader.endpoint.port) as again, again.connect() as to_leader:
                    register_group(to_leader, "T1", "T3")
                    eventually(lambda: health(to_replica), lambda seen: seen == "SERVING")
                    with pytest.raises(grpc.RpcError) as ended:
                        list(stream)
                    assert RichError.of(ended.value).reason == "EPOCH_CHANGED"
                    reaches(to_replica, 1)
                    seen = eventually(lambda: status(to_replica), lambda seen: seen.replica.leader_connected)
                    assert seen.header.epoch > first.header.epoch
                    assert seen.replica.copies == 2
                    eventually(lambda: rows(to_replica) == rows(to_leader))


def test_a_leader_that_has_lost_everything_does_not_take_the_copy_with_it_before_it_is_warm() -> None:
    with NamesrvProcess(*NEVER_SCANS) as leader, leader.connect() as client:
        register_group(client, "T1")
        with replica_of(leader) as replica, replica.connect() as to_replica:
            reaches(to_replica, 1)
            before = status(to_replica).header.epoch
            followed = len(eventually(lambda: replica.events("leader_followed")))
            leader.kill()
            eventually(lambda: not status(to_replica).replica.leader_connected)
            cold = (*NEVER_SCANS, "--warm-up-millis", "3000")
            with NamesrvProcess(*cold, port=leader.endpoint.port) as again:
                eventually(lambda: len(replica.events("leader_followed")), lambda times: times > followed)
                addrs = to_replica.addrs("T1")
                if status(to_replica).header.epoch == before:  # the leader was not warm yet
                    assert addrs == {0: "127.0.0.1:10911"}
                again.wait_for("namesrv_warm")
                eventually(lambda: status(to_replica).header.epoch, lambda seen: seen > before)
                assert to_replica.route("T1") is None


def test_a_leader_that_is_silent_and_comes_back_is_followed_on_from_where_it_was() -> None:
    with pair() as (leader, replica, process):
        register_group(leader, "T1")
        reaches(replica, 1)
        with watching(replica, "T1") as stream:
            first = next(stream)
            process.signal(signal.SIGSTOP)
            lost = eventually(lambda: status(replica), lambda seen: not seen.replica.leader_connected)
            assert lost.replica.problem
            assert replica.addrs("T1")
            process.signal(signal.SIGCONT)
            register_group(leader, "T1", port=20911)
            changed = next(message for message in stream if message.changes)
            assert changed.header.epoch == first.header.epoch
            assert len(changed.changes[0].route.broker_datas) == 2
        seen = eventually(lambda: status(replica), lambda seen: seen.replica.leader_connected)
        assert seen.replica.copies == 1


def test_the_next_leader_is_followed_when_one_is_lost() -> None:
    with NamesrvProcess(*NEVER_SCANS) as first, NamesrvProcess(*NEVER_SCANS) as second:
        for leader in (first, second):
            with leader.connect() as client:
                register_group(client, "T1")
        with replica_of(first, second) as replica, replica.connect() as client:
            eventually(lambda: health(client), lambda seen: seen == "SERVING")
            assert status(client).replica.leader == str(first.endpoint)
            first.kill()
            seen = eventually(lambda: status(client), lambda seen: seen.replica.copies == 2)
            assert (seen.replica.leader, seen.replica.leader_connected) == (str(second.endpoint), True)
            assert client.addrs("T1") == {0: "127.0.0.1:10911"}


@pytest.mark.parametrize(("token", "problem"), [("admin", ""), ("client", "NOT_PERMITTED"), (None, "UNAUTHENTICATED")])
def test_with_permits_a_copy_shows_who_it_is_and_needs_to_administer(
    place: Place, tmp_path: Path, token: str | None, problem: str
) -> None:
    file = tmp_path / "follow.token"
    file.write_text(TOKENS[token] if token else "unknown")
    flags = ("--follow-tls-ca", str(place.authority.path), "--follow-token-file", str(file))
    with (
        NamesrvProcess(*place.flags("token")) as leader,
        replica_of(leader, arguments=flags) as replica,
        replica.connect() as client,
    ):
        if not problem:
            eventually(lambda: health(client), lambda seen: seen == "SERVING")
        else:
            eventually(lambda: status(client).replica.problem, lambda seen: problem in seen)


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        ({}, "INVALID_FIELD"),
        ({"epoch": "another"}, "INVALID_FIELD"),
        ({"epoch": "another", "revision": 1}, "EPOCH_CHANGED"),
    ],
)
def test_a_copy_resumes_only_after_a_point_of_its_leaders_epoch(point: dict[str, Any], reason: str) -> None:
    request = FollowTablesRequest(resume_after=pb.ResumePoint(**point))
    with NamesrvProcess() as leader, leader.connect() as client:
        assert client.stream_failure("/namesrv_internal.v1.ReplicaService/FollowTables", request).reason == reason
