"""A name server that is killed: what the next one on its data directory has, and what it cannot know."""

from __future__ import annotations

from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from namesrv_api.v1 import admin_service_pb2, route_service_pb2

from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.registrations import identity, registration

LOOKUP = "/namesrv_api.v1.RouteService/GetTopicRoute"
B = identity("127.0.0.1:20911", name="broker-b")


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


def test_a_killed_name_server_serves_its_old_routes_until_brokers_are_back(tmp_path: Path) -> None:
    data_dir = ("--data-dir", str(tmp_path))
    often = ("--snapshot-interval-millis", "10", "--log-level", "debug")
    with NamesrvProcess(*data_dir, *often) as process, process.connect() as client:
        for request in (registration(), registration(broker=B, topics=["TopicTest", "Other"])):
            client.registration.RegisterBroker(request, timeout=TIMEOUT)
        reached = status(client).header.revision
        eventually(lambda: any(int(line["revision"]) == reached for line in process.events("snapshot_written")))
        process.kill()
    with NamesrvProcess(*data_dir, "--warm-up-millis", "600000") as process, process.connect() as client:
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


def listed(client: Client) -> list[admin_service_pb2.Intent]:
    return list(client.admin.ListIntents(admin_service_pb2.ListIntentsRequest(), timeout=TIMEOUT).intents)


def test_intents_survive_a_kill_and_hold_from_the_first_registration_on(tmp_path: Path) -> None:
    both = registration(("TopicTest", "Other"))
    with NamesrvProcess("--data-dir", str(tmp_path)) as process, process.connect() as client:
        client.registration.RegisterBroker(both, timeout=TIMEOUT)
        wipe = admin_service_pb2.WipeWritePermOfBrokerRequest(force=True, broker_name="broker-a", comment="why")
        client.admin.WipeWritePermOfBroker(wipe, timeout=TIMEOUT)
        hold = admin_service_pb2.DeleteTopicRequest(force=True, topic="TopicTest", hold=True)
        client.admin.DeleteTopic(hold, timeout=TIMEOUT)
        before = listed(client)
        process.kill()
    with NamesrvProcess("--data-dir", str(tmp_path)) as process, process.connect() as client:
        after = listed(client)
        for intent in after:
            assert intent.awaits_registration
            intent.awaits_registration = False
        assert after == before
        client.registration.RegisterBroker(both, timeout=TIMEOUT)
        assert not any(intent.awaits_registration for intent in listed(client))
        assert client.route() is None
        route = client.route("Other")
        assert route is not None
        assert (route.queue_datas[0].perm, route.queue_datas[0].reported_perm) == (4, 6)
