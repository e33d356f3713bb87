"""The name servers or agents of a command: asked one after the other until one answers, or all at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from broker_agent_api.v1 import broker_agent_service_pb2
from google.protobuf.descriptor import ServiceDescriptor

from namesrv_common.client.channels import ClientSecurity
from namesrv_common.client.namesrv_client import SERVICES, ConnectionSettings, NamesrvClient
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError

AnswerT = TypeVar("AnswerT")

AGENT_SERVICES: tuple[ServiceDescriptor, ...] = (
    broker_agent_service_pb2.DESCRIPTOR.services_by_name["BrokerAgentService"],
)
"""What is called of an agent."""

CONNECTION = ConnectionSettings(longest_backoff_seconds=5.0)
"""Lets commands such as ``--follow`` find a restarted name server within seconds instead of two minutes."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[AnswerT]):
    """What one of several name servers said."""

    endpoint: Endpoint
    value: AnswerT | None
    """None if it failed."""
    error: CallError | None


class NameServers:
    """The name servers, or agents, that a command is about."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        timeout_seconds: float,
        security: ClientSecurity | None = None,
        services: Sequence[ServiceDescriptor] = SERVICES,
    ) -> None:
        self.all = tuple(
            NamesrvClient(endpoint, timeout_seconds, security, settings=CONNECTION, services=services)
            for endpoint in endpoints
        )

    def first(self, ask: Callable[[NamesrvClient], AnswerT]) -> AnswerT:
        """The answer of the first one that gives one.

        Raises:
            CallError: One of them refused the call, or none could be reached. Then it is the last error.
        """
        failed: CallError | None = None
        for server in self.all:
            try:
                return ask(server)
            except CallError as error:
                if not error.unreachable:
                    raise
                failed = error
        assert failed is not None, "there is at least one name server"
        raise failed

    def each(self, ask: Callable[[NamesrvClient], AnswerT]) -> list[Answer[AnswerT]]:
        """Every one's answer, asked at the same time, in the order they were named."""

        def answer(server: NamesrvClient) -> Answer[AnswerT]:
            try:
                return Answer(server.endpoint, ask(server), None)
            except CallError as error:
                return Answer(server.endpoint, None, error)

        with ThreadPoolExecutor(len(self.all)) as pool:
            return list(pool.map(answer, self.all))

    def close(self) -> None:
        """Closes all connections."""
        for server in self.all:
            server.close()
