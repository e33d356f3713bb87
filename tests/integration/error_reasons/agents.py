"""How each reason of the agent comes about: its listeners in this process, and the calls that they refuse."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import grpc
import pytest
from broker_agent_api.v1 import client_service_pb2 as clients
from broker_agent_api.v1 import topic_config_service_pb2 as topics

from broker_agent.auth import by_permits
from broker_agent.clients import limits
from broker_agent.clients.client_service import ClientServer
from broker_agent.clients.managers import ClientChannels, ClientManagers
from broker_agent.errors import FAILURES, slow_reader
from broker_agent.listener import ANYONE, Callers
from broker_agent.timing import Timing
from broker_agent.topics import manager as topics_manager
from broker_agent.topics.files import FollowedTopics
from broker_agent.topics.manager import TopicConfigManager
from broker_agent.topics.table import DataVersion, TopicConfigTable
from broker_agent.topics.topic_service import TopicConfigServicer
from broker_agent.topics.topics_json import encode_topics
from namesrv_common.endpoints import Endpoint
from namesrv_common.server.permits import Permits, Principal, token_key
from tests.integration.error_reasons.name_servers import Call, Caller, Errors, Patch
from tests.support.agents import STATE, own_topics, topic, topic_agent

SERVICES = (
    topics.DESCRIPTOR.services_by_name["TopicConfigService"],
    clients.DESCRIPTOR.services_by_name["ClientService"],
)
Case = Callable[[Path, pytest.MonkeyPatch], Errors]

BUILT_IN, T = topic("broker-a"), topic("T")


def _kept(path: Path) -> Path:
    """A file with a topic, and one that the broker needs itself."""
    file = path / "topics.json"
    file.write_bytes(encode_topics(TopicConfigTable(DataVersion(1, 1), (BUILT_IN, T))))
    return file


def _own(path: Path, write: Any = None) -> TopicConfigManager:
    return own_topics(_kept(path), [BUILT_IN], write=write)


def _followed(path: Path) -> TopicConfigManager:
    followed = FollowedTopics(_kept(path), Timing())
    return TopicConfigManager(followed.first_table(None), Timing(), followed=followed)


def _full(*_: Any) -> NoReturn:
    raise OSError(28, "No space left on device")


def _that_others_write(path: Path) -> TopicConfigManager:
    manager = _own(path)
    (path / "topics.json").write_text("{}")
    return manager


def refused(listening: Callable[[Path], AbstractContextManager[Endpoint]], *calls: Call, patch: Patch = ()) -> Case:
    """Calls that a listener refuses."""

    async def ask(endpoint: Endpoint) -> Errors:
        async with grpc.aio.insecure_channel(str(endpoint)) as connection:
            return await Caller(connection, SERVICES).refused(*calls)

    def case(path: Path, monkeypatch: pytest.MonkeyPatch) -> Errors:
        if patch:
            monkeypatch.setattr(*patch)
        with listening(path) as endpoint:
            return asyncio.run(ask(endpoint))

    return case


def of_topics(
    *calls: Call,
    manager: Callable[[Path], TopicConfigManager] = _own,
    slave: bool = False,
    callers: Callers = ANYONE,
    patch: Patch = (),
) -> Case:
    """Calls that an agent's listener for operators refuses."""

    def listening(path: Path) -> AbstractContextManager[Endpoint]:
        return topic_agent(TopicConfigServicer(manager(path), lambda: slave), callers)

    return refused(listening, *calls, patch=patch)


@contextmanager
def with_clients(callers: Callers = ANYONE, *, is_ending: bool = False) -> Iterator[Endpoint]:
    """An agent's listener for clients."""
    managers = ClientManagers()
    if is_ending:
        managers.channels.close_all(clients.ClientChannelClosing.REASON_SHUTDOWN)
    server = ClientServer(Endpoint("127.0.0.1", 0), managers, lambda: STATE, callers)
    server.start()
    try:
        yield server.endpoint
    finally:
        server.stop()


def of_clients(*calls: Call, patch: Patch = (), **options: Any) -> Case:
    """Calls that the listener for clients refuses."""
    return refused(lambda _: with_clients(**options), *calls, patch=patch)


def _not_let_in(permits: Permits, token: str | None = None) -> tuple[Case, Case]:
    """The same on both listeners."""
    callers = Callers(rule=by_permits(lambda: permits, ("DefaultCluster", "broker-a")))
    return (
        of_topics(("GetTopic", b"\xff", token), callers=callers),
        of_clients(("Heartbeat", b"\xff", token), callers=callers),
    )


def _slow_reader(*_: Any) -> Errors:
    return [FAILURES.rich(slow_reader())]  # tests of topics and of channels show readers that are cut


def _fail(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("a defect")


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
        of_topics(_put("New"), patch=(topics_manager, "MAX_TOPICS", 1)),
        of_clients(("Heartbeat", {"client_id": "c", "producer_groups": TOO_MANY_GROUPS})),
    ),
    "INTERNAL_DEFECT": (
        of_topics(_put("New"), patch=(TopicConfigManager, "edit", _fail)),
        of_clients(HEARTBEAT, patch=(ClientChannels, "heard", _fail)),
    ),
    "TOPIC_NOT_FOUND": (of_topics(("GetTopic", {"topic": "Gone"}), _delete("Gone")),),
    "SYSTEM_TOPIC": (of_topics(_delete("broker-a"), _put("broker-a")),),
    "TOPICS_FOLLOWED": (of_topics(_put("New"), _delete("T"), manager=_followed),),
    "NOT_MASTER": (of_topics(_put("New"), _delete("T"), slave=True),),
    "TOPICS_FILE_CHANGED": (of_topics(_put("New"), _delete("T"), manager=_that_others_write),),
    "NOT_DURABLE": (of_topics(_put("New"), _delete("T"), manager=partial(_own, write=_full)),),
    "CHANNEL_GONE": (
        of_clients(HEARTBEAT, ("RegisterFilterServer", {"channel_id": "c", "filter_server_addr": "a:1"})),
    ),
    "CONSUMER_GROUP_NOT_FOUND": (
        of_clients(("ListConsumerIds", {"consumer_group": "g"}), ("ListConsumerConnections", {"consumer_group": "g"})),
    ),
    "PRODUCER_GROUP_NOT_FOUND": (of_clients(("ListProducerConnections", {"producer_group": "g"})),),
    "SLOW_READER": (_slow_reader,),
    "SHUTTING_DOWN": (of_clients(("OpenClientChannel", b""), is_ending=True),),
    "NOT_AUTHENTICATED": _not_let_in(Permits()),
    "NOT_PERMITTED": _not_let_in(
        Permits(by_token={token_key(hashlib.sha256(b"known").digest()): Principal("known")}), "known"
    ),
}
"""How each reason comes about."""
