"""Who may call what of name servers and agents, over which connection, and permits and authorities that change."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from broker_agent_api.v1 import broker_agent_service_pb2 as agent_pb
from broker_agent_api.v1 import client_service_pb2 as clients_pb
from broker_agent_api.v1 import topic_config_service_pb2 as topics_pb
from broker_agent_api.v1.client_service_pb2_grpc import ClientServiceStub
from google.protobuf.message import Message
from namesrv_api.v1 import registration_service_pb2, route_service_pb2
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1.route_data_pb2 import BrokerIdentity, QueueData

from namesrv.grpc_api.handlers import REFLECTION_NAMES
from namesrv_common.client.channels import ClientFiles, ClientSecurity, check_health
from namesrv_common.grpc_errors import RichError
from tests.support.patience import TIMEOUT
from tests.support.programs.agents import Agent, AgentClient
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.registrations import data_version, identity, registration
from tests.support.secured.certificates import Authority
from tests.support.secured.fleet import (
    CALLERS,
    LIVE_SECONDS,
    REGISTRATION,
    Place,
    administer,
    connected,
    lookup,
    outcome,
    register,
)

OTHER = identity("127.0.0.1:10922", name="broker-b")

MATRIX = {
    "client": {"look up"},
    "broker": {"look up", "register", "open a channel"},
    "admin": {"look up", "administer"},
}
"""What each caller may do that shows who it is."""


def outcomes(client: Client) -> dict[str, str]:
    """What each kind of call ends with."""
    diagnostics, channel = outcome(client.told_diagnostics), outcome(client.open_channel)
    assert diagnostics == lookup(client)
    return {
        "look up": diagnostics,
        "register": register(client),
        "register another": register(client, broker=OTHER),
        "open a channel": channel,
        "administer": administer(client),
    }


@pytest.mark.parametrize("kind", ["mTLS", "token"])
def test_who_may_do_what_also_while_the_permits_file_is_broken(place: Place, kind: str) -> None:
    with NamesrvProcess(*place.flags(kind)) as server:
        for caller in CALLERS:
            with connected(server.endpoint, place.files(kind, caller)) as client:
                found = outcomes(client)
            assert {name for name, answer in found.items() if answer == "OK"} == MATRIX[caller]
            assert {answer for name, answer in found.items() if name not in MATRIX[caller]} == {"NOT_PERMITTED"}
        place.permits.write_text("{")
        refused = eventually(lambda: server.events("permits_file_refused"), within_seconds=LIVE_SECONDS)
        assert str(place.permits) in refused[0]["problem"]
        with connected(server.endpoint, place.files(kind, "admin")) as admin:
            assert administer(admin) == "OK", "what the file had before is in force"


def about(who: BrokerIdentity) -> list[tuple[str, Message]]:
    """Each call that names a broker and its address."""
    return [
        ("RegisterBroker", registration(broker=who)),
        ("UnregisterBroker", pb.UnregisterBrokerRequest(broker=who)),
        ("QueryDataVersion", pb.QueryDataVersionRequest(broker=who, data_version=data_version())),
        ("BrokerHeartbeat", pb.BrokerHeartbeatRequest(broker=who)),
    ]


def test_a_brokers_identity_cannot_touch_another_broker_in_any_call(place: Place) -> None:
    mine, others = "DefaultCluster/broker-a@127.0.0.1", "DefaultCluster/broker-b"
    place.permit(broker={"register": [mine]}, admin={"register": [others]})
    victim = identity("127.0.0.1:10922", name="broker-b")
    # The name is its own, the address the other's: taking it would remove the other one.
    disguised = identity("127.0.0.1:10922")
    with (
        NamesrvProcess(*place.flags("mTLS"), "--scan-not-active-broker-interval-millis", "0") as server,
        connected(server.endpoint, place.files("mTLS", "admin")) as other,
        connected(server.endpoint, place.files("mTLS", "broker")) as broker,
    ):
        channel = other.open_channel()
        assert register(other, broker=victim, channel_id=channel.id) == "OK"
        channel_of_own = broker.open_channel()
        assert register(broker, channel_id=channel_of_own.id) == "OK"
        queues = [
            QueueData(cluster_name="DefaultCluster", broker_name=name, read_queue_nums=1, write_queue_nums=1, perm=6)
            for name in ("broker-a", "broker-b")
        ]
        requests: list[tuple[str, Message]] = [
            *(*about(victim), *about(disguised)),
            ("RegisterTopic", pb.RegisterTopicRequest(topic="Mine", queue_datas=queues)),
            ("HandOverChannel", pb.HandOverChannelRequest(channel_id=channel.id)),
        ]
        for call, request in requests:
            error = broker.failure(REGISTRATION + call, request)
            assert (error.reason, error.code) == ("NOT_PERMITTED", grpc.StatusCode.PERMISSION_DENIED), call
            assert error.metadata["names"] == "DefaultCluster/broker-b", call
            assert error.metadata["principal"] == "broker"
        for call, request in about(identity("127.0.0.2:10911")):  # its own name, at an address that is not
            error = broker.failure(REGISTRATION + call, request)
            expected = ("NOT_PERMITTED", "DefaultCluster/broker-a", "127.0.0.2:10911")
            assert (error.reason, error.metadata["names"], error.metadata["address"]) == expected, call
        with_ha = registration(channel_id=channel_of_own.id)
        with_ha.ha_server_addr = "127.0.0.2:10912"  # it is about its own group only
        broker.registration.RegisterBroker(with_ha, timeout=TIMEOUT)
        held = {
            (row.broker_name, row.broker_addr) for message in other.snapshot() for row in message.chunk.live_brokers
        }
        assert held == {("broker-a", "127.0.0.1:10911"), ("broker-b", "127.0.0.1:10922")}
        broker.registration.HandOverChannel(pb.HandOverChannelRequest(channel_id=channel_of_own.id), timeout=TIMEOUT)


def test_health_and_reflection_stay_open(place: Place) -> None:
    with NamesrvProcess(*place.flags("TLS")) as server:
        files = place.files("TLS", None)
        assert check_health(server.endpoint, "", 20, ClientSecurity(files)) is None
        with connected(server.endpoint, files) as client:
            for service in REFLECTION_NAMES:
                reflection = client.connection.stream_stream(f"/{service}/ServerReflectionInfo", None, None)
                answers = reflection(iter([b"\x3a\x00"]), timeout=TIMEOUT)  # list_services
                assert b"namesrv_api.v1.RouteService" in next(iter(answers))


WATCH = route_service_pb2.WatchTopicRoutesRequest(topics=["TopicTest"])
FOLLOW = route_service_pb2.StreamRouteSnapshotRequest(follow=True)
CHANNEL = registration_service_pb2.OpenChannelRequest(holder="test")

STREAMS: dict[str, tuple[str, Callable[[Client], Any]]] = {
    "watch": ("client", lambda client: client.routes.WatchTopicRoutes(iter([WATCH]), timeout=LIVE_SECONDS)),
    "follow": ("client", lambda client: client.routes.StreamRouteSnapshot(FOLLOW, timeout=LIVE_SECONDS)),
    "channel": ("broker", lambda client: client.registration.OpenChannel(CHANNEL, timeout=LIVE_SECONDS)),
}
"""By name: the caller, and the call that opens the stream."""

MANY = 40
"""Connections whose certificates an engine thread cannot check in one pass."""


def opened(client: Client, name: str) -> Any:
    """A stream of that name, once it has begun; a channel has the broker."""
    stream = STREAMS[name][1](client)
    first = next(stream)
    if name == "channel":
        assert register(client, channel_id=first.opened.channel_id) == "OK"
    return stream


def error_of(stream: Any) -> RichError:
    """The error that an open stream ends with."""
    with pytest.raises(grpc.RpcError) as raised:
        for _ in stream:
            pass
    return RichError.of(raised.value)


@pytest.mark.parametrize(
    ("lost", "reason", "group"),
    [
        ({"token_sha256": []}, "NOT_AUTHENTICATED", None),
        ({"look_up": False, "register": ["DefaultCluster/broker-b"]}, "NOT_PERMITTED", "DefaultCluster/broker-a"),
    ],
)
def test_streams_end_when_their_caller_loses_token_or_right(
    place: Place, lost: dict[str, Any], reason: str, group: str | None
) -> None:
    with NamesrvProcess(*place.flags("token")) as server, ExitStack() as stack:
        streams = {
            name: opened(stack.enter_context(connected(server.endpoint, place.files("token", caller))), name)
            for name, (caller, _) in STREAMS.items()
        }
        place.permit(**dict.fromkeys(CALLERS, lost))
        errors = {name: error_of(stream) for name, stream in streams.items()}
        assert {name: error.reason for name, error in errors.items()} == dict.fromkeys(STREAMS, reason)
        assert errors["channel"].metadata.get("names") == group
        assert server.wait_for("open_calls_ended")["count"] == len(STREAMS)
        server.wait_for("broker_removed")


def test_streams_of_an_authority_that_is_replaced_end(place: Place, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other", "Other CA")
    authorities = tmp_path / "authorities.pem"
    authorities.write_bytes(place.authority.path.read_bytes() + other.path.read_bytes())
    pair = other.sign("admin of the other", ["admin.example"])
    flags = (*place.flags("TLS"), "--tls-client-ca", str(authorities))
    with (
        NamesrvProcess(*flags) as server,
        connected(server.endpoint, ClientFiles(place.authority.path, *pair)) as admin,
        ExitStack() as stack,
    ):
        clients = [stack.enter_context(connected(server.endpoint, place.files("mTLS", "client"))) for _ in range(MANY)]
        ended, kept = [opened(client, "watch") for client in clients], opened(admin, "watch")
        authorities.write_bytes(other.path.read_bytes())
        for stream in ended:
            error = error_of(stream)
            assert (error.code, error.reason) == (grpc.StatusCode.UNAUTHENTICATED, "NOT_AUTHENTICATED")
        assert server.wait_for("client_certificate_revoked")["peer"].startswith("ipv4:127.0.0.1:")
        assert administer(admin) == "OK"
        kept.cancel()


# Agents, on both of their listeners.

LET_IN = {"OK", "CONSUMER_GROUP_NOT_FOUND"}
"""What a call ends with whose caller may make it."""


def client_ca(place: Place, kind: str) -> tuple[str, ...]:
    """The flags by which an agent of a kind knows its callers."""
    return ("--tls-client-ca", str(place.authority.path)) if kind == "mTLS" else ()


def secured_agent(namesrv: NamesrvProcess, tmp_path: Path, *flags: str, **options: Any) -> Agent:
    """An agent that owns its topics."""
    topics = tmp_path / f"topics-{options.get('broker_id', 0)}.json"
    return Agent(str(namesrv.endpoint), "--topics-mode", "own", *flags, topics=topics, **options)


def outcomes_of_agent(agent: Agent, files: ClientFiles) -> dict[str, str]:
    """What each kind of call ends with, on either listener."""
    with ExitStack() as stack:
        fast, usual = (
            stack.enter_context(connected(endpoint, files)).connection for endpoint in (agent.endpoint, agent.ordinary)
        )
        operator, client, queries = AgentClient(fast), ClientServiceStub(usual), ClientServiceStub(fast)
        topic = topics_pb.TopicConfig(topic="Orders", read_queue_nums=1, write_queue_nums=1)
        members = clients_pb.ListConsumerIdsRequest(consumer_group="g")
        permission = agent_pb.UpdateBrokerPermissionRequest(broker_permission=6)
        filter_server = clients_pb.RegisterFilterServerRequest(filter_server_addr="127.0.0.1:1")
        calls: dict[str, tuple[Callable[..., Any], object]] = {
            "read": (operator.agent.GetAgentStatus, agent_pb.GetAgentStatusRequest()),
            "topics": (operator.topics.CreateOrUpdateTopic, topics_pb.CreateOrUpdateTopicRequest(topic_config=topic)),
            "operate": (operator.agent.UpdateBrokerPermission, permission),
            "members, fast": (queries.ListConsumerIds, members),
            "members": (client.ListConsumerIds, members),
            "heartbeat": (client.Heartbeat, clients_pb.HeartbeatRequest(client_id="c")),
            "filter server": (client.RegisterFilterServer, filter_server),
        }
        found = {name: outcome(partial(call, request, timeout=TIMEOUT)) for name, (call, request) in calls.items()}
        channel = client.OpenClientChannel(clients_pb.OpenClientChannelRequest(), timeout=TIMEOUT)
        return found | {"replicate": outcome(operator.table), "channel": outcome(lambda: next(iter(channel)))}


OF_AGENTS = {
    "client": {"members, fast", "members", "heartbeat", "channel"},
    "broker": {"replicate", "filter server"},
    "admin": {"read", "topics", "operate", "replicate", "members, fast", "members"},
}
"""The calls that each caller may make."""


@pytest.mark.parametrize("kind", ["mTLS", "token"])
def test_who_may_have_an_agent_do_what_and_until_when(
    namesrv: NamesrvProcess, place: Place, tmp_path: Path, kind: str
) -> None:
    flags = (*place.agent_flags("broker")[2:], *client_ca(place, kind), "--permits-file", str(place.permits))
    with (
        secured_agent(namesrv, tmp_path, *flags) as agent,
        connected(agent.ordinary, place.files(kind, "client")) as client,
    ):
        seen = {caller: outcomes_of_agent(agent, place.files(kind, caller)) for caller in CALLERS}
        for caller, found in seen.items():
            assert {name for name, answer in found.items() if answer in LET_IN} == OF_AGENTS[caller]
            assert {answer for name, answer in found.items() if name not in OF_AGENTS[caller]} == {"NOT_PERMITTED"}
        assert eventually(lambda: agent.events("call_refused"))
        request = clients_pb.OpenClientChannelRequest()
        channel: Any = ClientServiceStub(client.connection).OpenClientChannel(request, timeout=LIVE_SECONDS)
        next(channel)
        place.permit(client={"agents": {}})
        assert error_of(channel).reason == "NOT_PERMITTED"


@pytest.mark.parametrize("kind", ["mTLS", "token"])
def test_a_slave_copies_its_masters_topics_by_certificate_or_token(place: Place, tmp_path: Path, kind: str) -> None:
    token = str(place.tokens["broker"])
    shown = ("--token-file", token, "--master-token-file", token) if kind == "token" else ()
    flags = (*place.agent_flags("broker"), *shown, "--permits-file", str(place.permits))
    with NamesrvProcess(*place.flags(kind)) as secured:
        master_flags = (*flags, *client_ca(place, kind), "--ha-server-addr", "127.0.0.1:10912")
        with secured_agent(secured, tmp_path, *master_flags) as master:
            slave_flags = (*flags, "--master-agent", str(master.endpoint))
            other = {"broker_id": 1, "broker_addr": "127.0.0.1:10921"}
            with secured_agent(secured, tmp_path, *slave_flags, **other) as slave:
                eventually(lambda: slave.events("topics_copied"), within_seconds=30)
