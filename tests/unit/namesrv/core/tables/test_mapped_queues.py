"""Mappings of many queues: the steps in which they become routes, and that nobody can tell these from one step."""

from __future__ import annotations

import pytest
from namesrv_api.v1 import route_data_pb2

from namesrv.core.encoding import MAPPED_SLICE, mapping_field
from namesrv.core.model import BrokerKey, DataVersion, Registration, StaticMapping
from namesrv.core.slices import run_sync
from namesrv.core.tables import UNUSED_MAPPED_PER_BROKER
from tests.support.core_fleet import CLUSTER, A, Fleet

LARGE = MAPPED_SLICE + 1


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


def steps_of(fleet: Fleet, *mappings: StaticMapping) -> int:
    return sum(1 for _ in fleet.manager.register_broker(registration(*mappings)))


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
    assert run_sync(mapping_field(one)) == message.SerializeToString()


def test_each_list_of_a_large_mapping_and_each_time_it_is_hashed_is_a_step(fleet: Fleet) -> None:
    steps_of(fleet, mapping(1))
    assert steps_of(fleet, mapping(1), mapping(2)) == 0
    assert steps_of(fleet, mapping(LARGE)) == 4
    assert steps_of(fleet, mapping(LARGE)) == 1, "said again, it is found by its hash"


def test_many_small_mappings_share_steps(fleet: Fleet) -> None:
    each = MAPPED_SLICE // 4
    assert steps_of(fleet, *(mapping(each + number) for number in range(10))) == 2


def test_a_broker_whose_mappings_change_over_and_over_does_not_grow_memory(fleet: Fleet) -> None:
    large, table = 40_000, fleet.manager.tables.queue_datas
    held = []
    for shift in range(30):
        moved = mapping(large)._replace(epoch=shift)
        steps_of(fleet, moved, mapping(1))
        held.append(sum(len(one.mapping.queue_ids) for one in table.by_fragment.values() if one.mapping))
    assert max(held) <= UNUSED_MAPPED_PER_BROKER + 3 * (large + 1)
    route = fleet.route("T0")
    assert route is not None
    assert route.queue_datas[0].mapping.epoch == 29
