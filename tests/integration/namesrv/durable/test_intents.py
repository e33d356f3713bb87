"""What operators decide, over the wire, through registrations, kills, restarts and full disks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message
from namesrv_api.v1 import admin_service_pb2 as pb
from namesrv_api.v1 import registration_service_pb2

from groundwork.grpc_errors import RichError
from tests.support import failpoints
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.registrations import identity, registration
from tests.support.stored import stored

TIMEOUT = 20.0
ADMIN = "/namesrv_api.v1.AdminService"
TOPICS = ("TopicTest", "Other")


@pytest.fixture
def admin(durable: NamesrvProcess) -> Iterator[Client]:
    """A connection to it, with a broker group of two topics registered."""
    with durable.connect() as connected:
        register(connected)
        yield connected


def register(client: Client, counter: int = 1, topics: tuple[str, ...] = TOPICS) -> None:
    client.registration.RegisterBroker(registration(topics, counter=counter), timeout=TIMEOUT)


def unregister(client: Client) -> None:
    request = registration_service_pb2.UnregisterBrokerRequest(broker=identity())
    client.registration.UnregisterBroker(request, timeout=TIMEOUT)


def wipe(
    client: Client, comment: str = "", ends_at_millis: int | None = None, *, validate_only: bool = False
) -> pb.WipeWritePermOfBrokerResponse:
    request = pb.WipeWritePermOfBrokerRequest(
        force=True, broker_name="broker-a", comment=comment, ends_at_millis=ends_at_millis, validate_only=validate_only
    )
    return client.admin.WipeWritePermOfBroker(request, timeout=TIMEOUT)


def add(client: Client, *, validate_only: bool = False) -> pb.AddWritePermOfBrokerResponse:
    request = pb.AddWritePermOfBrokerRequest(broker_name="broker-a", validate_only=validate_only)
    return client.admin.AddWritePermOfBroker(request, timeout=TIMEOUT)


def delete(
    client: Client, topic: str = "TopicTest", *, hold: bool = False, validate_only: bool = False
) -> pb.DeleteTopicResponse:
    request = pb.DeleteTopicRequest(force=True, topic=topic, hold=hold, validate_only=validate_only)
    return client.admin.DeleteTopic(request, timeout=TIMEOUT)


def release(client: Client, topic: str = "TopicTest", *, validate_only: bool = False) -> pb.ReleaseTopicHoldResponse:
    request = pb.ReleaseTopicHoldRequest(topic=topic, validate_only=validate_only)
    return client.admin.ReleaseTopicHold(request, timeout=TIMEOUT)


def listed(client: Client) -> list[pb.Intent]:
    return list(client.admin.ListIntents(pb.ListIntentsRequest(), timeout=TIMEOUT).intents)


def awaiting(intents: list[pb.Intent]) -> list[bool]:
    """Takes out of intents whether they wait for a registration."""
    told = [intent.awaits_registration for intent in intents]
    for intent in intents:
        intent.awaits_registration = False
    return told


def failure(client: Client, request: Message) -> RichError:
    call = request.DESCRIPTOR.name.removesuffix("Request")
    return client.failure(f"{ADMIN}/{call}", request)


def perm(client: Client, topic: str = "TopicTest") -> tuple[int, int | None]:
    """Permission in force, and the reported one if the route has it."""
    route = client.route(topic)
    assert route is not None, f"no route for {topic}"
    data = route.queue_datas[0]
    return data.perm, data.reported_perm if data.HasField("reported_perm") else None


def revision(client: Client) -> int:
    return client.snapshot()[0].header.revision


WIPED = (4, 6)
REPORTED = (6, None)


def test_a_wipe_shows_beside_what_is_reported_until_it_is_restored(admin: Client, durable: NamesrvProcess) -> None:
    before = time.time_ns() // 1_000_000
    answer = wipe(admin, "disk is being changed")
    assert (answer.wipe_topic_count, answer.blast_radius.topics_losing_last_writable_queue) == (2, 2)
    assert perm(admin) == perm(admin, "Other") == WIPED
    row = admin.snapshot()[1].chunk.topics[0].queue_datas[0]
    assert (row.perm, row.reported_perm) == WIPED
    (intent,) = listed(admin)
    assert (intent.kind, intent.broker_name, intent.cluster_name, intent.comment) == (
        pb.Intent.KIND_WIPE_WRITE_PERM,
        "broker-a",
        "DefaultCluster",
        "disk is being changed",
    )
    assert "127.0.0.1" in intent.caller
    assert intent.since_millis >= before
    assert durable.wait_for("intent_decided")["caller"] == intent.caller
    assert add(admin).add_topic_count == 2
    assert (perm(admin), listed(admin)) == (REPORTED, [])
    durable.wait_for("intent_lifted")


def test_a_wipe_survives_heartbeats_registrations_and_that_the_group_leaves(admin: Client) -> None:
    wipe(admin)
    heartbeat = registration_service_pb2.BrokerHeartbeatRequest(broker=identity())
    admin.registration.BrokerHeartbeat(heartbeat, timeout=TIMEOUT)
    register(admin)
    assert perm(admin) == WIPED
    register(admin, counter=2, topics=(*TOPICS, "New"))
    assert perm(admin) == perm(admin, "New") == WIPED
    unregister(admin)
    assert admin.route() is None
    register(admin, counter=3)
    assert perm(admin) == WIPED
    add(admin)
    assert perm(admin) == REPORTED


def test_intents_survive_a_kill_and_hold_from_the_first_registration_on(tmp_path: Path) -> None:
    with NamesrvProcess("--data-dir", str(tmp_path)) as process, process.connect() as client:
        register(client)
        wipe(client, "why")
        delete(client, hold=True)
        before = listed(client)
        process.kill()
    with NamesrvProcess("--data-dir", str(tmp_path)) as process, process.connect() as client:
        after = listed(client)
        assert (awaiting(before), awaiting(after)) == ([False, False], [True, True])
        assert after == before
        register(client)
        assert not any(awaiting(listed(client)))
        assert perm(client, "Other") == WIPED
        assert client.route() is None
        assert release(client).restored_queue_data_count == 1
        assert perm(client) == WIPED
        add(client)
        assert perm(client) == REPORTED
        assert process.terminate() == 0
    with NamesrvProcess("--data-dir", str(tmp_path)) as process, process.connect() as client:
        assert listed(client) == []
        register(client)
        assert perm(client) == REPORTED


def test_adding_on_a_group_that_nobody_wiped_is_an_intent_of_its_own(admin: Client) -> None:
    read_only = registration(TOPICS, counter=2)
    for config in read_only.topic_configs:
        config.perm = 4
    admin.registration.RegisterBroker(read_only, timeout=TIMEOUT)
    add(admin)
    assert perm(admin) == (6, 4)
    wipe(admin)
    assert perm(admin) == (4, None)
    add(admin)
    assert (perm(admin), listed(admin)) == ((4, None), [])


def test_a_deleted_topic_comes_back_with_another_version_and_a_held_one_does_not(admin: Client) -> None:
    assert delete(admin).removed_queue_data_count == 1
    register(admin)
    assert admin.route() is None
    register(admin, counter=2)
    assert perm(admin) == REPORTED
    answer = delete(admin, hold=True)
    assert (answer.removed_queue_data_count, list(answer.blast_radius.sample_topics)) == (1, ["TopicTest"])
    register(admin, counter=3)
    assert admin.route() is None
    assert release(admin).restored_queue_data_count == 1
    assert perm(admin) == REPORTED


def test_an_intent_ends_by_itself(admin: Client, durable: NamesrvProcess, data_dir: Path) -> None:
    wipe(admin, ends_at_millis=time.time_ns() // 1_000_000 + 2_000)
    eventually(lambda: perm(admin), lambda shown: shown == REPORTED)
    assert durable.wait_for("intent_lifted")["cause"] == "intent ended"
    assert listed(admin) == []
    assert stored(data_dir, "intents") == {}


def test_validations_tell_what_would_happen_and_change_nothing(admin: Client, data_dir: Path) -> None:
    delete(admin, "Other", hold=True)
    before, content = revision(admin), stored(data_dir, "intents")
    assert wipe(admin, validate_only=True).blast_radius.topics_losing_last_writable_queue == 1
    assert add(admin, validate_only=True).add_topic_count == 1
    for hold in (False, True):
        assert delete(admin, hold=hold, validate_only=True).blast_radius.topics_vanishing == 1
    assert release(admin, "Other", validate_only=True).restored_queue_data_count == 1
    assert (revision(admin), stored(data_dir, "intents")) == (before, content)
    assert perm(admin) == REPORTED
    assert admin.route("Other") is None


def test_a_full_disk_refuses_intents_and_nothing_else(tmp_path: Path) -> None:
    (faults := tmp_path / "faults").touch()
    flags, environment = ("--data-dir", str(tmp_path / "data")), failpoints.environment(faults)
    with NamesrvProcess(*flags, environment=environment) as process, process.connect() as client:
        register(client)
        wipe(client)
        before, intents = revision(client), listed(client)
        faults.write_text("* write namesrv.db-wal = ENOSPC")
        for request in (
            pb.AddWritePermOfBrokerRequest(broker_name="broker-a"),
            pb.DeleteTopicRequest(force=True, topic="TopicTest", hold=True),
        ):
            error = failure(client, request)
            assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "NOT_DURABLE")
            assert str(tmp_path) not in error.message
        assert (perm(client), revision(client), listed(client)) == (WIPED, before, intents)
        process.wait_for("database_refuses_writes")
        assert delete(client, "Other").removed_queue_data_count == 1, "a deletion without hold needs no disk"
        faults.write_text("")
        add(client)
        assert perm(client) == REPORTED
        process.wait_for("database_takes_writes")


def test_without_a_data_directory_intents_are_refused_and_validations_are_answered(client: Client) -> None:
    register(client)
    before = revision(client)
    for request in (
        pb.WipeWritePermOfBrokerRequest(force=True, broker_name="broker-a"),
        pb.AddWritePermOfBrokerRequest(broker_name="broker-a"),
        pb.DeleteTopicRequest(force=True, topic="TopicTest", hold=True),
    ):
        error = failure(client, request)
        assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NO_DATA_DIR")
    assert wipe(client, validate_only=True).wipe_topic_count == 2
    assert (revision(client), perm(client), listed(client)) == (before, REPORTED, [])
    assert delete(client).removed_queue_data_count == 1


NOT_THERE: dict[str, list[Message]] = {
    "BROKER_NOT_REGISTERED": [
        pb.WipeWritePermOfBrokerRequest(force=True, broker_name="nobody"),
        pb.AddWritePermOfBrokerRequest(broker_name="nobody"),
    ],
    "TOPIC_NOT_FOUND": [
        pb.DeleteTopicRequest(force=True, topic="NoSuchTopic"),
        pb.DeleteTopicRequest(force=True, topic="TopicTest", cluster_name="nowhere"),
    ],
    "INTENT_NOT_FOUND": [
        pb.ReleaseTopicHoldRequest(topic="TopicTest"),
        pb.ConfirmBrokerLossRequest(),
        pb.ConfirmBrokerLossRequest(broker_name="broker-a"),
    ],
}


def test_what_is_not_there_is_not_found_and_never_a_success(admin: Client) -> None:
    before = revision(admin)
    for reason, requests in NOT_THERE.items():
        for request in requests:
            error = failure(admin, request)
            assert (error.code, error.reason) == (grpc.StatusCode.NOT_FOUND, reason), request
    assert revision(admin) == before


def test_a_comment_is_taken_up_to_its_limit_and_an_end_must_be_in_the_future(admin: Client) -> None:
    wipe(admin, "ö" * 500)
    for field, request in (
        ("comment", pb.WipeWritePermOfBrokerRequest(force=True, broker_name="broker-a", comment="x" * 501)),
        ("ends_at_millis", pb.WipeWritePermOfBrokerRequest(force=True, broker_name="broker-a", ends_at_millis=1_000)),
    ):
        error = failure(admin, request)
        assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
        assert [violation.field for violation in error.violations] == [field]
    assert [intent.comment for intent in listed(admin)] == ["ö" * 500]


def test_a_group_of_two_clusters_must_be_told_apart(admin: Client) -> None:
    other = identity("127.0.0.1:20911", cluster="OtherCluster")
    admin.registration.RegisterBroker(registration(broker=other), timeout=TIMEOUT)
    error = failure(admin, pb.WipeWritePermOfBrokerRequest(force=True, broker_name="broker-a"))
    assert error.reason == "INVALID_FIELD"
    assert "DefaultCluster, OtherCluster" in error.violations[0].description
    request = pb.WipeWritePermOfBrokerRequest(force=True, broker_name="broker-a", cluster_name="OtherCluster")
    assert admin.admin.WipeWritePermOfBroker(request, timeout=TIMEOUT).wipe_topic_count == 1
    route = admin.route()
    assert route is not None
    assert {data.cluster_name: data.perm for data in route.queue_datas} == {"DefaultCluster": 6, "OtherCluster": 4}
