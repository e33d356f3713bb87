"""A text that would do harm at a terminal or in a log, and a server all of whose texts are that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from broker_agent_api.v1 import broker_agent_service_pb2
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import RichError
from namesrv_common.printable import UNPRINTABLE
from tests.support.fakes.scripted_namesrv import SERVICES, ScriptedNamesrv, refuse

_MARKUP = "[bold]:bomb:<img src=x onerror=alert(1)>\"'"
HOSTILE = f"a\x1b[31mb\x9b1mc\u202ed\u2028e\nf\rg\x07h\u2066i\x7fj\t\u200bk\U000e0041{_MARKUP}"
"""ESC and C1, bidirectional controls, ends of lines, what is not seen, and markup of our own tables and pages."""


def unescaped(shown: str) -> set[str]:
    """The characters of an output that should have been escaped; ends of lines are the output's own."""
    return {found.group() for found in UNPRINTABLE.finditer(shown)} - {"\n"}


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
    refuse(context, error)


class _HostileServer(ScriptedNamesrv):
    services = (*SERVICES, broker_agent_service_pb2.DESCRIPTOR.services_by_name["BrokerAgentService"])

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self._answer = answer

    def behaviour_of(self, method: MethodDescriptor) -> Callable[..., Any]:
        def unary(_request: Message, context: grpc.ServicerContext) -> Message:
            return self._answer(method, context)

        def stream(_request: Message, context: grpc.ServicerContext) -> Iterator[Message]:
            yield self._answer(method, context)

        return stream if method.server_streaming else unary


@contextmanager
def hostile_server(answer: Answer) -> Iterator[Endpoint]:
    """Answers every call of a name server and of an agent in the same way."""
    with _HostileServer(answer) as server:
        yield server.endpoint
