"""Who may have an agent do what, on both of its listeners: real agents, certificates and tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

from namesrv_common.client.channels import ClientFiles
from namesrv_common.grpc_errors import RichError
from tests.support.patience import TIMEOUT
from tests.support.programs.agents import Agent, AgentClient
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.secured.fleet import CALLERS, LIVE_SECONDS, Place, connected, outcome

LET_IN = {"OK", "CONSUMER_GROUP_NOT_FOUND"}
"""What a call ends with whose caller may make it."""


@pytest.fixture(scope="module")
def namesrv() -> Iterator[NamesrvProcess]:
    """A name server that lets everybody in: this is about agents."""
    with NamesrvProcess() as server:
        yield server


def listener_flags(place: Place, kind: str) -> tuple[str, ...]:
    """The flags of an agent of a kind."""
    pair = place.agent_flags("broker")[2:]
    return (*pair, "--tls-client-ca", str(place.authority.path)) if kind == "mTLS" else pair


def secured_agent(namesrv: NamesrvProcess, tmp_path: Path, *flags: str, **options: Any) -> Agent:
    """An agent that owns its topics."""
    topics = tmp_path / f"topics-{options.get('broker_id', 0)}.json"
    return Agent(str(namesrv.endpoint), "--topics-mode", "own", *flags, topics=topics, **options)


def outcomes(agent: Agent, files: ClientFiles | None) -> dict[str, str]:
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


MATRIX = {
    "client": {"members, fast", "members", "heartbeat", "channel"},
    "broker": {"replicate", "filter server"},
    "admin": {"read", "topics", "operate", "replicate", "members, fast", "members"},
}
"""The calls that each caller may make."""


@pytest.mark.parametrize("kind", ["mTLS", "token"])
def test_who_may_have_an_agent_do_what_and_until_when(
    namesrv: NamesrvProcess, place: Place, tmp_path: Path, kind: str
) -> None:
    flags = (*listener_flags(place, kind), "--permits-file", str(place.permits))
    with (
        secured_agent(namesrv, tmp_path, *flags) as agent,
        connected(agent.ordinary, place.files(kind, "client")) as client,
    ):
        seen = {caller: outcomes(agent, place.files(kind, caller)) for caller in CALLERS}
        for caller, found in seen.items():
            assert {name for name, answer in found.items() if answer in LET_IN} == MATRIX[caller]
            assert {answer for name, answer in found.items() if name not in MATRIX[caller]} == {"NOT_PERMITTED"}
        assert eventually(lambda: agent.events("call_refused"))
        request = clients_pb.OpenClientChannelRequest()
        channel: Any = ClientServiceStub(client.connection).OpenClientChannel(request, timeout=LIVE_SECONDS)
        next(channel)
        place.permit(client={"agents": {}})
        with pytest.raises(grpc.RpcError) as raised:
            next(channel)
        assert RichError.of(raised.value).reason == "NOT_PERMITTED"


@pytest.mark.parametrize("kind", ["mTLS", "token"])
def test_a_slave_copies_its_masters_topics_by_certificate_or_token(place: Place, tmp_path: Path, kind: str) -> None:
    token, ca = str(place.tokens["broker"]), ("--tls-client-ca", str(place.authority.path))
    shown = ("--token-file", token, "--master-token-file", token) if kind == "token" else ()
    flags = (*place.agent_flags("broker"), *shown, "--permits-file", str(place.permits))
    with NamesrvProcess(*place.flags(kind)) as secured:
        master_flags = (*flags, *(ca if kind == "mTLS" else ()), "--ha-server-addr", "127.0.0.1:10912")
        with secured_agent(secured, tmp_path, *master_flags) as master:
            slave_flags = (*flags, "--master-agent", str(master.endpoint))
            other = {"broker_id": 1, "broker_addr": "127.0.0.1:10921"}
            with secured_agent(secured, tmp_path, *slave_flags, **other) as slave:
                eventually(lambda: slave.events("topics_copied"), within_seconds=30)
