"""The agent's listener for clients, over real sockets: members, and peers without an answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any, cast

import grpc
import pytest
from broker_agent_api.v1 import client_service_pb2 as pb
from broker_agent_api.v1.client_service_pb2_grpc import ClientServiceStub
from grpc_health.v1 import health_pb2, health_pb2_grpc

from broker_agent.clients import limits
from broker_agent.clients.client_service import SERVICE, ClientServer
from broker_agent.clients.managers import ClientManagers
from namesrv_common.endpoints import Endpoint
from tests.support.agents import STATE
from tests.support.fakes.agent_clients import consumer
from tests.support.hostile.frames import OF_LISTENERS, call, hello
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import eventually

ANY_PORT = Endpoint("127.0.0.1", 0)
GROUP = "consumers"


class Listener:
    """The listener with its managers, in this process, and a client of it."""

    def __init__(self) -> None:
        self.managers = ClientManagers()
        self.server = ClientServer(ANY_PORT, self.managers, lambda: STATE)
        self.server.start()
        self.connection = grpc.insecure_channel(str(self.server.endpoint))
        self.stub = ClientServiceStub(self.connection)

    def ids(self) -> list[str]:
        with self.managers.lock:
            return self.managers.consumers.client_ids(GROUP)

    def close(self) -> None:
        self.connection.close()
        self.server.stop()


@pytest.fixture
def listener() -> Iterator[Listener]:
    with closing(Listener()) as started:
        yield started


class Channel:
    """A client channel that a test holds."""

    def __init__(self, stub: ClientServiceStub, client_id: str) -> None:
        self.stub = stub
        self.client_id = client_id
        self.events = cast(Any, stub.OpenClientChannel(pb.OpenClientChannelRequest()))
        self.id = str(next(self.events).opened.channel_id)

    def beat(self) -> list[str]:
        """Sends a heartbeat in the group. Returns the groups that it changed."""
        request = pb.HeartbeatRequest(client_id=self.client_id, channel_id=self.id, consumer_groups=[consumer(GROUP)])
        return list(self.stub.Heartbeat(request, timeout=TIMEOUT).changed_consumer_groups)

    def told(self) -> str:
        return str(next(self.events).consumer_ids_changed.consumer_group)


def test_members_are_told_when_one_joins_or_leaves(listener: Listener) -> None:
    stub = listener.stub
    first = Channel(stub, "first")
    assert first.beat() == [GROUP]
    assert first.told() == GROUP
    assert first.beat() == []
    second = Channel(stub, "second")
    second.beat()
    assert first.told() == GROUP
    answer = stub.ListConsumerIds(pb.ListConsumerIdsRequest(consumer_group=GROUP), timeout=TIMEOUT)
    assert list(answer.client_ids) == ["first", "second"]
    leave = pb.UnregisterClientRequest(client_id="second", channel_id=second.id, consumer_group=GROUP)
    assert stub.UnregisterClient(leave, timeout=TIMEOUT).removed
    assert first.told() == GROUP
    assert listener.ids() == ["first"]
    second.beat()
    assert first.told() == GROUP
    second.events.cancel()
    assert first.told() == GROUP
    assert listener.ids() == ["first"]


def test_a_client_that_answers_no_ping_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "KEEPALIVE_SECONDS", 0.5)
    with closing(Listener()) as listener, socket.create_connection(listener.server.endpoint) as peer:
        peer.sendall(hello() + call(OF_LISTENERS["clients"].watch, 1))
        eventually(lambda: len(listener.managers.channels) == 1)
        eventually(lambda: len(listener.managers.channels) == 0)


def test_a_silent_client_leaves_by_a_scan_of_the_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCAN_SECONDS", 0.05)
    monkeypatch.setattr(limits, "CLIENT_SILENCE_SECONDS", 0.1)
    with closing(Listener()) as listener:
        heartbeat = pb.HeartbeatRequest(client_id="plain", consumer_groups=[consumer(GROUP)])
        assert listener.stub.Heartbeat(heartbeat, timeout=TIMEOUT).changed_consumer_groups == [GROUP]
        eventually(lambda: listener.ids() == [])


def test_every_channel_is_told_of_the_shutdown(listener: Listener) -> None:
    channel = Channel(listener.stub, "client")
    health = health_pb2_grpc.HealthStub(listener.connection)
    answer = health.Check(health_pb2.HealthCheckRequest(service=SERVICE.full_name), timeout=TIMEOUT)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    listener.server.stop()
    assert next(channel.events).closing.reason == pb.ClientChannelClosing.REASON_SHUTDOWN
    assert list(channel.events) == []
    listener.server = ClientServer(listener.server.endpoint, ClientManagers(), lambda: STATE)


def test_the_connections_of_a_group_come_with_what_the_group_reads(listener: Listener) -> None:
    stub = listener.stub
    held = [Channel(stub, f"client-{number}") for number in range(5)]
    for channel in reversed(held):
        channel.beat()
    stub.Heartbeat(pb.HeartbeatRequest(client_id="plain", producer_groups=[pb.ProducerData(group_name="p")]))
    (plain,) = stub.ListProducerConnections(pb.ListProducerConnectionsRequest(producer_group="p")).connections
    assert (plain.client_id, plain.has_channel) == ("plain", False)
    request = pb.ListConsumerConnectionsRequest(consumer_group=GROUP)
    answer = stub.ListConsumerConnections(request, timeout=TIMEOUT)
    assert [connection.client_id for connection in answer.connections] == [channel.client_id for channel in held]
    assert [subscription.topic for subscription in answer.subscriptions] == ["TopicTest"]
    assert answer.consume_type == pb.CONSUME_TYPE_PASSIVELY
    connection = answer.connections[0]
    assert connection.client_addr.startswith("127.0.0.1:")
    assert connection.has_channel
    now_millis = listener.managers.timing.wall_clock() * 1000
    assert now_millis - 60_000 < connection.last_heartbeat_at_millis <= now_millis
