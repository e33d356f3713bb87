"""The hand-over of a channel, as callers and operators see it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from namesrv_api.v1 import registration_service_pb2, route_service_pb2
from typer.testing import CliRunner

from nsctl.cli import app
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import (
    Client,
    NamesrvProcess,
    eventually,
)
from tests.support.registrations import identity, registration

GRACE_SECONDS = 600


def nsctl(command: str, namesrv: NamesrvProcess) -> str:
    result = CliRunner().invoke(app, [*command.split(), "--namesrv", str(namesrv.endpoint)])
    assert result.exit_code == 0, result.output
    return result.output


def status(client: Client) -> route_service_pb2.GetNamesrvStatusResponse:
    return client.routes.GetNamesrvStatus(route_service_pb2.GetNamesrvStatusRequest(), timeout=TIMEOUT)


@pytest.fixture
def namesrv() -> Iterator[NamesrvProcess]:
    with NamesrvProcess("--channel-grace-millis", str(1000 * GRACE_SECONDS)) as process:
        yield process


def test_a_broker_that_another_process_takes_over_in_time_never_leaves(namesrv: NamesrvProcess, client: Client) -> None:
    old = client.open_channel()
    client.registration.RegisterBroker(registration(channel_id=old.id), timeout=TIMEOUT)
    request = registration_service_pb2.HandOverChannelRequest(channel_id=old.id)
    answer = client.registration.HandOverChannel(request, timeout=TIMEOUT)
    assert (answer.broker_count, answer.channel_grace_millis) == (1, 1000 * GRACE_SECONDS)
    old.close()
    namesrv.wait_for("channel_end_doubted")
    told = status(client)
    assert (told.doubted_broker_count, told.unconfirmed_broker_count) == (1, 0)
    assert 500 < told.doubt_ends_at_millis / 1000 - time.time() < GRACE_SECONDS + 1
    explained = nsctl("explain TopicTest -o json", namesrv)
    assert "doubted: the channel of 127.0.0.1:10911 (id 0) was handed over" in explained
    assert '"doubt_ends_at"' in nsctl("brokers -o json", namesrv)
    assert "no findings" in nsctl("doctor", namesrv), "the restart of an agent is planned"
    new = client.open_channel()
    assert client.registration.RegisterBroker(registration(channel_id=new.id), timeout=TIMEOUT).generation == 2
    assert status(client).doubted_broker_count == 0
    assert '"doubt_ends_at"' not in nsctl("brokers -o json", namesrv)
    heartbeat = registration_service_pb2.BrokerHeartbeatRequest(broker=identity())
    client.registration.BrokerHeartbeat(heartbeat, timeout=TIMEOUT)
    assert client.addrs() == {0: "127.0.0.1:10911"}
    assert not namesrv.events("broker_removed")
    new.close()
    eventually(client.route, lambda route: route is None)
