"""Servers of tests that have only some calls of a service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from namesrv.core.errors import Reason, Refused
from namesrv_common.server.rpc_handlers import Behaviour, Context, methods_of


def whole(service: ServiceDescriptor, *parts: object) -> tuple[object, ...]:
    """Parts and what a service needs besides: its other calls answer that they are not there yet."""
    there = methods_of(service, parts)
    return (*parts, RefusedCalls(method for method in service.methods if method not in there))


class RefusedCalls:
    """A part that refuses calls as not there yet: it has a method for each of them."""

    def __init__(self, methods: Iterable[MethodDescriptor]) -> None:
        for method in methods:
            make = _refused_stream if method.server_streaming else _refused
            setattr(self, method.name, make(method))


def _refused(method: MethodDescriptor) -> Behaviour:
    async def refused(_request: Message, _context: Context) -> bytes:
        raise _not_implemented(method)

    return refused


def _refused_stream(method: MethodDescriptor) -> Behaviour:
    async def refused(_request: Message, _context: Context) -> AsyncIterator[bytes]:
        raise _not_implemented(method)
        yield b""  # type: ignore[unreachable]  # makes this a generator, as streams are

    return refused


def _not_implemented(method: MethodDescriptor) -> Refused:
    text = f"{method.full_name}: this version of the name server does not have it yet"
    return Refused(Reason.NOT_IMPLEMENTED, text, call=method.full_name)
