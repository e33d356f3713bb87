"""Pieces framed by hand are what generated code encodes. Mappings of many queues: their memory, and their size."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from namesrv_api.v1 import route_data_pb2

from namesrv.app.writer import INLINE_TOPICS
from namesrv.core import encoding
from namesrv.core.model import BrokerKey, DataVersion, Registration, StaticMapping
from namesrv.core.registrations import BrokerRegistration
from namesrv.core.tables import QUEUES_LIKE_A_QUEUE_DATA, UNUSED_PER_BROKER
from tests.support.core_fleet import CLUSTER, A, Fleet
from tests.support.state_changes import apply_now
from tests.unit.namesrv.reference_operators import mapping_message

LARGE = 2_501


def mapping(queues: int) -> StaticMapping:
    return StaticMapping("__global__", queues, 7, True, tuple((queue, 2 * queue) for queue in range(queues)))


def registration(*mappings: StaticMapping, topic_by_topic: bool = True) -> Registration:
    topics = {f"T{number}": one for number, one in enumerate(mappings)}
    return Registration(
        broker=BrokerKey(CLUSTER, "broker-a"),
        broker_id=0,
        broker_addr=A,
        data_version=DataVersion(1, 1),
        topic_configs={name: (8, 8, 6, 0) if topic_by_topic else (8, 8, 6, 0, one) for name, one in topics.items()},
        topic_by_topic=topic_by_topic,
        mappings=topics if topic_by_topic else {},
    )


@pytest.mark.parametrize("topic_by_topic", [False, True])
def test_a_registration_of_one_static_topic_is_as_large_as_its_mapping(fleet: Fleet, topic_by_topic: bool) -> None:
    small, large = (registration(mapping(queues), topic_by_topic=topic_by_topic) for queues in (8, 10_000))
    assert BrokerRegistration(fleet.state, small).topics == 1
    assert BrokerRegistration(fleet.state, large).topics > INLINE_TOPICS


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


@pytest.mark.parametrize("queues", [0, 1, LARGE])
def test_a_mapping_in_parts_is_encoded_as_in_one(queues: int) -> None:
    message = route_data_pb2.QueueData(mapping=mapping_message(mapping(queues)))
    assert encoding.mapping_field(mapping(queues)) == message.SerializeToString()


def test_a_broker_whose_mappings_change_over_and_over_does_not_grow_memory(fleet: Fleet) -> None:
    large, table = 40_000, fleet.state.index.queue_datas
    held = []
    for shift in range(30):
        moved = mapping(large)._replace(epoch=shift)
        apply_now(BrokerRegistration(fleet.state, registration(moved, mapping(1))))
        interned = table.of_group(BrokerKey(CLUSTER, "broker-a")).values()
        held.append(sum(len(queue_data.mapping.queue_ids) for queue_data in interned if queue_data.mapping))
    assert max(held) <= UNUSED_PER_BROKER * QUEUES_LIKE_A_QUEUE_DATA + 3 * (large + 1)
    route = fleet.route("T0")
    assert route is not None
    assert route.queue_datas[0].mapping.epoch == 29
    fleet.unregister()
    assert (table.weights, table.mapped) == ({}, set())
