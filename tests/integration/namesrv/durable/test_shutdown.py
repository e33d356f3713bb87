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
from namesrv_api.v1.registration_service_pb2_grpc import RegistrationServiceStub
from structlog.testing import capture_logs

from namesrv.remoting.front import RemotingFront
from namesrv.server.listener import ROUTE_SERVICE
from namesrv.server.server import NamesrvServer
from namesrv.settings import NamesrvSettings
from namesrv.storage.database import Database
from tests.faults.load import frames
from tests.support.engines import each, present
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.registrations import registration

WATCH = "/grpc.health.v1.Health/Watch"


@pytest.fixture(params=each())
def engine(request: pytest.FixtureRequest) -> str:
    return present(request.param)


def watch_that_reads_nothing(port: int) -> socket.socket:
    """A watch of a service's health whose window is zero, so that no answer can be sent."""
    request = health_pb2.HealthCheckRequest(service=ROUTE_SERVICE.full_name)
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(
        frames.hello((frames.INITIAL_WINDOW_SIZE, 0)) + frames.call(WATCH, 1, request.SerializeToString())
    )
    return connection


def test_a_health_watch_that_reads_nothing_delays_neither_snapshot_nor_exit(engine: str, tmp_path: Path) -> None:
    options = (
        "--warm-up-millis",
        "1000",
        "--shutdown-grace-millis",
        "200",
        "--data-dir",
        str(tmp_path),
        "--snapshot-interval-millis",
        "0",
    )
    with NamesrvProcess(*options, engine=engine) as namesrv:
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


def test_what_is_durable_is_written_last_although_other_steps_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RemotingFront, "run", failing_after(RemotingFront.run))
    monkeypatch.setattr(RemotingFront, "close", failing_after(RemotingFront.close))
    flags = {
        "listen": "127.0.0.1:0",
        "remoting_listen": "127.0.0.1:0",
        "engine": "grpcio",
        "warm_up_millis": 0,
        "shutdown_grace_millis": 100,
    }

    async def run() -> None:
        settings = NamesrvSettings.load(None, flags)
        stop = asyncio.Event()
        server = NamesrvServer(settings, Database(tmp_path))
        running = asyncio.create_task(server.run(stop))
        async with grpc.aio.insecure_channel(str(server.endpoint)) as connection:
            await RegistrationServiceStub(connection).RegisterBroker(registration(["a"]), wait_for_ready=True)
        stop.set()
        with pytest.raises(BaseExceptionGroup, match="background work failed"):
            await running

    with capture_logs() as lines:
        asyncio.run(run())
    assert (tmp_path / "routes.snapshot").exists()
    assert not (tmp_path / "namesrv.db-wal").exists(), "the database was closed"
    with closing(sqlite3.connect(tmp_path / "namesrv.db")) as database:
        assert database.execute("SELECT revision, cause FROM journal").fetchall() == [(1, "RegisterBroker")]
    assert [line["step"] for line in lines if line["event"] == "shutdown_step_failed"] == ["remoting"]
    assert lines[-1]["event"] == "namesrv_stopped"
