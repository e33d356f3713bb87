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
from namesrv_api.v1 import route_data_pb2

from broker_agent.auth import AgentAdmission, ByPermits
from broker_agent.clients import channels, limits
from broker_agent.clients.managers import ClientManagers
from broker_agent.clients.server import ClientServer
from broker_agent.topics import manager as topics_manager
from broker_agent.topics.files import encode_topics
from broker_agent.topics.manager import TopicConfigManager
from broker_agent.topics.storage import TopicsFile
from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable
from broker_agent.topics.topic_service import TopicConfigServicer
from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import RichError
from groundwork.permits import Permits, Principal, token_key
from tests.unit.broker_agent.topic_agents import error_of, topic_agent

SECONDS = 20.0
"""A deadline that no test waits for."""
SERVICES = (
    topic_config_service_pb2.DESCRIPTOR.services_by_name["TopicConfigService"],
    client_service_pb2.DESCRIPTOR.services_by_name["ClientService"],
)
BUILT_IN = TopicConfig("BuiltIn", 1, 1, 6)

Errors = Sequence[RichError]
Metadata = Sequence[tuple[str, str]]
Case = Callable[[Path, pytest.MonkeyPatch], Errors]


class Caller:
    """Calls an agent by the names of its calls."""

    def __init__(self, connection: grpc.Channel) -> None:
        self._connection = connection
        self.metadata: Metadata = ()
        """What each call carries."""

    def call(self, name: str, request: Message | bytes = b"") -> bytes:
        """Makes a call. Raises grpc.RpcError."""
        call: Any = self._connection.unary_unary(_path(name), None, None)
        answer: bytes = call(_encoded(request), timeout=SECONDS, metadata=self.metadata)
        return answer

    def stream(self, name: str, request: Message | bytes = b"") -> Iterator[bytes]:
        """Opens a stream; reading it may raise grpc.RpcError."""
        call: Any = self._connection.unary_stream(_path(name), None, None)
        messages: Iterator[bytes] = call(_encoded(request), timeout=SECONDS, metadata=self.metadata)
        return messages

    def refused(self, name: str, request: Message | bytes = b"") -> RichError:
        """The error of a call or of a stream."""
        streams = name in ("OpenClientChannel", "ListTopics")
        return error_of(lambda: list(self.stream(name, request)) if streams else self.call(name, request))


def _path(name: str) -> str:
    (service,) = [service.full_name for service in SERVICES if name in service.methods_by_name]
    return f"/{service}/{name}"


def _encoded(request: Message | bytes) -> bytes:
    return request if isinstance(request, bytes) else request.SerializeToString()


@contextmanager
def with_topics(
    manager: TopicConfigManager, *, slave: bool = False, admission: AgentAdmission | None = None
) -> Iterator[Caller]:
    """An agent's listener for operators."""
    with (
        topic_agent(TopicConfigServicer(manager, lambda: slave), admission=admission) as endpoint,
        grpc.insecure_channel(str(endpoint)) as connection,
    ):
        yield Caller(connection)


@contextmanager
def with_clients(admission: AgentAdmission | None = None) -> Iterator[tuple[Caller, ClientManagers]]:
    """An agent's listener for clients."""
    managers = ClientManagers()
    server = ClientServer(Endpoint("127.0.0.1", 0), managers, route_data_pb2.BrokerIdentity, admission=admission)
    server.start()
    try:
        with grpc.insecure_channel(str(server.endpoint)) as connection:
            yield Caller(connection), managers
    finally:
        server.stop()


