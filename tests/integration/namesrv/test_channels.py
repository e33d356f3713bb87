"""What channels are for besides their end: hand-over, events, and the end of very many at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from namesrv_api.v1 import registration_service_pb2, route_data_pb2, route_service_pb2
from typer.testing import CliRunner

from nsctl.cli import app
from tests.support.programs.processes import (
    Client,
    NamesrvProcess,
    OpenedChannel,
    eventually,
)
from tests.support.registrations import identity, registration

TIMEOUT = 20.0


@pytest.fixture
def grace_seconds() -> int:
    """Short, for those that wait until it is over."""
    return 1


@pytest.fixture
def namesrv(tmp_path: Path, grace_seconds: int) -> Iterator[NamesrvProcess]:
    """A name server that never expires anybody by itself."""
    arguments = ("--data-dir", str(tmp_path), "--notify-min-broker-id-changed")
    times = (
        *("--channel-grace-millis", str(1000 * grace_seconds)),
        *("--scan-not-active-broker-interval-millis", "100"),
    )
    with NamesrvProcess(*arguments, *times) as process:
        yield process


@pytest.fixture
def client(namesrv: NamesrvProcess) -> Iterator[Client]:
    with namesrv.connect() as connected:
        yield connected


def register(
    client: Client, channel: OpenedChannel | None, broker: route_data_pb2.BrokerIdentity, topic: str = "TopicTest"
) -> registration_service_pb2.RegisterBrokerResponse:
    request = registration([topic], broker, channel_id=channel.id if channel else None)
    return client.registration.RegisterBroker(request, timeout=TIMEOUT)


def hand_over(client: Client, channel: OpenedChannel) -> registration_service_pb2.HandOverChannelResponse:
    request = registration_service_pb2.HandOverChannelRequest(channel_id=channel.id)
    return client.registration.HandOverChannel(request, timeout=TIMEOUT)


def nsctl(command: str, namesrv: NamesrvProcess) -> str:
    result = CliRunner().invoke(app, [*command.split(), "--namesrv", str(namesrv.endpoint)])
    assert result.exit_code == 0, result.output
    return result.output


def status(client: Client) -> route_service_pb2.GetNamesrvStatusResponse:
    return client.routes.GetNamesrvStatus(route_service_pb2.GetNamesrvStatusRequest(), timeout=TIMEOUT)


@pytest.mark.parametrize("grace_seconds", [600])
def test_a_broker_that_another_process_takes_over_in_time_never_leaves(namesrv: NamesrvProcess, client: Client) -> None:
    old = client.open_channel()
    register(client, old, identity())
    hand_over(client, old)
    old.close()
    namesrv.wait_for("channel_end_doubted")
    told = status(client)
    assert (told.doubted_broker_count, told.unconfirmed_broker_count) == (1, 0)
    assert 500 < told.doubt_ends_at_millis / 1000 - time.time() < 601
    explained = nsctl("explain TopicTest -o json", namesrv)
    assert "doubted: the channel of 127.0.0.1:10911 (id 0) was handed over" in explained
    assert '"doubt_ends_at"' in nsctl("brokers -o json", namesrv)
    assert "no findings" in nsctl("doctor", namesrv), "the restart of an agent is planned"
    new = client.open_channel()
    generation = register(client, new, identity()).generation
    assert generation == 2
    assert status(client).doubted_broker_count == 0
    assert '"doubt_ends_at"' not in nsctl("brokers -o json", namesrv)
    register(client, None, identity("127.0.0.1:20911", name="broker-b"), "Other")
    query = registration_service_pb2.BrokerHeartbeatRequest(broker=identity())
    client.registration.BrokerHeartbeat(query, timeout=TIMEOUT)
    assert client.addrs() == {0: "127.0.0.1:10911"}
    assert not namesrv.events("broker_removed")
    new.close()
    eventually(client.route, lambda route: route is None)
