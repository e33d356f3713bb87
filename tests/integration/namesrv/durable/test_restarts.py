"""The end of a name server, whose last snapshot neither clients nor failing steps prevent, and the start after it."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from namesrv_api.v1 import admin_service_pb2, route_service_pb2
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1.registration_service_pb2_grpc import RegistrationServiceStub
from structlog.testing import capture_logs

from namesrv.app.channels import ChannelStreams
from namesrv.app.watches import WatchStreams
from namesrv.app.writer import INLINE_TOPICS
from namesrv.core.changes import Change
from namesrv.core.registrations import BrokerRegistration
from namesrv.server import server as server_module
from namesrv.server.server import ROUTE_SERVICE, NamesrvServer
from namesrv.settings import NamesrvSettings
from namesrv.storage.database import Database
from tests.support.engines import require_native
from tests.support.hostile import frames
from tests.support.metrics_page import samples
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.registrations import identity, registration
from tests.support.state_changes import HeldWork

WATCH = "/grpc.health.v1.Health/Watch"
FLAGS = {"listen": "127.0.0.1:0", "warm_up_millis": 0, "shutdown_grace_millis": 100}


def test_a_name_server_starts_and_ends_without_an_error() -> None:
    """Scenario 59."""
    with NamesrvProcess() as namesrv:
        assert namesrv.terminate() == 0
        assert [line["level"] for line in namesrv.lines if line["level"] != "info"] == []
        assert namesrv.events("namesrv_stopped")


def test_a_health_watch_that_reads_nothing_delays_no_snapshot_and_no_exit(tmp_path: Path) -> None:
    options = (
        *("--warm-up-millis", "1000", "--shutdown-grace-millis", "200"),
        *("--data-dir", str(tmp_path), "--snapshot-interval-millis", "0"),
    )
    request = health_pb2.HealthCheckRequest(service=ROUTE_SERVICE.full_name).SerializeToString()
    with NamesrvProcess(*options) as namesrv:
        with socket.create_connection(namesrv.endpoint) as watching, namesrv.connect() as client:
            # Its window is zero, so that no answer can be sent.
            watching.sendall(frames.hello((frames.INITIAL_WINDOW_SIZE, 0)) + frames.call(WATCH, 1, request))
            assert watching.recv(1), "the server has read the request's connection"
            namesrv.wait_for("namesrv_warm")  # the second answer, which waits for the first one
            client.registration.RegisterBroker(registration(["a"]), timeout=client.TIMEOUT)
            eventually(lambda: client.route("a"))
            assert not (tmp_path / "routes.snapshot").exists()
            assert namesrv.terminate() == 0
        assert (tmp_path / "routes.snapshot").exists()
        assert namesrv.events("shutdown_step_timed_out") == []


def failing_after(step: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    async def fails(*arguments: object) -> None:
        try:
            await step(*arguments)
        finally:
            raise ValueError("a defect")

    return fails


async def test_what_is_durable_is_written_last_although_other_steps_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_native()
    for defective, step in ((server_module, "scan_for_silent_brokers"), (WatchStreams, "close")):
        monkeypatch.setattr(defective, step, failing_after(getattr(defective, step)))
    flags = FLAGS | {"remoting_listen": "127.0.0.1:0"}
    server, stop = NamesrvServer(NamesrvSettings.load(None, flags), Database(tmp_path)), asyncio.Event()
    with capture_logs() as lines:
        running = asyncio.create_task(server.run(stop))
        async with grpc.aio.insecure_channel(str(server.endpoint)) as connection:
            await RegistrationServiceStub(connection).RegisterBroker(registration(["a"]), wait_for_ready=True)
        stop.set()
        with pytest.raises(BaseExceptionGroup, match="background work failed"):
            await running
    assert (tmp_path / "routes.snapshot").exists()
    assert not (tmp_path / "namesrv.db-wal").exists(), "the database was closed"
    with closing(sqlite3.connect(tmp_path / "namesrv.db")) as database:
        assert database.execute("SELECT revision, cause FROM journal").fetchall() == [(1, "RegisterBroker")]
    assert [line["step"] for line in lines if line["event"] == "shutdown_step_failed"] == ["streams"]
    assert lines[-1]["event"] == "namesrv_stopped"


async def test_a_failed_commit_ends_the_name_server_without_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_streams: object, change: Change) -> None:
        if "defect" in change.topics:
            raise ValueError("a defect")

    require_native()
    monkeypatch.setattr(ChannelStreams, "_on_change", fail)
    server = NamesrvServer(NamesrvSettings.load(None, FLAGS), Database(tmp_path))
    running = asyncio.create_task(server.run(asyncio.Event()))
    async with grpc.aio.insecure_channel(str(server.endpoint)) as connection:
        brokers = RegistrationServiceStub(connection)
        await brokers.RegisterBroker(registration(["whole"]), wait_for_ready=True)
        health = HealthStub(connection).Watch(health_pb2.HealthCheckRequest())
        assert (await health.read()).status == health_pb2.HealthCheckResponse.SERVING
        channel: Any = brokers.OpenChannel(pb.OpenChannelRequest())
        await channel.read()
        call = brokers.RegisterBroker(registration(["whole", "defect"], counter=2))
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert (await channel.read()).closing.reason == pb.ChannelClosing.REASON_SHUTDOWN
        assert (await health.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(BaseExceptionGroup):
            await asyncio.wait_for(running, 20)
    assert not (tmp_path / "routes.snapshot").exists()


async def test_an_edit_that_does_not_end_is_given_up_and_its_caller_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_native()
    held = HeldWork()
    monkeypatch.setattr(BrokerRegistration, "prepare", lambda _: held())
    many = registration([f"T{number}" for number in range(2 * INLINE_TOPICS)])
    server, stop = NamesrvServer(NamesrvSettings.load(None, FLAGS), Database(tmp_path)), asyncio.Event()
    with capture_logs() as lines:
        running = asyncio.create_task(server.run(stop))
        async with grpc.aio.insecure_channel(str(server.endpoint)) as connection:
            call = RegistrationServiceStub(connection).RegisterBroker(many, wait_for_ready=True)
            await held.begun()
            stop.set()
            async with asyncio.timeout(TIMEOUT):
                assert await call.code() is grpc.StatusCode.UNAVAILABLE
                await running
    assert [line["event"] for line in lines if line["event"].startswith("shutdown_step")] == []
    assert lines[-1]["event"] == "namesrv_stopped"


def test_a_kill_is_counted_as_a_crash_and_planned_restarts_are_not(tmp_path: Path) -> None:
    flags = ("--data-dir", str(tmp_path), "--metrics-listen", "127.0.0.1:0")

    def crashes(process: NamesrvProcess) -> float:
        return samples(str(process.wait_for("namesrv_started")["metrics"]))[("namesrv_crashes_total",)]

    for killed, counted in ((False, 0), (True, 0), (True, 1), (False, 2), (False, 2)):
        with NamesrvProcess(*flags) as process:
            assert crashes(process) == counted
            if killed:
                process.kill()
            else:
                assert process.terminate() == 0


# What the name server after one that was killed has, and what it cannot know.

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
