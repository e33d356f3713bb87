"""An agent's TopicConfigService on a real loopback port, and a client of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import grpc
import pytest
from broker_agent_api.v1 import topic_config_service_pb2_grpc
from broker_agent_api.v1.topic_config_service_pb2_grpc import TopicConfigServiceServicer, TopicConfigServiceStub

from broker_agent.auth.admission import AgentAdmission
from broker_agent.listener.error_answers import ErrorAnswers
from groundwork.endpoints import Endpoint
from groundwork.rich_errors import RichError
from support.fakes.registering_name_server import DEADLINE


@contextmanager
def topic_agent(
    servicer: TopicConfigServiceServicer, port: int = 0, admission: AgentAdmission | None = None
) -> Iterator[Endpoint]:
    """Runs a server for the time of the block."""
    pool = ThreadPoolExecutor(4, thread_name_prefix="topic-agent")
    server = grpc.server(pool, interceptors=[ErrorAnswers(admission)], options=[("grpc.so_reuseport", 0)])
    topic_config_service_pb2_grpc.add_TopicConfigServiceServicer_to_server(servicer, server)
    endpoint = Endpoint("127.0.0.1", server.add_insecure_port(f"127.0.0.1:{port}"))
    server.start()
    try:
        yield endpoint
    finally:
        assert server.stop(0).wait(DEADLINE)
        pool.shutdown()


@contextmanager
def stub_of(endpoint: Endpoint) -> Iterator[TopicConfigServiceStub]:
    with grpc.insecure_channel(str(endpoint)) as channel:
        yield TopicConfigServiceStub(channel)


def error_of(call: Callable[[], object]) -> RichError:
    with pytest.raises(grpc.RpcError) as raised:
        call()
    return RichError.of(cast("Any", raised.value))
