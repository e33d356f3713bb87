"""How each reason of the agent comes about: its listeners in this process, and the calls that they refuse."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import grpc
import pytest
from broker_agent_api.v1 import client_service_pb2, topic_config_service_pb2
from broker_agent_api.v1 import client_service_pb2 as clients
from broker_agent_api.v1 import topic_config_service_pb2 as topics
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from broker_agent.auth import AgentAdmission, by_permits
from broker_agent.clients import channels, limits
from broker_agent.clients.client_service import ClientServer
from broker_agent.clients.managers import ClientManagers
from broker_agent.topics import manager as topics_manager
from broker_agent.topics.files import TopicsFile
from broker_agent.topics.manager import TopicConfigManager
from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable
from broker_agent.topics.topic_service import TopicConfigServicer
from broker_agent.topics.topics_json import encode_topics
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import RichError
from namesrv_common.server.permits import Permits, Principal, token_key
from tests.support.agents.fan_out_harness import STATE
from tests.support.agents.topic_agents import error_of, topic_agent

SECONDS = 20.0
"""A deadline that no test waits for."""
SERVICES = (
    topic_config_service_pb2.DESCRIPTOR.services_by_name["TopicConfigService"],
    client_service_pb2.DESCRIPTOR.services_by_name["ClientService"],
)
BUILT_IN, T = TopicConfig("BuiltIn", 1, 1, 6), TopicConfig("T", 1, 1, 6)

Errors = Sequence[RichError]
Request = Message | bytes | dict[str, Any]
"""What a call sends, or the fields of it."""
Call = tuple[str, Request]
Case = Callable[[Path, pytest.MonkeyPatch], Errors]


class Caller:
    """Calls an agent by the names of its calls."""

    def __init__(self, connection: grpc.Channel, token: str | None = None) -> None:
        self._connection = connection
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)

    def stream(self, name: str, request: Request = b"") -> Iterator[bytes]:
        """Makes a call; reading its answers may raise grpc.RpcError."""
        (method,) = [service.methods_by_name[name] for service in SERVICES if name in service.methods_by_name]
        if isinstance(request, dict):
            request = GetMessageClass(method.input_type)(**request)
        sent = request if isinstance(request, bytes) else request.SerializeToString()
        make = self._connection.unary_stream if method.server_streaming else self._connection.unary_unary
        call: Any = make(f"/{method.containing_service.full_name}/{name}", None, None)
        answers = call(sent, timeout=SECONDS, metadata=self._metadata)
        yield from answers if method.server_streaming else [answers]

    def refused(self, *calls: Call) -> Errors:
        """The errors of calls, one after the other."""
        return [error_of(lambda call=call: list(self.stream(*call))) for call in calls]  # type: ignore[misc]


def _own(path: Path) -> TopicConfigManager:
    return TopicConfigManager.own(path / "topics.json", (BUILT_IN,))


def _kept(path: Path) -> Path:
    """A file with one topic."""
    file = path / "topics.json"
    file.write_bytes(encode_topics(TopicConfigTable(DataVersion(1, 1), (T,))))
    return file


def _followed(path: Path) -> TopicConfigManager:
    return TopicConfigManager.follow(_kept(path))


def _on_a_full_disk(path: Path) -> TopicConfigManager:
    def full(*_: Any) -> NoReturn:
        raise OSError(28, "No space left on device")

    file = _kept(path)
    return TopicConfigManager.own(file, (), file=TopicsFile(file, write=full))


def _that_others_write(path: Path) -> TopicConfigManager:
    manager = TopicConfigManager.own(_kept(path), ())
    (path / "topics.json").write_text("{}")
    return manager


def of_topics(
    *calls: Call,
    manager: Callable[[Path], TopicConfigManager] = _own,
    slave: bool = False,
    admission: AgentAdmission | None = None,
    token: str | None = None,
) -> Case:
    """Calls that an agent's listener for operators refuses."""

    def case(path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
        servicer = TopicConfigServicer(manager(path), lambda: slave)
        with topic_agent(servicer, admission=admission) as endpoint, grpc.insecure_channel(str(endpoint)) as connection:
            return Caller(connection, token).refused(*calls)

    return case


@contextmanager
def with_clients(
    admission: AgentAdmission | None = None, token: str | None = None
) -> Iterator[tuple[Caller, ClientManagers]]:
    """An agent's listener for clients."""
    managers = ClientManagers()
    server = ClientServer(Endpoint("127.0.0.1", 0), managers, lambda: STATE, admission=admission)
    server.start()
    try:
        with grpc.insecure_channel(str(server.endpoint)) as connection:
            yield Caller(connection, token), managers
    finally:
        server.stop()


def of_clients(*calls: Call, admission: AgentAdmission | None = None, token: str | None = None) -> Case:
    """Calls that the listener for clients refuses."""

    def case(_path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
        with with_clients(admission, token) as (agent, _):
            return agent.refused(*calls)

    return case


def patched(case: Case, *patch: Any) -> Case:
    """A case under a patch."""

    def run(path: Path, monkeypatch: pytest.MonkeyPatch) -> Errors:
        monkeypatch.setattr(*patch)
        return case(path, monkeypatch)

    return run


def _not_let_in(permits: Permits, token: str | None = None) -> tuple[Case, Case]:
    """The same on both listeners."""
    admission = AgentAdmission(by_permits(lambda: permits, ("DefaultCluster", "broker-a")))
    return (
        of_topics(("GetTopic", b"\xff"), admission=admission, token=token),
        of_clients(("Heartbeat", b"\xff"), admission=admission, token=token),
    )


def _slow_reader(_path: Path, monkeypatch: pytest.MonkeyPatch) -> Errors:
    monkeypatch.setattr(channels, "MAX_PENDING_NOTICES", 1)
    with with_clients() as (agent, _):
        events = agent.stream("OpenClientChannel")
        opened = clients.OpenClientChannelResponse.FromString(next(events)).opened
        groups = [_consumer("one"), _consumer("two"), _consumer("three")]
        request = clients.HeartbeatRequest(client_id="c", channel_id=opened.channel_id, consumer_groups=groups)
        next(agent.stream("Heartbeat", request))
        return [error_of(lambda: list(events))]


def _shutting_down(_path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
    with with_clients() as (agent, managers):
        managers.channels.close_all(clients.ClientChannelClosing.REASON_SHUTDOWN)
        return agent.refused(("OpenClientChannel", b""))


def _fail(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("a defect")


def _consumer(group: str) -> clients.ConsumerData:
    return clients.ConsumerData(
        group_name=group,
        consume_type=clients.CONSUME_TYPE_PASSIVELY,
        message_model=clients.MESSAGE_MODEL_CLUSTERING,
        consume_from_where=clients.CONSUME_FROM_WHERE_LAST_OFFSET,
    )


def _put(name: str) -> Call:
    return "CreateOrUpdateTopic", {"topic_config": topics.TopicConfig(topic=name)}


def _delete(name: str) -> Call:
    return "DeleteTopic", {"topic": name}


TOO_MANY_GROUPS = [clients.ProducerData(group_name=f"g{n}") for n in range(limits.MAX_GROUPS_PER_HEARTBEAT + 1)]
HEARTBEAT: Call = ("Heartbeat", {"client_id": "c", "channel_id": "gone"})
CHECKED = (
    *("Heartbeat", "UnregisterClient", "ListConsumerIds", "ListConsumerConnections"),
    *("ListProducerConnections", "ListConsumerFilters", "RegisterFilterServer"),
)
"""Calls of clients that look at their request."""

AGENT_CASES: dict[str, tuple[Case, ...]] = {
    "MALFORMED_REQUEST": (
        of_topics(("GetTopic", b"\xff")),
        of_clients(("Heartbeat", b"\xff"), ("OpenClientChannel", b"\xff")),
    ),
    "INVALID_FIELD": (
        of_topics(("GetTopic", b""), ("CreateOrUpdateTopic", b""), ("DeleteTopic", b"")),
        of_clients(*[(name, b"") for name in CHECKED]),
    ),
    "LIMIT_EXCEEDED": (
        patched(of_topics(_put("New")), topics_manager, "MAX_TOPICS", 1),
        of_clients(("Heartbeat", {"client_id": "c", "producer_groups": TOO_MANY_GROUPS})),
    ),
    "INTERNAL_DEFECT": (
        patched(of_topics(_put("New")), TopicConfigManager, "edit", _fail),
        patched(of_clients(HEARTBEAT), channels.ClientChannels, "heard", _fail),
    ),
    "TOPIC_NOT_FOUND": (of_topics(("GetTopic", {"topic": "T"}), _delete("T")),),
    "SYSTEM_TOPIC": (of_topics(_delete(BUILT_IN.topic_name), _put(BUILT_IN.topic_name)),),
    "TOPICS_FOLLOWED": (of_topics(_put("New"), _delete("T"), manager=_followed),),
    "NOT_MASTER": (of_topics(_put("New"), _delete("T"), slave=True),),
    "TOPICS_FILE_CHANGED": (of_topics(_put("New"), _delete("T"), manager=_that_others_write),),
    "NOT_DURABLE": (of_topics(_put("New"), _delete("T"), manager=_on_a_full_disk),),
    "CHANNEL_GONE": (
        of_clients(HEARTBEAT, ("RegisterFilterServer", {"channel_id": "c", "filter_server_addr": "a:1"})),
    ),
    "CONSUMER_GROUP_NOT_FOUND": (
        of_clients(("ListConsumerIds", {"consumer_group": "g"}), ("ListConsumerConnections", {"consumer_group": "g"})),
    ),
    "PRODUCER_GROUP_NOT_FOUND": (of_clients(("ListProducerConnections", {"producer_group": "g"})),),
    "SLOW_READER": (_slow_reader,),
    "SHUTTING_DOWN": (_shutting_down,),
    "NOT_AUTHENTICATED": _not_let_in(Permits()),
    "NOT_PERMITTED": _not_let_in(
        Permits(by_token={token_key(hashlib.sha256(b"known").digest()): Principal("known")}), "known"
    ),
}
"""How each reason comes about."""
