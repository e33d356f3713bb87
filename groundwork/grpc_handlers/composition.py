"""Services are composed of parts: objects with a method of the same name for each call that they answer.

A part's attribute ``inline_calls``, where it has one, names those of its calls that never wait for anything. A servicer
of several parts is a named tuple of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from groundwork.errors import CallRefused
from groundwork.grpc_handlers.admission import Context

UnaryBehaviour = Callable[[Any, Context], Awaitable[Message | bytes]]
StreamBehaviour = Callable[[Any, Context], AsyncIterator[Message | bytes]]
Behaviour = Callable[[Any, Context], Any]
"""Either of them: what answers a call."""


class NotComposed(TypeError):
    """Parts do not make a service: a defect that ends the start of a program."""


@dataclass(frozen=True, slots=True)
class Composition:
    """The calls of a service with what answers them."""

    behaviours: Mapping[str, Behaviour]
    inline_calls: frozenset[str]
    """Calls that never wait."""

    @classmethod
    def of(cls, methods: Iterable[MethodDescriptor], parts: Iterable[object]) -> Composition:
        """Finds the one part that answers each call.

        Args:
            methods: The calls, of one service.
            parts: The parts, which may answer other calls, too.

        Raises:
            NotComposed: No part answers a call, or several do; or what is said to be inline is a stream, or not there.
        """
        parts = tuple(parts)
        for part in parts:
            for name in _inline_calls(part):
                if not hasattr(part, name):
                    raise NotComposed(f"{type(part).__name__} has no call {name}, and says that it is inline")
        behaviours, inline_calls = {}, set()
        for method in methods:
            part = _part_of(method, parts)
            behaviours[method.name] = getattr(part, method.name)
            if method.name in _inline_calls(part):
                if method.server_streaming:
                    raise NotComposed(f"{method.full_name} is a stream, which cannot be inline")
                inline_calls.add(method.name)
        return cls(behaviours, frozenset(inline_calls))


class RefusedCalls:
    """A part that refuses calls: it has a method for each of them."""

    def __init__(self, methods: Iterable[MethodDescriptor], refusal: Callable[[MethodDescriptor], CallRefused]) -> None:
        """Takes the calls, and what makes the error that a call ends with."""
        for method in methods:
            make = _refused_stream if method.server_streaming else _refused
            setattr(self, method.name, make(method, refusal))


def part_classes(servicer: type) -> tuple[type, ...]:
    """The classes of the parts of a servicer, which is a named tuple of them."""
    return tuple(get_type_hints(servicer).values())


def methods_of(service: ServiceDescriptor, parts: Iterable[object]) -> list[MethodDescriptor]:
    """The calls of a service that some of its parts, or classes of parts, answer."""
    parts = tuple(parts)
    return [method for method in service.methods if any(hasattr(part, method.name) for part in parts)]


def _inline_calls(part: object) -> Collection[str]:
    names: Collection[str] = getattr(part, "inline_calls", ())
    return names


def _part_of(method: MethodDescriptor, parts: tuple[object, ...]) -> object:
    found = [part for part in parts if hasattr(part, method.name)]
    if len(found) != 1:
        names = ", ".join(type(part).__name__ for part in found or parts)
        problem = "more than one part answers" if found else "no part answers"
        raise NotComposed(f"{problem} {method.full_name}: {names}")
    return found[0]


def _refused(method: MethodDescriptor, refusal: Callable[[MethodDescriptor], CallRefused]) -> UnaryBehaviour:
    async def refused(_request: Message, _context: Context) -> bytes:
        raise refusal(method)

    return refused


def _refused_stream(method: MethodDescriptor, refusal: Callable[[MethodDescriptor], CallRefused]) -> StreamBehaviour:
    async def refused(_request: Message, _context: Context) -> AsyncIterator[bytes]:
        raise refusal(method)
        yield b""  # type: ignore[unreachable]  # makes this a generator, as streams are

    return refused
