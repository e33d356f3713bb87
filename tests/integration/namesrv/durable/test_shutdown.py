"""The end of a name server: neither clients nor failing steps keep it from writing the last snapshot."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
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
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.registrations import registration
from tests.support.state_changes import HeldWork

WATCH = "/grpc.health.v1.Health/Watch"
FLAGS = {"listen": "127.0.0.1:0", "warm_up_millis": 0, "shutdown_grace_millis": 100}


def test_a_name_server_starts_and_ends_without_an_error() -> None:
    """Scenario 59."""
    with NamesrvProcess() as namesrv:
        assert namesrv.terminate() == 0
        assert [line["level"] for line in namesrv.lines if line["level"] != "info"] == []
        assert namesrv.events("namesrv_stopped")


def watch_that_reads_nothing(port: int) -> socket.socket:
    """A watch of a service's health whose window is zero, so that no answer can be sent."""
    request = health_pb2.HealthCheckRequest(service=ROUTE_SERVICE.full_name)
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(
        frames.hello((frames.INITIAL_WINDOW_SIZE, 0)) + frames.call(WATCH, 1, request.SerializeToString())
    )
    return connection


def test_a_health_watch_that_reads_nothing_delays_no_snapshot_and_no_exit(tmp_path: Path) -> None:
    options = (
        *("--warm-up-millis", "1000", "--shutdown-grace-millis", "200"),
        *("--data-dir", str(tmp_path), "--snapshot-interval-millis", "0"),
    )
    with NamesrvProcess(*options) as namesrv:
        with closing(watch_that_reads_nothing(namesrv.endpoint.port)) as watching, namesrv.connect() as client:
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
        channel = brokers.OpenChannel(pb.OpenChannelRequest())
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
            async with asyncio.timeout(20):
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
