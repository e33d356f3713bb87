"""A commit that fails half-way ends the name server, and the next one begins with the last whole snapshot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from namesrv_api.v1 import registration_service_pb2 as pb

from tests.support.programs.processes import NamesrvProcess, OpenedChannel, eventually
from tests.support.registrations import identity, registration

PROGRAM = """
from namesrv.app.channels import ChannelNotices
from namesrv.cli import main

def fail(self, change):
    if any("defect" in getattr(row, "queues", ()) for row in change.rows):
        raise ValueError("a defect")

ChannelNotices._on_change = fail
main()
"""


class NamesrvWithDefect(NamesrvProcess):
    """A name server with a listener of the change log that fails at a topic."""

    program: ClassVar[tuple[str, ...]] = (sys.executable, "-c", PROGRAM)


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
