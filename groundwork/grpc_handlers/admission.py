"""The admission of a call before it is answered: a gate, and room in memory. By default both are open."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import grpc

Context = grpc.aio.ServicerContext[Any, Any]

RequestT = TypeVar("RequestT")


class Gate(Protocol):
    """Lets in the calls of one method."""

    def enter(self, context: Context) -> Any:
        """A call begins; ``leave`` must follow unless this raises CallRefused. Returns who calls, for ``checked``."""

    def checked(self, entered: Any, request: RequestT, context: Context) -> RequestT:
        """The parsed request. Raises CallRefused if whoever entered may not ask for it."""

    def leave(self, entered: Any) -> None:
        """The call of whoever entered has ended."""

    def has_room(self) -> bool:
        """Whether ``enter`` would refuse nobody now for want of room, whoever it is."""


class Memory(Protocol):
    """Bounds the bytes of all requests under way."""

    def take(self, entered: Any, size: int) -> int:
        """Takes room for a request of so many bytes; returns what to give back. Raises CallRefused if there is none."""

    def give_back(self, entered: Any, taken: int) -> None:
        """Gives back what ``take`` returned."""


class OpenGate:
    """Lets everybody in."""

    def enter(self, context: Context) -> None:
        """Nothing to do."""

    def checked(self, entered: None, request: RequestT, context: Context) -> RequestT:  # noqa: ARG002 - see Gate
        """The request as it is."""
        return request

    def leave(self, entered: None) -> None:
        """Nothing to do."""

    def has_room(self) -> bool:
        """Always."""
        return True


class UnboundedMemory:
    """For a server whose requests are small enough to need no bound of their own."""

    def take(self, entered: Any, size: int) -> int:  # noqa: ARG002 - see Memory
        """Takes nothing."""
        return 0

    def give_back(self, entered: Any, taken: int) -> None:
        """Nothing to do."""
