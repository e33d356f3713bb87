"""Requests with hostile values in every field, made from the wire contract."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

_TEXTS = (
    *("", " ", "*", "TopicTest", "DefaultCluster", "broker-a", "127.0.0.1:10911", "[::1]:1", "host:0", "%RETRY%g"),
    *("TBW102", "ns", "key", "orderMessageEnable", "scanNotActiveBrokerInterval", "logLevel", "listen"),
    *(
        "true",
        "0",
        "-1",
        "NaN",
        "1" * 5_000,
        "VG9waWNUZXN0",
        "a" * 127,
        "a" * 128,
        "b" * 256,
        "c" * 4_097,
        "d" * 70_000,
    ),
    *("\0", "a\nb", "\u202e", "größer €", "%s%n", "../../etc", "(" * 200, "TAGS IS NOT NULL AND x > 1e999", "{}"),
)
"""What means something to some call, what is at a limit or one past it, and what breaks careless code."""

_MAX_INT32, _MAX_INT64 = 2**31 - 1, 2**63 - 1
_LIMITS = {
    FieldDescriptor.CPPTYPE_INT32: (-_MAX_INT32 - 1, _MAX_INT32),
    FieldDescriptor.CPPTYPE_INT64: (-_MAX_INT64 - 1, _MAX_INT64),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2 * _MAX_INT32 + 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2 * _MAX_INT64 + 1),
}
_MOST_ELEMENTS = 3
_DEEPEST = 4
_UNKNOWN_FIELDS = (b"", b"", b"\x82\x7d\x03abc", b"\xf8\x7f\x05", b"\x82\x7d\xff\xff\xff\xff\x0f", b"\xff", b"\x0b")
"""Put behind a message: nothing, fields of a newer version, one that is cut off, and what is no field."""


def methods_of(*services: ServiceDescriptor) -> list[MethodDescriptor]:
    """The calls of services."""
    return [method for service in services for method in service.methods]


def path_of(method: MethodDescriptor) -> str:
    """What a call is named by on the wire."""
    return f"/{method.containing_service.full_name}/{method.name}"


def _scalar(draw: st.DrawFn, field: FieldDescriptor) -> Any:
    kind = field.cpp_type
    if kind in _LIMITS:
        low, high = _LIMITS[kind]
        return draw(st.sampled_from((low, high, 0, 1, 2, 4, 1_000)) | st.integers(low, high))
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return draw(st.booleans())
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        assert field.enum_type is not None
        return draw(st.sampled_from((*field.enum_type.values_by_number, -1, 99, _MAX_INT32)))
    if kind in {FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT}:
        return draw(st.floats())
    text = draw(st.sampled_from(_TEXTS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
    return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text


def _fill(draw: st.DrawFn, message: Message, depth: int) -> None:
    fields: list[FieldDescriptor] = list(message.DESCRIPTOR.fields)  # type: ignore[arg-type]
    for field in fields:
        if depth == _DEEPEST or not draw(st.integers(0, 2)):
            continue
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for _ in range(draw(st.integers(0, _MOST_ELEMENTS))):
                names: Any = field.message_type.fields_by_name
                value[_scalar(draw, names["key"])] = _scalar(draw, names["value"])
        elif field.is_repeated:
            for _ in range(draw(st.integers(0, _MOST_ELEMENTS))):
                if field.message_type is None:
                    value.append(_scalar(draw, field))
                else:
                    _fill(draw, value.add(), depth + 1)
        elif field.message_type is None:
            setattr(message, field.name, _scalar(draw, field))
        else:
            value.SetInParent()
            _fill(draw, value, depth + 1)


@st.composite
def requests(draw: st.DrawFn, methods: list[MethodDescriptor]) -> tuple[MethodDescriptor, bytes]:
    """A call, and the bytes of a request for it: nearly always a message, and one without sense."""
    method = draw(st.sampled_from(methods))
    if not draw(st.integers(0, 19)):
        return method, draw(st.binary(max_size=100))
    message: Message = GetMessageClass(method.input_type)()
    _fill(draw, message, 0)
    return method, message.SerializeToString() + draw(st.sampled_from(_UNKNOWN_FIELDS))
