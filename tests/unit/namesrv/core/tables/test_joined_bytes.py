"""Pieces framed by hand are exactly what generated code encodes, whatever their lengths."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from namesrv_api.v1 import route_data_pb2

from namesrv.core import encoding


@given(st.integers(0, 2**64 - 1))
def test_varints_are_protobufs(value: int) -> None:
    message = route_data_pb2.NamesrvHeader(revision=value - 2**64 if value >= 2**63 else value)
    assert message.SerializeToString() == bytes([3 << 3]) + encoding.varint(value)


@example(length=127, cut=0)
@example(length=128, cut=0)
@example(length=(1 << 14) - 1, cut=0)
@example(length=1 << 14, cut=0)
@given(length=st.integers(0, 40_000), cut=st.integers(0, 300))
def test_a_frame_of_parts_is_a_field(length: int, cut: int) -> None:
    text = "x" * length
    expected = route_data_pb2.TopicRouteData(order_topic_conf=text).SerializeToString()
    number = route_data_pb2.TopicRouteData.ORDER_TOPIC_CONF_FIELD_NUMBER
    assert encoding.frame(number, text[:cut].encode(), text[cut:].encode()) == expected
