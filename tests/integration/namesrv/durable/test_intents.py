"""What operators decide, over the wire, through registrations, kills, restarts and full disks."""

from __future__ import annotations

from pathlib import Path

from namesrv_api.v1 import admin_service_pb2 as pb

from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Client, NamesrvProcess
from tests.support.registrations import registration

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
