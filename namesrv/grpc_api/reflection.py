"""Reflection: the services, calls and messages of this server, for tools that do not have the contract at hand.

It is served under both of its names, v1 and v1alpha. Their messages are the same bytes; newer tools ask only for v1.
It does not list itself, as grpcio-reflection has the descriptor of v1alpha alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import Default
from grpc_reflection.v1alpha import reflection, reflection_pb2

from namesrv.engines.api import EngineServer
from namesrv_common.server.rpc_handlers import CallHandlers

SERVICE = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]

SERVICE_NAMES = ("grpc.reflection.v1.ServerReflection", SERVICE.full_name)
"""The names of the reflection service."""


def add_reflection(server: EngineServer, handlers: CallHandlers, services: Iterable[str]) -> None:
    """Adds reflection of services, given by their full names, whose descriptors are in the default pool."""
    servicer = reflection.aio.ReflectionServicer(services, pool=_Symbols())  # type: ignore[attr-defined]
    for name in SERVICE_NAMES:
        server.add_handlers(name, handlers.of(SERVICE, (servicer,)))


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
