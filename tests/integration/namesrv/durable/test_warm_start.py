"""A name server that was killed serves the routes that it had, and says what it cannot know yet."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from namesrv_api.v1 import registration_service_pb2, route_service_pb2

from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.registrations import data_version, identity, registration, topic_config

LOOKUP = "/namesrv_api.v1.RouteService/GetTopicRoute"
HEARTBEAT = "/namesrv_api.v1.RegistrationService/BrokerHeartbeat"
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


def test_an_unconfirmed_broker_is_told_to_register(site: Site) -> None:
    site.leave_behind(registration())
    with site.start() as process, process.connect() as client:
        query = registration_service_pb2.QueryDataVersionRequest(broker=identity(), data_version=data_version())
        answer = client.registration.QueryDataVersion(query, timeout=20)
        assert answer.changed
        assert answer.data_version.counter == 1
        error = client.failure(HEARTBEAT, registration_service_pb2.BrokerHeartbeatRequest(broker=identity()))
        assert (error.code, error.reason) == (grpc.StatusCode.NOT_FOUND, "BROKER_NOT_REGISTERED")

        channel = client.open_channel()
        registered = client.registration.RegisterBroker(registration(channel_id=channel.id), timeout=20)
        assert registered.generation == 2, "generations go on where they were"
        assert not client.registration.QueryDataVersion(query, timeout=20).changed
        channel.close()
        eventually(client.route, lambda route: route is None)


def test_a_broker_that_does_not_come_back_expires_and_then_the_name_server_is_warm(site: Site) -> None:
    site.leave_behind(registration())
    arguments = ("--broker-channel-expired-time-millis", "1000", "--scan-not-active-broker-interval-millis", "100")
    with site.start(*NEVER_BY_TIME, *arguments) as process, process.connect() as client:
        eventually(lambda: unknown(client), lambda seen: seen == NOT_FOUND)
        assert client.route() is None
        eventually(lambda: health(client), lambda seen: seen == "SERVING")
        assert [line["reason"] for line in process.events("broker_removed")] == ["EXPIRED"]
        assert process.wait_for("namesrv_warm")
        assert [line["brokers"] for line in process.events("namesrv_warming")] == [1]


def test_without_a_file_a_name_server_is_warm_after_the_warm_up_time(site: Site) -> None:
    with site.start(*NEVER_BY_TIME) as process, process.connect() as client:
        client.registration.RegisterBroker(registration(), timeout=20)
        assert unconfirmed(client) == [[]], "registrations and lookups of what is there do not wait"
        assert unknown(client) == WARMING
        assert health(client) == "NOT_SERVING"
    with site.start("--warm-up-millis", "200") as process, process.connect() as client:
        eventually(lambda: health(client), lambda seen: seen == "SERVING")
        assert unknown(client) == NOT_FOUND
    with site.start("--warm-up-millis", "0") as process, process.connect() as client:
        assert unknown(client) == NOT_FOUND
        eventually(lambda: health(client), lambda seen: seen == "SERVING")


def test_a_shutdown_writes_the_file_though_nothing_is_written_in_between(site: Site) -> None:
    with site.start("--snapshot-interval-millis", "0") as process, process.connect() as client:
        channel = client.open_channel()
        client.registration.RegisterBroker(registration(channel_id=channel.id), timeout=20)
        assert not site.file.exists()
        assert process.terminate() == 0
    with site.start(*NEVER_BY_TIME) as process, process.connect() as client:
        assert unconfirmed(client) == [[0]], "the channels that the shutdown ended have removed nobody"


def test_a_name_server_that_was_not_warm_leaves_the_file_as_it_was(site: Site) -> None:
    site.leave_behind(registration(), registration(broker=B))
    before = site.file.read_bytes()
    with site.start(*NEVER_BY_TIME, *OFTEN) as process, process.connect() as client:
        client.registration.RegisterBroker(registration(counter=2), timeout=20)
        assert process.terminate() == 0
        assert process.events("snapshot_written") == []
    assert site.file.read_bytes() == before


def test_a_broken_file_is_a_cold_start(site: Site) -> None:
    site.leave_behind(registration(), registration(broker=B))
    site.file.write_bytes(site.file.read_bytes()[:-1])
    with site.start(*NEVER_BY_TIME) as process, process.connect() as client:
        problem = process.wait_for("snapshot_not_loaded")["problem"]
        assert problem == f"{site.file} is cut off"
        assert unknown(client) == WARMING
        client.registration.RegisterBroker(registration(), timeout=20)
        assert unconfirmed(client) == [[]]


# Kills in the middle of a write

ROUNDS = 6
TOPICS = [f"Topic-{number}" for number in range(1_000)]


class Lifetime:
    """What one name server was told until it was killed, and what it is known to have written."""

    def __init__(self, process: NamesrvProcess) -> None:
        self.sent = 0
        """Counter of the last registration that it was sent."""
        self._process = process
        self._counters: dict[int, int] = {}
        """Of each registration that was answered, by its revision."""

    @property
    def durable(self) -> int:
        """Counter of the last registration that is in its file; 0: none is known to be."""
        reached = written(self._process)
        return max((counter for revision, counter in self._counters.copy().items() if revision <= reached), default=0)

    def register_until_it_is_killed(self, client: Client, counters: Iterator[int]) -> None:
        """Registers again and again; the name server ends in between."""
        try:
            for self.sent in counters:
                answer = client.registration.RegisterBroker(registration_of(self.sent), timeout=20)
                self._counters[answer.header.revision] = self.sent
        except grpc.RpcError as error:
            assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED), error  # noqa: PT017


def registration_of(counter: int) -> registration_service_pb2.RegisterBrokerRequest:
    """A registration that gives all topics as many queues as its counter."""
    request = registration(topics=(), counter=counter)
    request.topic_configs.extend(topic_config(topic, queues=counter) for topic in TOPICS)
    return request


def kill_while_writing(
    process: NamesrvProcess, lifetime: Lifetime, files: int, pause_seconds: float
) -> Callable[[], None]:
    """Kills a process a moment after a file with a registration, and some others; returns what waits for that."""

    def kill() -> None:
        try:
            eventually(lambda: lifetime.durable)
            eventually(lambda: len(process.events("snapshot_written")), lambda count: count >= files)
            threading.Event().wait(pause_seconds)  # so that it is killed in any part of a write
        finally:
            process.signal(signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread.join


def held_counter(client: Client) -> int:
    """The registration that all routes are of."""
    answer = client.routes.BatchGetTopicRoutes(route_service_pb2.BatchGetTopicRoutesRequest(topics=TOPICS), timeout=20)
    numbers = {queue.write_queue_nums for named in answer.routes for queue in named.route.queue_datas}
    assert len(answer.routes) == len(TOPICS)
    assert len(numbers) == 1, f"a mixture of {numbers}"
    return numbers.pop()


@pytest.mark.slow
def test_a_kill_in_the_middle_of_a_write_leaves_the_routes_of_one_revision(tmp_path: Path) -> None:
    chance = random.Random(1)
    site = Site(tmp_path)
    counters = iter(range(1, 60_000))
    last: Lifetime | None = None
    for _ in range(ROUNDS):
        with site.start("--snapshot-interval-millis", "1", "--log-level", "debug") as process:
            with process.connect() as client:
                if last is not None:
                    assert last.durable <= held_counter(client) <= last.sent
                last = Lifetime(process)
                killed = kill_while_writing(process, last, chance.randint(1, 8), chance.uniform(0, 0.02))
                last.register_until_it_is_killed(client, counters)
                killed()
            assert not process.events("snapshot_not_loaded")
            assert last.durable, "it was killed before it had written a registration"
