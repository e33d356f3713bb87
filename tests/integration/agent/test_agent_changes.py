"""A running agent from start to end: changes of its broker, topics, role or name servers, and its clients."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from broker_agent_api.v1 import broker_agent_service_pb2 as agent_pb
from broker_agent_api.v1 import client_service_pb2 as client_pb
from broker_agent_api.v1.client_service_pb2_grpc import ClientServiceStub
from grpc_health.v1 import health_pb2, health_pb2_grpc
from namesrv_api.v1.route_data_pb2 import REMOVAL_REASON_UNREGISTERED
from structlog.testing import capture_logs

from broker_agent.broker_probe import BrokerProbe
from broker_agent.clients import limits
from broker_agent.clients.client_service import SERVICE as CLIENT_SERVICE
from broker_agent.errors import StartError
from broker_agent.listener import SERVICE_NAME
from broker_agent.timing import LONGEST_SECONDS
from broker_agent.topics.table import TopicConfig
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import RichError
from tests.support.agents import Agent, StartAgent, StartNameServer, put_topic, settings_of
from tests.support.fakes import scripted_namesrv
from tests.support.fakes.agent_clients import consumer
from tests.support.fakes.registering_name_server import FakeNameServer
from tests.support.hostile.frames import OF_LISTENERS, call, hello
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import TOPICS, eventually
from tests.support.virtual_clock import VirtualClock, agent_timing

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def health_of(listener: Endpoint, service: str = "") -> int:
    with grpc.insecure_channel(str(listener)) as connection:
        request = health_pb2.HealthCheckRequest(service=service)
        return int(health_pb2_grpc.HealthStub(connection).Check(request, timeout=TIMEOUT).status)


def test_registrations_are_compressed_if_so_set(
    name_server: StartNameServer, agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_plain = ("grpc.compression_enabled_algorithms_bitset", 1)
    monkeypatch.setattr(scripted_namesrv, "OPTIONS", [*scripted_namesrv.OPTIONS, only_plain])
    with agent(name_server(), compressed_register=True) as running:
        assert "gzip" in running.status().targets[0].last_error


def test_health_lasts_from_a_late_registration_to_the_unregistration(
    name_server: StartNameServer, agent: StartAgent
) -> None:
    late = name_server("not yet")
    late.stop()
    with agent(late) as running:
        listener = running.controller.fast_listening_on
        assert health_of(listener) == health_of(listener, SERVICE_NAME) == NOT_SERVING
        late = name_server("late", late.endpoint.port)
        late.wait_until(lambda: len(late.registrations) == 1)
        with grpc.insecure_channel(str(listener)) as connection:
            watch = health_pb2_grpc.HealthStub(connection).Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT)
            assert next(answer.status for answer in watch if answer.status == SERVING)
            assert health_of(listener, SERVICE_NAME) == SERVING
            late.hang()
            stopping = threading.Thread(target=running.controller.stop)
            stopping.start()
            assert next(watch).status == NOT_SERVING
            assert list(late.open_channels) == ["late-1"], "it is not unregistered yet"
            late.wait_until(lambda: len(late.unregistrations) == 1)
            late.answer_again()
        stopping.join(TIMEOUT)


def test_a_step_of_the_stop_that_fails_stops_no_other(
    server: FakeNameServer, agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BrokerProbe, "stop", lambda _: 1 // 0)
    with capture_logs() as lines, agent(server):
        pass
    assert len(server.unregistrations) == 1
    assert [line["step"] for line in lines if line["event"] == "shutdown_step_failed"] == ["probe"]
    assert lines[-1]["event"] == "agent_stopped"


def test_the_status_shows_broker_and_name_servers(name_server: StartNameServer, agent: StartAgent) -> None:
    up, down = name_server("up"), name_server("down")
    down.stop()
    up.master_addr, up.ha_server_addr = "10.0.0.9:10911", "10.0.0.9:10912"
    followed = {"topics_mode": "follow", "topics": TOPICS}
    impatient = {"register_name_server_period_millis": 1_000}
    with agent(up, down, broker_id=1, label=["rack=r1"], **followed, **impatient) as running:
        status = running.status()
    assert (status.cluster_name, status.broker_name, status.broker_id) == ("DefaultCluster", "broker-a", 1)
    assert (status.topic_count, status.data_version.counter) == (11, 3)
    assert status.data_version.timestamp_millis == 1651398321850
    assert not status.HasField("ha_server_addr")
    assert status.broker_probe == agent_pb.BROKER_PROBE_STATE_UNSPECIFIED  # --probe none
    assert dict(status.labels) == {"rack": "r1"}
    assert (status.master_addr, status.master_ha_server_addr) == ("10.0.0.9:10911", "10.0.0.9:10912")
    assert [(target.namesrv_name, target.registered) for target in status.targets] == [("up", True), ("", False)]
    assert "Connection refused" in status.targets[1].last_error


@pytest.mark.parametrize("setting", ["listen", "fast_listen", "metrics_listen"])
def test_a_port_in_use_is_a_clear_error(server: FakeNameServer, setting: str) -> None:
    taken = server.endpoint
    with pytest.raises(StartError) as raised:
        # Unless it is said, the fast listener's port is two below the other's, which may be taken as well.
        Agent(settings_of(**{"fast_listen": "127.0.0.1:0", setting: str(taken)}))
    assert str(raised.value) == f"setting {setting}: cannot listen on {taken}: Address already in use"


def test_a_forced_agent_sends_all_each_period_and_a_hundred_changes_once(
    server: FakeNameServer, agent: StartAgent
) -> None:
    clock = VirtualClock()
    with agent(server, timing=agent_timing(clock), force_register=True) as running:
        running.rounds_are_due(2)
        server.wait_until(lambda: len(server.registrations) == 3)
        for number in range(100):
            put_topic(running.topics, TopicConfig(f"T{number}", 4, 4, 6))
            clock.advance(0.01)
        clock.advance(LONGEST_SECONDS)
        running.topics.on_change(running.topics.table)  # wakes the thread: no time passes for it
        server.wait_until(lambda: len(server.registrations) == 4)
        eventually(lambda: running.status().targets[0].increment_count == 1)
    *forced, changes = server.registrations
    assert [request.HasField("base_version") for request in forced] == [False] * 3
    assert changes.base_version == forced[-1].data_version
    assert len(changes.topic_configs) == 100
    assert server.queries == []


def test_a_new_role_follows_the_call_in_flight_and_takes_its_id(server: FakeNameServer, agent: StartAgent) -> None:
    server.master_addr, other = "10.0.0.9:10911", "10.0.0.8:10911"
    with agent(server, broker_id=1) as running:
        assert running.status().master_addr == server.master_addr
        server.master_addr, server.version_held, server.members = None, None, {1: other, 2: other}
        server.hang()
        running.rounds_are_due(1)
        server.wait_until(lambda: len(server.registrations) == 2)
        change = running.calls.ChangeBrokerRole.future(agent_pb.ChangeBrokerRoleRequest(broker_id=2), timeout=TIMEOUT)
        eventually(lambda: running.status().broker_id == 2)
        server.answer_again()
        assert change.result().accepted_count == 1
        assert running.status().master_addr == ""
    assert server.members == {2: "10.0.0.1:10911"}
    assert [request.broker.broker_id for request in server.unregistrations] == [2]


def test_a_bad_change_names_its_field_and_changes_nothing(server: FakeNameServer, agent: StartAgent) -> None:
    with agent(server) as running:
        role, permission = running.calls.ChangeBrokerRole, running.calls.UpdateBrokerPermission
        bad: list[tuple[Any, Any, str]] = [
            (role, agent_pb.ChangeBrokerRoleRequest(), "broker_id"),
            (role, agent_pb.ChangeBrokerRoleRequest(broker_id=-1), "broker_id"),
            (role, agent_pb.ChangeBrokerRoleRequest(broker_id=2, state_version=-1), "state_version"),
            (permission, agent_pb.UpdateBrokerPermissionRequest(), "broker_permission"),
            (permission, agent_pb.UpdateBrokerPermissionRequest(broker_permission=8), "broker_permission"),
            (permission, agent_pb.UpdateBrokerPermissionRequest(broker_permission=-1), "broker_permission"),
        ]
        for call_, request, field in bad:
            with pytest.raises(grpc.RpcError) as refused:
                call_(request, timeout=TIMEOUT)
            assert [violation.field for violation in RichError.of(refused.value).violations] == [field], request
        status = running.status()
    assert (status.broker_id, status.broker_permission) == (0, 6)
    assert len(server.registrations) == 1


def test_the_broker_is_registered_with_exactly_the_list(name_server: StartNameServer, agent: StartAgent) -> None:
    first, second, third = (name_server(name) for name in ("one", "two", "three"))
    with agent(first, second) as running:
        listed = (second.endpoint, third.endpoint)
        running.list.take_names(listed)
        third.wait_until(lambda: len(third.registrations) == 1)
        first.wait_until(lambda: len(first.unregistrations) == 1)
        first.wait_until(lambda: not first.open_channels)
        targets = [target.endpoint for target in running.status().targets]
        running.list.take_names(listed)
    assert targets == [str(endpoint) for endpoint in listed]
    assert [server.unregistrations[0].reason for server in (first, second, third)] == [REMOVAL_REASON_UNREGISTERED] * 3
    assert len(second.registrations) == 1
    assert [len(server.unregistrations) for server in (first, second, third)] == [1, 1, 1]


def test_filter_servers_are_registered_as_they_come_and_go(server: FakeNameServer, agent: StartAgent) -> None:
    with agent(server) as running, clients_of(running) as stub:
        channel = Channel(stub, "filter")
        stub.RegisterFilterServer(
            client_pb.RegisterFilterServerRequest(filter_server_addr="10.0.0.7:30911", channel_id=channel.id),
            timeout=TIMEOUT,
        )
        server.wait_until(lambda: len(server.registrations) == 2)
        assert list(running.status().filter_servers) == ["10.0.0.7:30911"]
        channel.events.cancel()
        server.wait_until(lambda: len(server.registrations) == 3)
    lists = [list(request.filter_servers.filter_servers) for request in server.registrations]
    assert [len(request.topic_configs) for request in server.registrations[1:]] == [0, 0]
    assert lists == [[], ["10.0.0.7:30911"], []]
    assert all(request.HasField("filter_servers") for request in server.registrations)


def test_ordered_topics_of_a_name_server_are_registered_so(server: FakeNameServer, agent: StartAgent) -> None:
    server.order_topic_config = {"T": "broker-a:4", "unknown": "broker-a:4"}
    with agent(server) as running:
        put_topic(running.topics, TopicConfig("T", 4, 4, 6))
        # The answer to this registration says so; that changes the table, which makes another one.
        server.wait_until(lambda: len(server.registrations) >= 3)
        table = running.topics.table
    assert [topic.topic_name for topic in table.topics if topic.order] == ["T"]


# The listener for clients: members, and peers without an answer.

GROUP = "consumers"


@contextmanager
def clients_of(agent: Agent) -> Iterator[ClientServiceStub]:
    with grpc.insecure_channel(str(agent.controller.listening_on)) as connection:
        yield ClientServiceStub(connection)


class Channel:
    """A client channel that a test holds."""

    def __init__(self, stub: Any, client_id: str) -> None:
        self.stub = stub
        self.client_id = client_id
        self.events = stub.OpenClientChannel(client_pb.OpenClientChannelRequest(), timeout=TIMEOUT)
        self.id = str(next(self.events).opened.channel_id)

    def beat(self) -> list[str]:
        """Sends a heartbeat in the group. Returns the groups that it changed."""
        request = client_pb.HeartbeatRequest(
            client_id=self.client_id, channel_id=self.id, consumer_groups=[consumer(GROUP)]
        )
        return list(self.stub.Heartbeat(request, timeout=TIMEOUT).changed_consumer_groups)

    def told(self) -> str:
        return str(next(self.events).consumer_ids_changed.consumer_group)


def members(stub: ClientServiceStub) -> list[str]:
    request = client_pb.ListConsumerIdsRequest(consumer_group=GROUP)
    return list(stub.ListConsumerIds(request, timeout=TIMEOUT).client_ids)


def test_clients_are_listed_and_told_of_members_and_the_shutdown(server: FakeNameServer, agent: StartAgent) -> None:
    with agent(server) as running, clients_of(running) as stub:
        first, second = Channel(stub, "b"), Channel(stub, "a")
        assert first.beat() == [GROUP]
        assert first.told() == GROUP
        assert first.beat() == []
        second.beat()
        assert first.told() == GROUP
        assert members(stub) == ["a", "b"]
        answer = stub.ListConsumerConnections(client_pb.ListConsumerConnectionsRequest(consumer_group=GROUP))
        leave = client_pb.UnregisterClientRequest(client_id="a", channel_id=second.id, consumer_group=GROUP)
        assert stub.UnregisterClient(leave, timeout=TIMEOUT).removed
        assert first.told() == GROUP
        assert members(stub) == ["b"]
        second.beat()
        assert first.told() == GROUP
        second.events.cancel()
        assert first.told() == GROUP
        assert members(stub) == ["b"]
        producer = client_pb.ProducerData(group_name="p")
        stub.Heartbeat(client_pb.HeartbeatRequest(client_id="plain", producer_groups=[producer]))
        (plain,) = stub.ListProducerConnections(
            client_pb.ListProducerConnectionsRequest(producer_group="p")
        ).connections
        assert (plain.client_id, plain.has_channel) == ("plain", False)
        assert health_of(running.controller.listening_on, CLIENT_SERVICE.full_name) == SERVING
        running.controller.stop()
        assert next(first.events).closing.reason == client_pb.ClientChannelClosing.REASON_SHUTDOWN
        assert list(first.events) == []
    assert [connection.client_id for connection in answer.connections] == ["a", "b"]
    assert [subscription.topic for subscription in answer.subscriptions] == ["TopicTest"]
    assert answer.consume_type == client_pb.CONSUME_TYPE_PASSIVELY
    connection = answer.connections[0]
    assert connection.client_addr.startswith("127.0.0.1:")
    assert connection.has_channel
    assert 0 <= time.time() - connection.last_heartbeat_at_millis / 1000 < 60


def test_clients_that_answer_no_ping_are_cut_and_silent_ones_scanned_away(
    server: FakeNameServer, agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit, seconds in (("KEEPALIVE_SECONDS", 0.5), ("SCAN_SECONDS", 0.05), ("CLIENT_SILENCE_SECONDS", 0.1)):
        monkeypatch.setattr(limits, limit, seconds)
    with (
        agent(server) as running,
        clients_of(running) as stub,
        socket.create_connection(running.controller.listening_on, TIMEOUT) as peer,
    ):
        (closing,) = Channel(stub, "silent").events
        assert closing.closing.reason == client_pb.ClientChannelClosing.REASON_IDLE
        peer.sendall(hello() + call(OF_LISTENERS["clients"].watch, 1))
        while peer.recv(1_000):
            pass