def of_topics(*calls: tuple[str, Message | bytes], slave: bool = False) -> Case:
    """Calls that an agent that owns its topics refuses."""

    def case(path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
        with with_topics(_own(path), slave=slave) as agent:
            return [agent.refused(*call) for call in calls]

    return case


def of_clients(*calls: tuple[str, Message | bytes]) -> Case:
    """Calls that the listener for clients refuses."""

    def case(_path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
        with with_clients() as (agent, _):
            return [agent.refused(*call) for call in calls]

    return case


def both(*cases: Case) -> Case:
    """What comes about in several ways."""
    return lambda path, monkeypatch: [error for case in cases for error in case(path, monkeypatch)]


def _own(path: Path) -> TopicConfigManager:
    return TopicConfigManager.own(path / "topics.json", (BUILT_IN,))


def _put(name: str) -> topics.CreateOrUpdateTopicRequest:
    return topics.CreateOrUpdateTopicRequest(topic_config=topics.TopicConfig(topic=name))


def _too_many_topics(path: Path, monkeypatch: pytest.MonkeyPatch) -> Errors:
    monkeypatch.setattr(topics_manager, "MAX_TOPICS", 1)
    return of_topics(("CreateOrUpdateTopic", _put("New")))(path, monkeypatch)


def _internal_defect(path: Path, monkeypatch: pytest.MonkeyPatch) -> Errors:
    def fail(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("a defect")

    monkeypatch.setattr(TopicConfigManager, "edit", fail)
    with with_topics(_own(path)) as operator, with_clients() as (client, managers):
        monkeypatch.setattr(managers.channels, "heard", fail)
        heartbeat = clients.HeartbeatRequest(client_id="c", channel_id="c")
        return [operator.refused("CreateOrUpdateTopic", _put("New")), client.refused("Heartbeat", heartbeat)]


def _topics_followed(path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
    file = path / "topics.json"
    file.write_bytes(encode_topics(TopicConfigTable(DataVersion(1, 1), ())))
    with with_topics(TopicConfigManager.follow(file)) as agent:
        return [agent.refused("CreateOrUpdateTopic", _put("New"))]


def _topics_file_changed(path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
    with with_topics(_own(path)) as agent:
        (path / "topics.json").write_text("{}")
        return [agent.refused("CreateOrUpdateTopic", _put("New"))]


def _not_durable(path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
    def full(*_: Any) -> NoReturn:
        raise OSError(28, "No space left on device")

    file = path / "topics.json"
    file.write_bytes(encode_topics(TopicConfigTable(DataVersion(1, 1), ())))
    with with_topics(TopicConfigManager.own(file, (), file=TopicsFile(file, write=full))) as agent:
        return [agent.refused("CreateOrUpdateTopic", _put("New"))]


def _slow_reader(_path: Path, monkeypatch: pytest.MonkeyPatch) -> Errors:
    monkeypatch.setattr(channels, "MAX_PENDING_NOTICES", 1)
    with with_clients() as (agent, _):
        events = agent.stream("OpenClientChannel")
        opened = clients.OpenClientChannelResponse.FromString(next(events)).opened
        groups = [_consumer("one"), _consumer("two"), _consumer("three")]
        request = clients.HeartbeatRequest(client_id="c", channel_id=opened.channel_id, consumer_groups=groups)
        agent.call("Heartbeat", request)
        return [error_of(lambda: list(events))]


def _not_let_in(permits: Permits, metadata: Metadata = ()) -> Case:
    """The same on both listeners."""

    def case(path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
        admission = AgentAdmission(ByPermits(lambda: permits, ("DefaultCluster", "broker-a")))
        with with_topics(_own(path), admission=admission) as operator, with_clients(admission) as (client, _):
            operator.metadata = client.metadata = metadata
            return [operator.refused("GetTopic", b"\xff"), client.refused("Heartbeat", b"\xff")]

    return case


def _shutting_down(_path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
    with with_clients() as (agent, managers):
        managers.channels.close_all(clients.ClientChannelClosing.REASON_SHUTDOWN)
        return [agent.refused("OpenClientChannel")]


def _consumer(group: str) -> clients.ConsumerData:
    return clients.ConsumerData(
        group_name=group,
        consume_type=clients.CONSUME_TYPE_PASSIVELY,
        message_model=clients.MESSAGE_MODEL_CLUSTERING,
        consume_from_where=clients.CONSUME_FROM_WHERE_LAST_OFFSET,
    )


TOO_MANY_GROUPS = [clients.ProducerData(group_name=f"g{n}") for n in range(limits.MAX_GROUPS_PER_HEARTBEAT + 1)]

AGENT_CASES: dict[str, Case] = {
    "MALFORMED_REQUEST": both(
        of_topics(("GetTopic", b"\xff")), of_clients(("Heartbeat", b"\xff"), ("OpenClientChannel", b"\xff"))
    ),
    "INVALID_FIELD": both(of_topics(("GetTopic", b"")), of_clients(("Heartbeat", b""))),
    "LIMIT_EXCEEDED": both(
        _too_many_topics,
        of_clients(("Heartbeat", clients.HeartbeatRequest(client_id="c", producer_groups=TOO_MANY_GROUPS))),
    ),
    "INTERNAL_DEFECT": _internal_defect,
    "TOPIC_NOT_FOUND": of_topics(
        ("GetTopic", topics.GetTopicRequest(topic="T")), ("DeleteTopic", topics.DeleteTopicRequest(topic="T"))
    ),
    "SYSTEM_TOPIC": of_topics(("DeleteTopic", topics.DeleteTopicRequest(topic=BUILT_IN.topic_name))),
    "TOPICS_FOLLOWED": _topics_followed,
    "NOT_MASTER": of_topics(("CreateOrUpdateTopic", _put("New")), slave=True),
    "TOPICS_FILE_CHANGED": _topics_file_changed,
    "NOT_DURABLE": _not_durable,
    "CHANNEL_GONE": of_clients(("Heartbeat", clients.HeartbeatRequest(client_id="c", channel_id="gone"))),
    "CONSUMER_GROUP_NOT_FOUND": of_clients(
        ("ListConsumerIds", clients.ListConsumerIdsRequest(consumer_group="g")),
        ("ListConsumerConnections", clients.ListConsumerConnectionsRequest(consumer_group="g")),
    ),
    "PRODUCER_GROUP_NOT_FOUND": of_clients(
        ("ListProducerConnections", clients.ListProducerConnectionsRequest(producer_group="g"))
    ),
    "SLOW_READER": _slow_reader,
    "SHUTTING_DOWN": _shutting_down,
    "NOT_AUTHENTICATED": _not_let_in(Permits()),
    "NOT_PERMITTED": _not_let_in(
        Permits(by_token={token_key(hashlib.sha256(b"known").digest()): Principal("known")}),
        [("authorization", "Bearer known")],
    ),
}
"""How each reason comes about."""


def _of_followed_topics(path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
    file = path / "topics.json"
    file.write_bytes(encode_topics(TopicConfigTable(DataVersion(1, 1), (TopicConfig("T", 1, 1, 6),))))
    with with_topics(TopicConfigManager.follow(file)) as agent:
        return [agent.refused("DeleteTopic", DELETION)]


def _of_written_topics(path: Path, monkeypatch: pytest.MonkeyPatch) -> Errors:
    with with_topics(_own(path)) as agent:
        agent.call("CreateOrUpdateTopic", _put("T"))
        (path / "topics.json").write_text("{}")
        return [agent.refused("DeleteTopic", DELETION)]


def _full_disk(path: Path, _monkeypatch: pytest.MonkeyPatch) -> Errors:
    def full(*_: Any) -> NoReturn:
        raise OSError(28, "No space left on device")

    file = path / "topics.json"
    file.write_bytes(encode_topics(TopicConfigTable(DataVersion(1, 1), (TopicConfig("T", 1, 1, 6),))))
    with with_topics(TopicConfigManager.own(file, (), file=TopicsFile(file, write=full))) as agent:
        return [agent.refused("DeleteTopic", DELETION)]


DELETION = topics.DeleteTopicRequest(topic="T")
AGENT_EACH_CALL: tuple[Case, ...] = (
    of_topics(("CreateOrUpdateTopic", b""), ("DeleteTopic", b"")),
    of_topics(("CreateOrUpdateTopic", _put(BUILT_IN.topic_name))),
    of_topics(("DeleteTopic", DELETION), slave=True),
    of_clients(
        ("UnregisterClient", b""),
        ("ListConsumerIds", b""),
        ("ListConsumerConnections", b""),
        ("ListProducerConnections", b""),
        ("ListConsumerFilters", b""),
        ("RegisterFilterServer", b""),
        ("RegisterFilterServer", clients.RegisterFilterServerRequest(channel_id="c", filter_server_addr="a:1")),
    ),
    _of_followed_topics,
    _of_written_topics,
    _full_disk,
)
"""Further ways in which reasons come about."""
