"""The name servers or agents of a command: asked one after the other until one answers, or all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Self, TypeVar

from broker_agent_api.v1.broker_agent_service_pb2_grpc import BrokerAgentServiceStub

from namesrv_common.client.channels import ClientSecurity, ConnectionSettings
from namesrv_common.client.namesrv_client import Client, NamesrvClient
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError

AnswerT = TypeVar("AnswerT")
ClientT = TypeVar("ClientT", bound=Client)

CONNECTION = ConnectionSettings(longest_backoff_seconds=5.0)
"""Lets commands such as ``--follow`` find a restarted name server within seconds instead of two minutes."""


class AgentClient(Client):
    """One agent: ``client.agent.GetAgentStatus(request)`` makes a call within the client's timeout."""

    def __init__(self, endpoint: Endpoint, timeout_seconds: float, security: ClientSecurity | None) -> None:
        super().__init__(endpoint, timeout_seconds, security, settings=CONNECTION)
        self.agent = BrokerAgentServiceStub(self.channel)


class Fleet(Generic[ClientT]):
    """The name servers, or agents, that a command is about."""

    def __init__(self, clients: Iterable[ClientT]) -> None:
        self.all = tuple(clients)

    def first(self, ask: Callable[[ClientT], AnswerT]) -> AnswerT:
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

    def each(self, ask: Callable[[ClientT], AnswerT]) -> list[tuple[Endpoint, AnswerT | CallError]]:
        """Every one's answer or failure, asked at the same time, in the order they were named."""

        def answer(server: ClientT) -> tuple[Endpoint, AnswerT | CallError]:
            try:
                return server.endpoint, ask(server)
            except CallError as error:
                return server.endpoint, error

        with ThreadPoolExecutor(len(self.all)) as pool:
            return list(pool.map(answer, self.all))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Closes all connections."""
        for server in self.all:
            server.close()


def name_servers_at(
    endpoints: Iterable[Endpoint], timeout_seconds: float, security: ClientSecurity | None
) -> Fleet[NamesrvClient]:
    """The name servers at these endpoints, connected at the first call."""
    return Fleet(NamesrvClient(one, timeout_seconds, security, settings=CONNECTION) for one in endpoints)
