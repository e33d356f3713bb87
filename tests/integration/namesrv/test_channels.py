"""What channels are for besides their end: hand-over, events, and the end of very many at once."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from namesrv_api.v1 import admin_service_pb2, registration_service_pb2, route_data_pb2, route_service_pb2
from typer.testing import CliRunner

from nsctl.cli import app
from tests.support.programs.agents import Agent
from tests.support.programs.processes import (
    Client,
    NamesrvProcess,
    OpenedChannel,
    addrs_of,
    eventually,
    seconds_between,
)
from tests.support.registrations import identity, registration

HAND_OVER = "/namesrv_api.v1.RegistrationService/HandOverChannel"
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


def test_a_broker_that_is_handed_over_stays_when_its_channel_ends_and_leaves_if_nobody_takes_it_over(
    namesrv: NamesrvProcess, client: Client, grace_seconds: int
) -> None:
    channel = client.open_channel()
    register(client, channel, identity())
    answer = hand_over(client, channel)
    assert (answer.broker_count, answer.channel_grace_millis) == (1, 1000 * grace_seconds)
    channel.close()
    namesrv.wait_for("channel_end_doubted")
    eventually(client.route, lambda route: route is None)
    assert status(client).doubted_broker_count == 0
    removed = namesrv.wait_for("broker_removed")
    assert removed["reason"] == "EXPIRED"
    assert seconds_between(namesrv.wait_for("channel_end_doubted"), removed) >= grace_seconds / 2


def test_a_broker_that_died_while_the_name_server_stalled_is_doubted(namesrv: NamesrvProcess, client: Client) -> None:
    with Agent(str(namesrv.endpoint)) as agent:
        eventually(client.route, lambda route: route is not None)
        namesrv.signal(signal.SIGSTOP)
        try:
            agent.kill()
            time.sleep(2.5)  # the stall itself: a stopped process shows nothing to wait for
        finally:
            namesrv.signal(signal.SIGCONT)
    assert namesrv.wait_for("channel_end_doubted")["why"] == "own_stall"
    told = eventually(lambda: status(client), lambda told: told.doubted_broker_count == 1)
    assert 0 < told.doubt_ends_at_millis / 1000 - time.time() < 61
    assert "ended right after this name server had stalled; it leaves at" in nsctl("explain TopicTest -o json", namesrv)


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


def test_a_channel_that_is_not_open_cannot_be_handed_over(client: Client) -> None:
    failure = client.failure(HAND_OVER, registration_service_pb2.HandOverChannelRequest(channel_id="no such"))
    assert (failure.code.name, failure.reason) == ("FAILED_PRECONDITION", "CHANNEL_GONE")


def test_members_of_a_group_are_told_when_its_lowest_broker_id_changes(client: Client) -> None:
    of_slave, of_master = client.open_channel(), client.open_channel()
    slave, master = identity("127.0.0.1:20911", 1), identity()
    for channel, broker in ((of_slave, slave), (of_master, master)):
        request = registration(broker=broker, channel_id=channel.id)
        request.enable_acting_master = True
        request.ha_server_addr = f"127.0.0.1:{10912 + broker.broker_id}"
        client.registration.RegisterBroker(request, timeout=TIMEOUT)
    came = of_slave.next_event().min_broker_id_changed
    assert (came.cluster_name, came.broker_name) == ("DefaultCluster", "broker-a")
    assert (came.min_broker_id, came.min_broker_addr, came.ha_broker_addr) == (0, "127.0.0.1:10911", "127.0.0.1:10912")
    assert not came.HasField("offline_broker_addr")
    of_master.close()
    left = of_slave.next_event().min_broker_id_changed
    assert (left.min_broker_id, left.min_broker_addr, left.ha_broker_addr) == (1, "127.0.0.1:20911", "127.0.0.1:10913")
    assert left.offline_broker_addr == "127.0.0.1:10911"


def test_channels_are_told_once_when_the_ordered_topic_configuration_changes(client: Client) -> None:
    channel = client.open_channel()
    for namespace, key in (("other", "k"), ("ORDER_TOPIC_CONFIG", "TopicTest")):
        request = admin_service_pb2.PutKvConfigRequest(namespace=namespace, key=key, value="broker-a:4")
        client.admin.PutKvConfig(request, timeout=TIMEOUT)
    assert channel.next_event().WhichOneof("event") == "order_topic_config_changed"
    assert register(client, channel, identity()).order_topic_config == {"TopicTest": "broker-a:4"}


def test_most_brokers_at_once_are_held_as_unconfirmed_until_they_register_or_an_operator_confirms_their_loss(
    namesrv: NamesrvProcess, client: Client
) -> None:
    with namesrv.connect() as fleet:
        channels = [fleet.open_channel() for _ in range(5)]
        for number, channel in enumerate(channels):
            broker = identity(f"127.0.0.1:1{number}911", name=f"broker-{number}")
            register(fleet, channel, broker, f"Topic{number}")
    eventually(lambda: status(client), lambda now: now.unconfirmed_broker_count == 5)  # its connection is cut
    assert status(client).guard_tripped
    warnings = eventually(
        lambda: namesrv.events("mass_loss_guard"), lambda lines: sum(line["brokers"] for line in lines) == 5
    )
    assert {line["level"] for line in warnings} == {"warning"}
    route = client.route("Topic2")
    assert route is not None
    assert addrs_of(route.broker_datas[0]) == {0: "127.0.0.1:12911"}
    assert list(route.broker_datas[0].unconfirmed_broker_ids) == [0]
    reopened = client.open_channel()
    register(client, reopened, identity("127.0.0.1:12911", name="broker-2"), "Topic2")
    returned = client.route("Topic2")
    assert returned is not None
    assert not returned.broker_datas[0].unconfirmed_broker_ids
    preview = admin_service_pb2.ConfirmBrokerLossRequest(validate_only=True)
    assert client.admin.ConfirmBrokerLoss(preview, timeout=TIMEOUT).removed_broker_count == 4
    assert client.route("Topic0") is not None
    confirmed = client.admin.ConfirmBrokerLoss(
        admin_service_pb2.ConfirmBrokerLossRequest(comment="rack is off"), timeout=TIMEOUT
    )
    assert (confirmed.removed_broker_count, confirmed.blast_radius.topics_vanishing) == (4, 4)
    assert client.route("Topic0") is None
    assert not status(client).guard_tripped
