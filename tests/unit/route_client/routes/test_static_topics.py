"""Static topics: queues that are the same wherever they are, as RocketMQ's clients make them of the mappings."""

from __future__ import annotations

import pytest
from namesrv_api.v1 import route_data_pb2 as pb

from route_client import GroupKey, KnownRoute, MessageQueue, QueuePlace, TopicRoute, place_of
from route_client.queues import publish_info, subscribe_info
from route_client.route import from_wire, to_wire
from tests.support.routes.wire_routes import CLUSTER, route, wire_route

TOPIC = "Static"
SHARED = "__syslo__global__"


def static_route(**mappings: pb.StaticTopicMapping) -> TopicRoute:
    """A route on broker_a and broker_b with these mappings."""
    wire = wire_route(*mappings)
    for data in wire.queue_datas:
        data.mapping.CopyFrom(mappings[data.broker_name])
    return from_wire(wire)


def mapping(
    queues: dict[int, int], *, epoch: int = 1, total: int = 4, scope: str = "__global__"
) -> pb.StaticTopicMapping:
    return pb.StaticTopicMapping(
        scope=scope, total_queue_nums=total, epoch=epoch, topic_queue_ids=queues, broker_queue_ids=queues.values()
    )


def test_its_queues_are_named_after_their_scope_and_numbered_over_all_groups() -> None:
    found = static_route(broker_a=mapping({0: 0, 1: 1}), broker_b=mapping({2: 0, 3: 1}))
    queues = tuple(MessageQueue(TOPIC, SHARED, number) for number in range(4))
    assert publish_info(TOPIC, found).queues == subscribe_info(TOPIC, found) == queues
    places = [place_of(found, queue) for queue in queues]
    a, b = GroupKey(CLUSTER, "broker_a"), GroupKey(CLUSTER, "broker_b")
    assert places == [QueuePlace(a, 0), QueuePlace(a, 1), QueuePlace(b, 0), QueuePlace(b, 1)]


def test_a_queue_that_has_moved_is_where_the_newer_mapping_says() -> None:
    for epochs, group in (((1, 2), "broker_b"), ((2, 1), "broker_a")):
        found = static_route(broker_a=mapping({0: 0}, epoch=epochs[0]), broker_b=mapping({0: 7}, epoch=epochs[1]))
        place = place_of(found, MessageQueue(TOPIC, SHARED, 0))
        assert place is not None
        assert place.group == GroupKey(CLUSTER, group)


def test_a_queue_that_no_group_has_stays_and_has_no_place() -> None:
    found = static_route(broker_a=mapping({0: 0}))
    queues = publish_info(TOPIC, found).queues
    assert len(queues) == 4
    assert [place_of(found, queue) is None for queue in queues] == [False, True, True, True]


def test_other_scopes_have_queues_of_their_own() -> None:
    found = static_route(broker_a=mapping({0: 0}, scope="s", total=1), broker_b=mapping({0: 0}, total=1))
    queues = subscribe_info(TOPIC, found)
    assert [queue.broker_name for queue in queues] == ["__syslo__global__", "__syslo__s"]
    assert [place.group.broker_name for queue in queues if (place := place_of(found, queue))] == [
        "broker_b",
        "broker_a",
    ]


def test_an_ordered_configuration_comes_before_the_mappings() -> None:
    wire = wire_route(order="broker-a:1")
    wire.queue_datas[0].mapping.CopyFrom(mapping({0: 0}))
    assert publish_info(TOPIC, from_wire(wire)).ordered


def test_a_queue_of_another_topic_is_where_its_name_says() -> None:
    found = route()
    assert place_of(found, publish_info(TOPIC, found).queues[1]) == QueuePlace(GroupKey(CLUSTER, "broker-a"), 1)


def test_without_a_route_a_queue_has_no_place() -> None:
    known = KnownRoute(TOPIC, None)
    assert place_of(known.route, MessageQueue(TOPIC, "broker-a", 0)) is None


def test_a_mapping_is_in_what_is_written_to_disk() -> None:
    found = static_route(broker_a=mapping({0: 3, 1: 2}, epoch=5))
    assert from_wire(to_wire(found)) == found
    assert found != static_route(broker_a=mapping({0: 2, 1: 3}, epoch=5))


@pytest.mark.parametrize(
    "broken",
    [
        pb.StaticTopicMapping(total_queue_nums=-1),
        pb.StaticTopicMapping(total_queue_nums=2**31 - 1),
        pb.StaticTopicMapping(topic_queue_ids=[1, 2], broker_queue_ids=[1]),
    ],
)
def test_a_mapping_without_sense_is_refused(broken: pb.StaticTopicMapping) -> None:
    with pytest.raises(ValueError, match="mapping"):
        static_route(broker_a=broken)
