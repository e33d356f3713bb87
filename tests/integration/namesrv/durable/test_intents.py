"""What operators decide, over the wire, through registrations, kills, restarts and full disks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message
from namesrv_api.v1 import admin_service_pb2 as pb

from groundwork.grpc_errors import RichError
from tests.support import failpoints
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.registrations import registration
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


def test_an_intent_ends_by_itself(admin: Client, durable: NamesrvProcess, data_dir: Path) -> None:
    wipe(admin, ends_at_millis=time.time_ns() // 1_000_000 + 2_000)
    eventually(lambda: perm(admin), lambda shown: shown == REPORTED)
    assert durable.wait_for("intent_lifted")["cause"] == "intent ended"
    assert listed(admin) == []
    assert stored(data_dir, "intents") == {}


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
