"""A name server that ends, is killed or fails: what the next one on its data directory has, and what it cannot know."""

from __future__ import annotations

import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from namesrv_api.v1 import admin_service_pb2, route_service_pb2
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1.route_service_pb2_grpc import RouteServiceStub

from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Client, NamesrvProcess, OpenedChannel, eventually
from tests.support.registrations import identity, registration

CONFIG = Path(__file__).resolve().parents[4] / "examples" / "service_config.json"
LOOKUP = "/namesrv_api.v1.RouteService/GetTopicRoute"
B = identity("127.0.0.1:20911", name="broker-b")
NEVER_BY_TIME = ("--warm-up-millis", "600000")
OFTEN = ("--snapshot-interval-millis", "10", "--log-level", "debug")


class Site:
    """A data directory, and the name servers that use it one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "routes.snapshot"

    def start(self, *arguments: str) -> NamesrvProcess:
        return NamesrvProcess("--data-dir", str(self.folder), *arguments)

    def leave_behind(self, *registrations: pb.RegisterBrokerRequest) -> None:
        """Has a name server be killed whose snapshot file holds these brokers."""
        with self.start(*OFTEN) as process, process.connect() as client:
            for request in registrations:
                client.registration.RegisterBroker(request, timeout=TIMEOUT)
                revision = status(client).header.revision
                eventually(lambda: written(process), lambda reached, wanted=revision: reached >= wanted)  # type: ignore[misc]
            process.kill()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def written(process: NamesrvProcess) -> int:
    """Revision of the last snapshot file that a process is known to have written."""
    return max((int(line["revision"]) for line in process.events("snapshot_written")), default=0)


def status(client: Client) -> route_service_pb2.GetNamesrvStatusResponse:
    return client.routes.GetNamesrvStatus(route_service_pb2.GetNamesrvStatusRequest(), timeout=TIMEOUT)


def health(client: Client, service: str = "namesrv_api.v1.RouteService") -> str:
    request = health_pb2.HealthCheckRequest(service=service)
    answer = HealthStub(client.connection).Check(request, timeout=TIMEOUT)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def unconfirmed(client: Client, topic: str = "TopicTest") -> list[list[int]]:
    """The unconfirmed broker ids of each group of a route."""
    route = client.route(topic)
    assert route is not None, f"no route for {topic}"
    return [list(group.unconfirmed_broker_ids) for group in route.broker_datas]


def unknown(client: Client, topic: str = "Unknown") -> tuple[grpc.StatusCode, str, float | None]:
    """What a lookup of a topic without a route ends with."""
    error = client.failure(LOOKUP, route_service_pb2.GetTopicRouteRequest(topic=topic))
    return error.code, error.reason, error.retry_after_seconds


WARMING = (grpc.StatusCode.UNAVAILABLE, "REGISTRY_WARMING", 0.2)
NOT_FOUND = (grpc.StatusCode.NOT_FOUND, "TOPIC_NOT_FOUND", None)


def test_a_killed_name_server_serves_its_old_routes_until_brokers_are_back(site: Site) -> None:
    site.leave_behind(registration(), registration(broker=B, topics=["TopicTest", "Other"]))
    with site.start(*NEVER_BY_TIME) as process, process.connect() as client:
        loaded = process.wait_for("snapshot_loaded")
        assert (loaded["brokers"], loaded["topics"]) == (2, 2)
        assert unconfirmed(client) == [[0], [0]]
        assert status(client).header.revision == 0
        assert (status(client).warm, status(client).unconfirmed_broker_count) == (False, 2)

        assert unknown(client) == WARMING
        batch = client.routes.BatchGetTopicRoutes(
            route_service_pb2.BatchGetTopicRoutesRequest(topics=["Unknown", "Other"]), timeout=TIMEOUT
        )
        assert [route.topic for route in batch.routes] == ["Other"]
        assert (list(batch.topics_warming), list(batch.topics_not_found)) == (["Unknown"], [])
        assert health(client) == "SERVING", "clients that check health would fail, and the routes are here"

        client.registration.RegisterBroker(registration(), timeout=TIMEOUT)
        assert unconfirmed(client) == [[], [0]]
        assert unknown(client) == WARMING
        client.registration.RegisterBroker(registration(broker=B, topics=["TopicTest", "Other"]), timeout=TIMEOUT)
        assert unknown(client) == WARMING, "a broker that is newer than the file may yet come back"
        eventually(lambda: unknown(client), lambda seen: seen == NOT_FOUND)
        assert (status(client).warm, status(client).unconfirmed_broker_count) == (True, 0)


def test_a_name_server_without_a_file_serves_lookups_once_it_is_warm() -> None:
    with NamesrvProcess("--warm-up-millis", "3000") as process, process.connect() as client:
        client.registration.RegisterBroker(registration(), timeout=TIMEOUT)
        watch = HealthStub(client.connection).Watch(
            health_pb2.HealthCheckRequest(service="namesrv_api.v1.RouteService"), timeout=TIMEOUT
        )
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert {health(client, f"namesrv_api.v1.{name}Service") for name in ("Registration", "Admin")} == {"SERVING"}
        assert (health(client, ""), unknown(client)) == ("SERVING", WARMING)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        assert unknown(client) == NOT_FOUND


def test_after_a_crash_of_all_clients_that_check_health_get_routes_at_once(tmp_path: Path) -> None:
    sites = [Site(tmp_path / name) for name in ("one", "two")]
    for site in sites:
        site.folder.mkdir()
        site.leave_behind(registration(), registration(broker=B))
    with sites[0].start(*NEVER_BY_TIME) as one, sites[1].start(*NEVER_BY_TIME) as two:
        for process in (one, two):
            with process.connect() as client:
                client.registration.RegisterBroker(registration(), timeout=TIMEOUT)
        options = [("grpc.service_config", CONFIG.read_text(encoding="utf-8"))]
        with grpc.insecure_channel(f"ipv4:{one.endpoint},{two.endpoint}", options) as connections:
            routes, request = RouteServiceStub(connections), route_service_pb2.GetTopicRouteRequest(topic="TopicTest")
            epochs = {routes.GetTopicRoute(request).header.epoch for _ in range(20)}
        assert epochs <= {process.wait_for("namesrv_started")["epoch"] for process in (one, two)}
        for process in (one, two):
            assert not process.events("namesrv_warm"), "the broker that stays away is still waited for"


def test_a_shutdown_writes_the_file_although_nothing_else_does(site: Site) -> None:
    with site.start("--snapshot-interval-millis", "0") as process, process.connect() as client:
        channel = client.open_channel()
        client.registration.RegisterBroker(registration(channel_id=channel.id), timeout=TIMEOUT)
        assert not site.file.exists()
        assert process.terminate() == 0
    with site.start(*NEVER_BY_TIME) as process, process.connect() as client:
        assert unconfirmed(client) == [[0]], "the channels that the shutdown ended have removed nobody"


WIPED, REPORTED = (4, 6), (6, None)
"""Permissions of a topic: the one in force, and the reported one where they differ."""


def listed(client: Client) -> list[admin_service_pb2.Intent]:
    return list(client.admin.ListIntents(admin_service_pb2.ListIntentsRequest(), timeout=TIMEOUT).intents)


def awaiting(intents: list[admin_service_pb2.Intent]) -> list[bool]:
    """Takes out of intents whether they wait for a registration."""
    told = [intent.awaits_registration for intent in intents]
    for intent in intents:
        intent.awaits_registration = False
    return told


def perm(client: Client, topic: str) -> tuple[int, int | None]:
    """Permission in force, and the reported one if the route has it."""
    route = client.route(topic)
    assert route is not None, f"no route for {topic}"
    data = route.queue_datas[0]
    return data.perm, data.reported_perm if data.HasField("reported_perm") else None


def test_intents_survive_a_kill_and_hold_from_the_first_registration_on(site: Site) -> None:
    both = registration(("TopicTest", "Other"))
    with site.start() as process, process.connect() as client:
        client.registration.RegisterBroker(both, timeout=TIMEOUT)
        wipe = admin_service_pb2.WipeWritePermOfBrokerRequest(force=True, broker_name="broker-a", comment="why")
        client.admin.WipeWritePermOfBroker(wipe, timeout=TIMEOUT)
        hold = admin_service_pb2.DeleteTopicRequest(force=True, topic="TopicTest", hold=True)
        client.admin.DeleteTopic(hold, timeout=TIMEOUT)
        before = listed(client)
        process.kill()
    with site.start() as process, process.connect() as client:
        after = listed(client)
        assert (awaiting(before), awaiting(after)) == ([False, False], [True, True])
        assert after == before
        client.registration.RegisterBroker(both, timeout=TIMEOUT)
        assert not any(awaiting(listed(client)))
        assert perm(client, "Other") == WIPED
        assert client.route() is None
        release = admin_service_pb2.ReleaseTopicHoldRequest(topic="TopicTest")
        assert client.admin.ReleaseTopicHold(release, timeout=TIMEOUT).restored_queue_data_count == 1
        assert perm(client, "TopicTest") == WIPED
        add = admin_service_pb2.AddWritePermOfBrokerRequest(broker_name="broker-a")
        client.admin.AddWritePermOfBroker(add, timeout=TIMEOUT)
        assert perm(client, "TopicTest") == REPORTED
        assert process.terminate() == 0
    with site.start() as process, process.connect() as client:
        assert listed(client) == []
        client.registration.RegisterBroker(both, timeout=TIMEOUT)
        assert perm(client, "TopicTest") == REPORTED


PROGRAM = """
from namesrv.app.channels import ChannelStreams
from namesrv.cli import main
from namesrv.core.changes import QueuesChange

