"""Calls that a worker process hands on to the owner of the tables, with the identity of their callers.

The owner listens for its workers on a Unix socket in a folder of their own. Nobody else reaches it, so what they say
there about who calls is believed.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from groundwork.grpc_handlers.failures import ForwardedFailure
from groundwork.rich_errors import RichError
from namesrv.config.limits import MAX_MESSAGE_BYTES
from namesrv.server.auth.callers import FORWARDED_FOR_KEY, FORWARDED_NAME_KEY, Context, certificate_names

FORWARD_SECONDS = 60.0
"""How long the owner may take for a call: more than any of its own bounds."""

OPTIONS = (
    ("grpc.max_receive_message_length", 2 * MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)

HANDED_ON = frozenset({"authorization", "traceparent", "tracestate"})
"""Metadata of a caller that the owner gets, too."""

Reached = Callable[[int], Awaitable[None]]
"""Waits, for a bounded time, until lookups here see a revision of the owner."""


class ForwardedService:
    """A servicer that hands every call of a service on to the owner."""

    def __init__(self, service: ServiceDescriptor, owner: grpc.aio.Channel, reached: Reached) -> None:
        """Has a method for each call.

        Args:
            service: The service from the wire contract.
            owner: The connection to the owner.
            reached: Is waited for before an answer, so that its caller finds here what it has just changed.
        """
        for method in service.methods:
            make = _stream if method.server_streaming else _unary
            setattr(self, method.name, make(method, owner, reached))


def _unary(method: MethodDescriptor, owner: grpc.aio.Channel, reached: Reached) -> Any:
    call = owner.unary_unary(_path(method), _encoded, GetMessageClass(method.output_type).FromString)

    async def forwarded(request: Message, context: Context) -> Any:
        try:
            answer: Any = await call(request, metadata=_on_behalf_of(context), timeout=_seconds_left(context))
        except grpc.aio.AioRpcError as error:
            raise ForwardedFailure(RichError.of(error)) from None
        await reached(answer.header.revision)
        return answer

    return forwarded


def _stream(method: MethodDescriptor, owner: grpc.aio.Channel, _reached: Reached) -> Any:
    call = owner.unary_stream(_path(method), _encoded, None)

    async def forwarded(request: Message, context: Context) -> AsyncIterator[bytes]:
        stream: Any = call(request, metadata=_on_behalf_of(context))
        with contextlib.ExitStack() as ending:
            ending.callback(stream.cancel)  # the owner is to see at once that the caller has gone
            try:
                async for answer in stream:
                    yield answer
            except grpc.aio.AioRpcError as error:
                raise ForwardedFailure(RichError.of(error)) from None

    return forwarded


def _path(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def _encoded(request: Message) -> bytes:
    return request.SerializeToString()


def _seconds_left(context: Context) -> float:
    left: float | None = context.time_remaining()  # the stubs do not know of the None that gRPC documents
    return FORWARD_SECONDS if left is None else min(left, FORWARD_SECONDS)


def _on_behalf_of(context: Context) -> tuple[tuple[str, str | bytes], ...]:
    """The caller as metadata: what it sent of itself, and what only this end of its connection knows."""
    sent = [(key, value) for key, value in context.invocation_metadata() or () if key in HANDED_ON]
    names = [(FORWARDED_NAME_KEY, name.encode()) for name in certificate_names(context)]
    return (*sent, *names, (FORWARDED_FOR_KEY, context.peer()))
