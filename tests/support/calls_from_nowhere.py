"""The contexts of calls that no connection or engine brought, and services that have only some of their calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Self, cast

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from namesrv.core.errors import Reason, Refused
from namesrv.engines.api import Again, EngineCall
from namesrv_common.server.rpc_handlers import Behaviour, Context, methods_of


class Caller:
    """All that servicers ask a context for."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:50000"

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()


CONTEXT = cast("Context", Caller())


class FakeEngineCall(EngineCall):
    """Keeps how the call is answered when it comes again. Tests replace the rest."""

    is_free = True
    doubt = None
    again: Again | None = None

    def may_keep(self, request: Message, dependencies: Sequence[str]) -> None:
        """Ignores the dependencies."""

    def may_repeat(self, again: Again) -> None:
        self.again = again

    def write_to_all(self, streams: Sequence[Self], message: bytes) -> None:
        raise AssertionError("no stream is written to here")


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
