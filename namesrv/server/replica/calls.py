"""Calls to a copy: those that read are answered by the copy of the moment, the others by the leader alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from namesrv.core.errors import ReadOnlyReplica
from namesrv.server.rpc.handlers import Context

LEADERS_CALLS = frozenset(
    {
        "PutKvConfig",
        "DeleteKvConfig",
        "WipeWritePermOfBroker",
        "AddWritePermOfBroker",
        "DeleteTopic",
        "ReleaseTopicHold",
        "UpdateNamesrvConfig",
        "ConfirmBrokerLoss",
    }
)
"""Calls of AdminService that change something."""


class CallsOfCopy:
    """A servicer that hands each call to another one, which is asked for anew for each call."""

    def __init__(
        self, service: ServiceDescriptor, servicer: Callable[[], object], others: dict[str, Any] | None = None
    ) -> None:
        """Has a method for each call of the service.

        Args:
            service: The service from the wire contract.
            servicer: Who answers; may raise CallRefused.
            others: Calls that are answered by something else, by name.
        """
        for method in service.methods:
            setattr(self, method.name, (others or {}).get(method.name) or _handed_on(method.name, servicer))


class LeadersService:
    """A servicer that refuses every call of a service, or some, by naming the leader."""

    def __init__(self, methods: list[MethodDescriptor], leader: Callable[[], str]) -> None:
        for method in methods:
            setattr(self, method.name, _refused_stream(leader) if method.server_streaming else _refused(leader))


def _handed_on(name: str, servicer: Callable[[], object]) -> Callable[[Message, Context], Any]:
    def handed_on(request: Message, context: Context) -> Any:
        return getattr(servicer(), name)(request, context)

    return handed_on


def _refused(leader: Callable[[], str]) -> Callable[[Message, Context], Awaitable[bytes]]:
    async def refused(_request: Message, _context: Context) -> bytes:
        raise ReadOnlyReplica(leader())

    return refused


def _refused_stream(leader: Callable[[], str]) -> Callable[[Message, Context], AsyncIterator[bytes]]:
    async def refused(_request: Message, _context: Context) -> AsyncIterator[bytes]:
        raise ReadOnlyReplica(leader())
        yield b""  # type: ignore[unreachable]  # makes this a generator, as streams are

    return refused
