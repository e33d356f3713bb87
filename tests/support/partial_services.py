"""Servers of tests that have only some calls of a service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from namesrv.core.errors import Reason, Refused
from namesrv_common.server.rpc_handlers import Behaviour, Context, methods_of


def whole(service: ServiceDescriptor, *parts: object) -> tuple[object, ...]:
    """Parts and what a service needs besides: its other calls answer that they are not there yet."""
    there = [method for part in parts for method in methods_of(service, part)]
    missing = [method for method in service.methods if method not in there]
    return (*parts, SimpleNamespace(**{method.name: _refused(method) for method in missing}))


def _refused(method: MethodDescriptor) -> Behaviour:
    text = f"{method.full_name}: this version of the name server does not have it yet"

    async def refused(_request: Message, _context: Context) -> bytes:
        raise Refused(Reason.NOT_IMPLEMENTED, text, call=method.full_name)

    async def refused_stream(request: Message, context: Context) -> AsyncIterator[bytes]:
        yield await refused(request, context)

    return refused_stream if method.server_streaming else refused
