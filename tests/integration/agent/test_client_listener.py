"""The agent's listener for clients, over real sockets: a thousand channels, killed clients, readers that never read."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from broker_agent_api.v1 import client_service_pb2 as pb
from broker_agent_api.v1.client_service_pb2_grpc import ClientServiceStub
from grpc_health.v1 import health_pb2, health_pb2_grpc

from broker_agent.clients import limits
from broker_agent.clients.client_service import SERVICE, ClientQueries
from broker_agent.clients.managers import ClientManagers
from broker_agent.clients.server import ClientServer
from broker_agent.errors import StartError
from broker_agent.listener import AgentServer
from namesrv_common.grpc_errors import RichError
from tests.integration.agent.client_listener import (
    ANY_PORT,
    BROKER,
    GROUP,
    Channel,
    Listener,
    consumer,
    listener,
    listening,
    stub,
)
from tests.support.patience import TIMEOUT
from tests.support.programs.agents import Agent
from tests.support.programs.processes import NamesrvProcess, Process, eventually

__all__ = ["listener", "stub"]  # pytest finds fixtures by their names in this module

CLIENT_PROCESS = Path(__file__).with_name("client_process.py")


def error_of(call: Callable[[], object]) -> RichError:
    with pytest.raises(grpc.RpcError) as failed:
        call()
    return RichError.of(failed.value)


def client_process(listener: Listener, client_id: str) -> Process:
    return Process([sys.executable, str(CLIENT_PROCESS), str(listener.server.endpoint), client_id, GROUP])


def test_members_are_told_when_one_joins_leaves_or_loses_its_channel(
    listener: Listener, stub: ClientServiceStub
) -> None:
    first = Channel(stub, "first")
    assert list(first.beat(GROUP).changed_consumer_groups) == [GROUP]
    assert first.told() == GROUP
    assert list(first.beat(GROUP).changed_consumer_groups) == []
    second = Channel(stub, "second")
    second.beat(GROUP)
    assert first.told() == GROUP
    answer = stub.ListConsumerIds(pb.ListConsumerIdsRequest(consumer_group=GROUP), timeout=TIMEOUT)
    assert list(answer.client_ids) == ["first", "second"]
    leave = pb.UnregisterClientRequest(client_id="second", channel_id=second.id, consumer_group=GROUP)
    assert stub.UnregisterClient(leave, timeout=TIMEOUT).removed
    assert first.told() == GROUP
    assert listener.ids() == ["first"]
    second.beat(GROUP)
    assert first.told() == GROUP
    second.events.cancel()
    assert first.told() == GROUP
    assert listener.ids() == ["first"]


@pytest.mark.slow
def test_a_thousand_channels_cost_no_threads_and_hold_up_nobody(listener: Listener) -> None:
    connections, channels_each = 20, 50
    with ExitStack() as stack:
        stubs = [stack.enter_context(listener.connect()) for _ in range(connections)]
        held = [Channel(stubs[0], "client-0")]
        threads = threading.active_count()
        held += [Channel(stubs[n % connections], f"client-{n}") for n in range(1, connections * channels_each)]
        # Clients in this process have a thread for each connection; the listener must not have one for each channel.
        assert threading.active_count() - threads <= connections
        for channel in held:
            channel.beat(GROUP)
        assert len(listener.ids()) == 1000
        for channel in held:
            assert channel.told() == GROUP
        with listener.connect() as newcomer:
            held.append(Channel(newcomer, "newcomer"))
            held[-1].beat(GROUP)
            assert "newcomer" in listener.ids()
    eventually(listener.ids, lambda ids: ids == [])
    assert len(listener.managers.channels) == 0


def test_a_killed_client_leaves_at_once_and_the_others_are_told(listener: Listener, stub: ClientServiceStub) -> None:
    peer = Channel(stub, "peer")
    peer.beat(GROUP)
    assert peer.told() == GROUP
    with client_process(listener, "killed") as process:
        process.wait_for("client_ready")
        assert peer.told() == GROUP
        assert listener.ids() == ["killed", "peer"]
        process.kill()
        assert peer.told() == GROUP
        eventually(listener.ids, lambda ids: ids == ["peer"], within_seconds=5)


def test_a_stopped_client_leaves_when_its_pings_go_unanswered() -> None:
    with listening(keepalive_seconds=0.5) as listener, client_process(listener, "stopped") as process:
        process.wait_for("client_ready")
        assert listener.ids() == ["stopped"]
        process.signal(signal.SIGSTOP)
        eventually(listener.ids, lambda ids: ids == [])


def test_a_client_that_never_reads_its_notices_is_cut_with_slow_reader_and_holds_up_nobody() -> None:
    with (
        listening(slow_reader_seconds=0.3) as listener,
        listener.connect(("grpc.http2.bdp_probe", 0)) as slow,  # gRPC would buffer some megabytes otherwise
        listener.connect() as lively,
    ):
        groups = [f"{number:03}-".ljust(limits.MAX_GROUP_NAME_LENGTH, "x") for number in range(300)]
        reader = Channel(slow, "slow")
        for start in range(0, len(groups), 100):
            reader.beat(*groups[start : start + 100])

        def toggle() -> bool:
            """Changes all groups of the reader; says whether it has left them."""
            for start in range(0, len(groups), 100):
                consumers = [consumer(group) for group in groups[start : start + 100]]
                lively.Heartbeat(pb.HeartbeatRequest(client_id="plain", consumer_groups=consumers), timeout=TIMEOUT)
            leave = pb.UnregisterClientRequest(client_id="plain")
            assert lively.UnregisterClient(leave, timeout=TIMEOUT).removed
            return listener.ids(groups[0]) == []

        eventually(toggle)
        with pytest.raises(grpc.RpcError) as cut:
            list(reader.events)
        error = RichError.of(cut.value)
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_READER")


def test_every_channel_is_told_of_the_shutdown() -> None:
    with listening() as listener, listener.connect() as stub:
        channel = Channel(stub, "client")
        listener.server.stop()
        assert channel.next().closing.reason == pb.ClientChannelClosing.REASON_SHUTDOWN
        assert list(channel.events) == []
        listener.server = ClientServer(listener.server.endpoint, ClientManagers(), lambda: BROKER)


def test_a_port_in_use_is_a_clear_error_and_an_unstarted_listener_gives_its_port_back(listener: Listener) -> None:
    with pytest.raises(StartError, match=r"cannot listen on 127\.0\.0\.1"):
        ClientServer(listener.server.endpoint, ClientManagers(), lambda: BROKER)
    unstarted = ClientServer(ANY_PORT, ClientManagers(), lambda: BROKER)
    unstarted.stop()
    ClientServer(unstarted.endpoint, ClientManagers(), lambda: BROKER).stop()


def test_the_listener_answers_health_checks(listener: Listener) -> None:
    with grpc.insecure_channel(str(listener.server.endpoint)) as connection:
        request = health_pb2.HealthCheckRequest(service=SERVICE.full_name)
        answer = health_pb2_grpc.HealthStub(connection).Check(request, timeout=TIMEOUT)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_operators_ask_on_another_listener_while_that_of_clients_is_held_up(listener: Listener) -> None:
    released = threading.Event()
    fast = AgentServer(ANY_PORT, [(SERVICE, ClientQueries(listener.managers))])
    fast.start()
    try:
        with listener.connect() as stub, grpc.insecure_channel(str(fast.endpoint)) as connection:
            channel = Channel(stub)
            channel.beat(GROUP)
            listener.server._runner._loop.call_soon_threadsafe(released.wait, TIMEOUT)
            operator = ClientServiceStub(connection)
            answer = operator.ListConsumerIds(pb.ListConsumerIdsRequest(consumer_group=GROUP), timeout=TIMEOUT)
            assert list(answer.client_ids) == ["client-1"]
            error = error_of(lambda: operator.ListConsumerIds(pb.ListConsumerIdsRequest(consumer_group="x")))
            assert error.reason == "CONSUMER_GROUP_NOT_FOUND"
            error = error_of(lambda: operator.Heartbeat(pb.HeartbeatRequest(client_id="c")))
            assert error.code is grpc.StatusCode.UNIMPLEMENTED
            released.set()
    finally:
        released.set()
        fast.stop()


def test_the_connections_of_a_group_come_with_what_the_group_reads(listener: Listener, stub: ClientServiceStub) -> None:
    held = [Channel(stub, f"client-{number}") for number in range(5)]
    for channel in reversed(held):
        channel.beat(GROUP)
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


def test_a_filter_server_is_in_the_routes_of_its_broker_for_as_long_as_its_channel_is_open(
    namesrv: NamesrvProcess,
) -> None:
    with (
        Agent(str(namesrv.endpoint), "--probe", "none") as agent,
        namesrv.connect() as reader,
        grpc.insecure_channel(agent.wait_for("agent_started")["listening_on"]) as connection,
    ):
        channel = Channel(ClientServiceStub(connection), "filter server")
        request = pb.RegisterFilterServerRequest(filter_server_addr="127.0.0.1:30000", channel_id=channel.id)
        answer = channel.stub.RegisterFilterServer(request, timeout=TIMEOUT)
        assert (answer.broker_name, answer.broker_id) == ("broker-a", 0)
        eventually(reader.route, lambda route: "127.0.0.1:30000" in str(route))
        channel.events.cancel()
        eventually(reader.route, lambda route: route is not None and "127.0.0.1:30000" not in str(route))
