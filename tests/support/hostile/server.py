"""A server of name servers' and agents' calls whose every text is hostile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import RichError
from groundwork.namesrv_client import SERVICES
from nsctl.fleet import AGENT_SERVICES
from tests.support.hostile.text import HOSTILE


def fill(message: Message, depth: int = 6) -> Message:
    """Puts something into each field; the same text into all that take one. There is no next page."""
    for field in message.DESCRIPTOR.fields:
        if field.name != "next_page_token" and (depth or field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE):
            _fill(message, field, depth)
    return message


def _fill(message: Any, field: Any, depth: int) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = {part.name: part for part in field.message_type.fields}
        key, value = _value(entry["key"]), entry["value"]
        if value.message_type is None:
            getattr(message, field.name)[key] = _value(value)
        else:
            fill(getattr(message, field.name)[key], depth - 1)
    elif field.message_type is not None:
        fill(getattr(message, field.name).add() if field.is_repeated else getattr(message, field.name), depth - 1)
    elif field.is_repeated:
        getattr(message, field.name).append(_value(field))
    else:
        setattr(message, field.name, _value(field))


def _value(field: Any) -> Any:
    return {
        FieldDescriptor.CPPTYPE_STRING: b"\x1b" if field.type == FieldDescriptor.TYPE_BYTES else HOSTILE,
        FieldDescriptor.CPPTYPE_ENUM: 1,
        FieldDescriptor.CPPTYPE_BOOL: True,
    }.get(field.cpp_type, 1)


Answer = Callable[[MethodDescriptor, grpc.ServicerContext], Message]


def filled(method: MethodDescriptor, _context: grpc.ServicerContext) -> Message:
    """A full answer."""
    return fill(GetMessageClass(method.output_type)())


def refused(_method: MethodDescriptor, context: grpc.ServicerContext) -> Message:
    """An error all of whose texts are hostile."""
    error = RichError(grpc.StatusCode.NOT_FOUND, HOSTILE, reason=HOSTILE, domain=HOSTILE, metadata={HOSTILE: HOSTILE})
    context.abort_with_status(error.status())
    raise AssertionError


@contextmanager
def hostile_server(answer: Answer) -> Iterator[Endpoint]:
    """Answers every call of a name server and of an agent in the same way."""
    with ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool)
        for service in (*SERVICES, *AGENT_SERVICES):
            handlers = {method.name: _handler(method, answer) for method in service.methods}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
        endpoint = Endpoint("127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
        server.start()
        try:
            yield endpoint
        finally:
            stopped: threading.Event = server.stop(0)
            assert stopped.wait(20)


def _handler(method: MethodDescriptor, answer: Answer) -> grpc.RpcMethodHandler[Any, Any]:
    def unary(_request: bytes, context: grpc.ServicerContext) -> bytes:
        return answer(method, context).SerializeToString()

    def stream(_request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield answer(method, context).SerializeToString()

    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(stream)
    return grpc.unary_unary_rpc_method_handler(unary)
