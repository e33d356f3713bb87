"""What operators decide, over the wire, through registrations, kills, restarts and full disks."""

from __future__ import annotations

import time
from pathlib import Path

import grpc
from namesrv_api.v1 import admin_service_pb2 as pb

from tests.support import failpoints
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.registrations import registration
from tests.support.stored import stored

ADMIN = "/namesrv_api.v1.AdminService"
WIPED, REPORTED = (4, 6), (6, None)
"""Permissions of a topic: the one in force, and the reported one where they differ."""


def register(client: Client) -> None:
    client.registration.RegisterBroker(registration(("TopicTest", "Other")), timeout=TIMEOUT)


def wipe(client: Client, comment: str = "", ends_at_millis: int | None = None) -> None:
    request = pb.WipeWritePermOfBrokerRequest(
        force=True, broker_name="broker-a", comment=comment, ends_at_millis=ends_at_millis
    )
    client.admin.WipeWritePermOfBroker(request, timeout=TIMEOUT)


def add(client: Client) -> None:
    client.admin.AddWritePermOfBroker(pb.AddWritePermOfBrokerRequest(broker_name="broker-a"), timeout=TIMEOUT)


def delete(client: Client, topic: str, *, hold: bool = False) -> pb.DeleteTopicResponse:
    return client.admin.DeleteTopic(pb.DeleteTopicRequest(force=True, topic=topic, hold=hold), timeout=TIMEOUT)


def listed(client: Client) -> list[pb.Intent]:
    return list(client.admin.ListIntents(pb.ListIntentsRequest(), timeout=TIMEOUT).intents)


def awaiting(intents: list[pb.Intent]) -> list[bool]:
    """Takes out of intents whether they wait for a registration."""
    told = [intent.awaits_registration for intent in intents]
    for intent in intents:
        intent.awaits_registration = False
    return told


def perm(client: Client, topic: str = "TopicTest") -> tuple[int, int | None]:
    """Permission in force, and the reported one if the route has it."""
    route = client.route(topic)
    assert route is not None, f"no route for {topic}"
    data = route.queue_datas[0]
    return data.perm, data.reported_perm if data.HasField("reported_perm") else None


def revision(client: Client) -> int:
    return client.snapshot()[0].header.revision


def test_intents_survive_a_kill_and_hold_from_the_first_registration_on(tmp_path: Path) -> None:
    with NamesrvProcess("--data-dir", str(tmp_path)) as process, process.connect() as client:
        register(client)
        wipe(client, "why")
        delete(client, "TopicTest", hold=True)
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
        release = pb.ReleaseTopicHoldRequest(topic="TopicTest")
        assert client.admin.ReleaseTopicHold(release, timeout=TIMEOUT).restored_queue_data_count == 1
        assert perm(client) == WIPED
        add(client)
        assert perm(client) == REPORTED
        assert process.terminate() == 0
    with NamesrvProcess("--data-dir", str(tmp_path)) as process, process.connect() as client:
        assert listed(client) == []
        register(client)
        assert perm(client) == REPORTED


def test_an_intent_ends_by_itself(tmp_path: Path) -> None:
    with NamesrvProcess("--data-dir", str(tmp_path)) as process, process.connect() as client:
        register(client)
        wipe(client, ends_at_millis=time.time_ns() // 1_000_000 + 2_000)
        eventually(lambda: perm(client), lambda shown: shown == REPORTED)
        assert process.wait_for("intent_lifted")["cause"] == "intent ended"
        assert listed(client) == []
        assert stored(tmp_path, "intents") == {}


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
            error = client.failure(f"{ADMIN}/{request.DESCRIPTOR.name.removesuffix('Request')}", request)
            assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "NOT_DURABLE")
            assert str(tmp_path) not in error.message
        assert (perm(client), revision(client), listed(client)) == (WIPED, before, intents)
        process.wait_for("database_refuses_writes")
        assert delete(client, "Other").removed_queue_data_count == 1, "a deletion without hold needs no disk"
        faults.write_text("")
        add(client)
        assert perm(client) == REPORTED
        process.wait_for("database_takes_writes")
