"""Reflection: the services, calls and messages of this server, for tools that do not have the contract at hand.

It is served under both of its names, v1 and v1alpha. Their messages are the same bytes; newer tools ask only for v1.
It does not list itself, as grpcio-reflection has the descriptor of v1alpha alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import Default
from grpc_reflection.v1alpha import reflection, reflection_pb2

from namesrv.error_codes import FAILURES
from namesrv_common.errors import Refused
from namesrv_common.server.health_service import ShareGate
from namesrv_common.server.rpc_handlers import Context

SERVICE_NAMES = ("grpc.reflection.v1.ServerReflection", reflection.SERVICE_NAME)
"""The names of the reflection service."""

_CALL = "ServerReflectionInfo"


def add_reflection(server: grpc.aio.Server, services: Iterable[str], gate: ShareGate) -> None:
    """Adds reflection of services, given by their full names, whose descriptors are in the default pool."""
    servicer = reflection.aio.ReflectionServicer(services, pool=_Symbols())  # type: ignore[attr-defined]

    async def answer(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        try:
            entered = gate.enter(context)
        except Refused as refusal:
            rich = FAILURES.rich(refusal)
            await context.abort(rich.code, rich.message, rich.status().trailing_metadata)
        try:
            async for response in servicer.ServerReflectionInfo(requests, context):
                yield response
        finally:
            gate.leave(entered)

    handler = grpc.stream_stream_rpc_method_handler(
        answer,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for name in SERVICE_NAMES:
        server.add_registered_method_handlers(name, {_CALL: handler})  # type: ignore[attr-defined]


class _Symbols:
    """The default pool. ``FindFileContainingSymbol`` of a pool knows no methods, which grpcurl and ghz ask for."""

    def __init__(self) -> None:
        self._files = Default()

    def __getattr__(self, name: str) -> Any:
        """Everything else is as in the default pool."""
        return getattr(self._files, name)

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:
        """The file that defines what has this full name. Raises KeyError."""
        with contextlib.suppress(KeyError):
            return self._files.FindFileContainingSymbol(symbol)
        return self._files.FindMethodByName(symbol).containing_service.file