def fail(self, change):
    if any("defect" in row.topics for row in change.rows if isinstance(row, QueuesChange)):
        raise ValueError("a defect")

ChannelStreams._on_change = fail
main()
"""


class NamesrvWithDefect(NamesrvProcess):
    """A name server with a listener of the change log that fails at a topic."""

    program = (sys.executable, "-c", PROGRAM)


def test_a_failed_commit_ends_the_name_server_without_a_snapshot(tmp_path: Path) -> None:
    options = "--data-dir", str(tmp_path), "--snapshot-interval-millis", "100", "--shutdown-grace-millis", "100"
    with NamesrvWithDefect(*options) as namesrv, namesrv.connect() as client:
        client.registration.RegisterBroker(registration(["whole"]), timeout=client.TIMEOUT)
        eventually((tmp_path / "routes.snapshot").exists)
        with grpc.insecure_channel(str(namesrv.endpoint)) as connection:
            health = HealthStub(connection).Watch(health_pb2.HealthCheckRequest(), timeout=client.TIMEOUT)
            assert next(health).status == health_pb2.HealthCheckResponse.SERVING
            opening = client.registration.OpenChannel(pb.OpenChannelRequest(), timeout=client.TIMEOUT)
            channel = OpenedChannel(opening)
            request = registration(["defect"], identity("127.0.0.1:10912", name="broker-b"))
            with pytest.raises(grpc.RpcError) as failed:
                client.registration.RegisterBroker(request, timeout=client.TIMEOUT)
            assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
            assert channel.next_event().closing.reason == pb.ChannelClosing.REASON_SHUTDOWN
            assert next(health).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert namesrv.wait(within_seconds=20) == 1
        (told,) = namesrv.events("commit_failed")
        assert (told["change"], told["listener"]) == ("BrokerRegistration", "fail")
    with NamesrvProcess(*options) as again, again.connect() as client:
        assert client.route("whole") is not None
        (loaded,) = again.events("snapshot_loaded")
        assert (loaded["brokers"], loaded["topics"]) == (1, 1)
