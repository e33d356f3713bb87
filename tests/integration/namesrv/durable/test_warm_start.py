"""A name server that was killed serves the routes that it had, and says what it cannot know yet."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from namesrv_api.v1 import registration_service_pb2, route_service_pb2

from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.registrations import identity, registration

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

    def leave_behind(self, *registrations: registration_service_pb2.RegisterBrokerRequest) -> None:
        """Has a name server be killed whose snapshot file holds these brokers."""
        with self.start(*OFTEN) as process, process.connect() as client:
            for request in registrations:
                client.registration.RegisterBroker(request, timeout=20)
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
    return client.routes.GetNamesrvStatus(route_service_pb2.GetNamesrvStatusRequest(), timeout=20)


def health(client: Client, service: str = "namesrv_api.v1.RouteService") -> str:
    request = health_pb2.HealthCheckRequest(service=service)
    answer = health_pb2_grpc.HealthStub(client.connection).Check(request, timeout=20)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def unconfirmed(client: Client, topic: str = "TopicTest") -> list[list[int]]:
    """The unconfirmed broker ids of each group of a route."""
    route = client.route(topic)
    assert route is not None, f"no route for {topic}"
    return [list(group.unconfirmed_broker_ids) for group in route.broker_datas]


def unknown(client: Client) -> tuple[grpc.StatusCode, str, float | None]:
    """What a lookup of a topic that nobody has registered ends with."""
    error = client.failure(LOOKUP, route_service_pb2.GetTopicRouteRequest(topic="Unknown"))
    return error.code, error.reason, error.retry_after_seconds


WARMING = (grpc.StatusCode.UNAVAILABLE, "REGISTRY_WARMING", 0.2)
NOT_FOUND = (grpc.StatusCode.NOT_FOUND, "TOPIC_NOT_FOUND", None)


def test_a_killed_name_server_serves_its_old_routes_at_once_and_is_warm_when_the_brokers_are_back(site: Site) -> None:
    site.leave_behind(registration(), registration(broker=B, topics=["TopicTest", "Other"]))
    with site.start(*NEVER_BY_TIME) as process, process.connect() as client:
        loaded = process.wait_for("snapshot_loaded")
        assert (loaded["brokers"], loaded["topics"]) == (2, 2)
        assert unconfirmed(client) == [[0], [0]]
        assert status(client).header.revision == 0
        assert (status(client).warm, status(client).unconfirmed_broker_count) == (False, 2)

        assert unknown(client) == WARMING
        batch = client.routes.BatchGetTopicRoutes(
            route_service_pb2.BatchGetTopicRoutesRequest(topics=["Unknown", "Other"]), timeout=20
        )
        assert [route.topic for route in batch.routes] == ["Other"]
        assert (list(batch.topics_warming), list(batch.topics_not_found)) == (["Unknown"], [])
        assert health(client) == "NOT_SERVING"
        assert {health(client, f"namesrv_api.v1.{name}Service") for name in ("Registration", "Admin")} == {"SERVING"}
        assert health(client, "") == "SERVING"

        client.registration.RegisterBroker(registration(), timeout=20)
        assert unconfirmed(client) == [[], [0]]
        assert unknown(client) == WARMING
        assert health(client) == "NOT_SERVING"
        client.registration.RegisterBroker(registration(broker=B, topics=["TopicTest", "Other"]), timeout=20)
        assert unknown(client) == WARMING, "a broker that is newer than the file may yet come back"
        eventually(lambda: unknown(client), lambda seen: seen == NOT_FOUND)
        assert (status(client).warm, status(client).unconfirmed_broker_count) == (True, 0)
        eventually(lambda: health(client), lambda seen: seen == "SERVING")
        assert {health(client, f"namesrv_api.v1.{name}Service") for name in ("Registration", "Admin")} == {"SERVING"}


def test_a_shutdown_writes_the_file_though_nothing_is_written_in_between(site: Site) -> None:
    with site.start("--snapshot-interval-millis", "0") as process, process.connect() as client:
        channel = client.open_channel()
        client.registration.RegisterBroker(registration(channel_id=channel.id), timeout=20)
        assert not site.file.exists()
        assert process.terminate() == 0
    with site.start(*NEVER_BY_TIME) as process, process.connect() as client:
        assert unconfirmed(client) == [[0]], "the channels that the shutdown ended have removed nobody"
