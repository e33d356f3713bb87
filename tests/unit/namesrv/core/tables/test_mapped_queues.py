"""Mappings of many queues: their encoding, and the memory that they take."""

from __future__ import annotations

import pytest
from namesrv_api.v1 import route_data_pb2

from namesrv.core.encoding import mapping_field
from namesrv.core.model import BrokerKey, DataVersion, Registration, StaticMapping
from namesrv.core.registrations import BrokerRegistration
from namesrv.core.tables import UNUSED_MAPPED_PER_BROKER
from tests.support.core_fleet import CLUSTER, A, Fleet
from tests.support.state_changes import apply_now

LARGE = 2_501


def mapping(queues: int) -> StaticMapping:
    return StaticMapping("__global__", queues, 7, True, tuple((queue, 2 * queue) for queue in range(queues)))


def registration(*mappings: StaticMapping) -> Registration:
    topics = {f"T{number}": one for number, one in enumerate(mappings)}
    return Registration(
        broker=BrokerKey(CLUSTER, "broker-a"),
        broker_id=0,
        broker_addr=A,
        data_version=DataVersion(1, 1),
        topic_configs=dict.fromkeys(topics, (8, 8, 6, 0)),
        topic_by_topic=True,
        mappings=topics,
    )


@pytest.mark.parametrize("queues", [0, 1, LARGE])
def test_a_mapping_in_parts_is_encoded_as_in_one(queues: int) -> None:
    one = mapping(queues)
    message = route_data_pb2.QueueData(
        mapping=route_data_pb2.StaticTopicMapping(
            scope=one.scope,
            total_queue_nums=one.total_queues,
            epoch=one.epoch,
            dirty=one.is_dirty,
            topic_queue_ids=[queue for queue, _ in one.queue_ids],
            broker_queue_ids=[queue for _, queue in one.queue_ids],
        )
    )
    assert mapping_field(one) == message.SerializeToString()


def test_a_broker_whose_mappings_change_over_and_over_does_not_grow_memory(fleet: Fleet) -> None:
    large, table = 40_000, fleet.state.index.queue_datas
    held = []
    for shift in range(30):
        moved = mapping(large)._replace(epoch=shift)
        apply_now(BrokerRegistration(fleet.state, registration(moved, mapping(1))))
        held.append(table.mapped_queues())
    assert max(held) <= UNUSED_MAPPED_PER_BROKER + 3 * (large + 1)
    route = fleet.route("T0")
    assert route is not None
    assert route.queue_datas[0].mapping.epoch == 29
    fleet.unregister()
    assert (table.mapped_queues(), table.mapped) == (0, {})
