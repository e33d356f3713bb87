"""An agent's TopicConfigService on a real loopback port, and a client of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from broker_agent_api.v1.topic_config_service_pb2_grpc import TopicConfigServiceStub

from broker_agent.auth import Rule
from broker_agent.listener import AgentServer
from broker_agent.timing import Timing
from broker_agent.topics.files import TopicsFile
from broker_agent.topics.manager import TopicConfigChange, TopicConfigManager
from broker_agent.topics.table import TopicConfig
from broker_agent.topics.topic_service import SERVICE
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import RichError


@contextmanager
def topic_agent(servicer: object, rule: Rule | None = None) -> Iterator[Endpoint]:
    """Runs a server for the time of the block."""
    server = AgentServer(Endpoint("127.0.0.1", 0), [(SERVICE, servicer)], rule=rule)
    server.start()
    try:
        yield server.endpoint
    finally:
        server.stop()


@contextmanager
def stub_of(endpoint: Endpoint) -> Iterator[TopicConfigServiceStub]:
    with grpc.insecure_channel(str(endpoint)) as channel:
        yield TopicConfigServiceStub(channel)


def error_of(call: Callable[[], object]) -> RichError:
    with pytest.raises(grpc.RpcError) as raised:
        call()
    return RichError.of(cast("Any", raised.value))


def own_topics(
    path: Path,
    built_in: Collection[TopicConfig] = (),
    timing: Timing | None = None,
    write: Callable[[Path, bytes], None] | None = None,
) -> TopicConfigManager:
    """The topics of an agent that owns the file."""
    timing, file = timing or Timing(), TopicsFile(path, write)
    return TopicConfigManager(file.first_table(built_in, timing), timing, file=file, built_in=built_in)


def put_topic(manager: TopicConfigManager, topic: TopicConfig) -> TopicConfigChange:
    """Changes a topic as a call of an operator does."""
    return manager.edit(topic.topic_name, lambda _before: topic)
