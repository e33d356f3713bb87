"""Static topics: their mappings go wherever the group's queues of the topic go."""

from __future__ import annotations

from namesrv_api.v1 import route_data_pb2

from namesrv.core.model import StaticMapping
from tests.support.core_fleet import A, B, Fleet
from tests.unit.namesrv.reference_operators import mapping_message
from tests.unit.namesrv.scenarios.groups import GROUP, hold, known_route, lift_all

STATIC = StaticMapping("__global__", 4, 1_795_340_517_986, False, ((0, 0), (1, 1), (2, 2), (3, 3)))
MOVED = StaticMapping("__global__", 4, 1_795_340_999_999, True, ((0, 0), (3, 5)))


def says(fleet: Fleet, *topics: str, addr: str = A, name: str = "broker-a", **mappings: StaticMapping) -> None:
    """A RocketMQ broker of version 5 registers."""
    fleet.register(addr, topics=topics, name=name, enable_acting_master=False, topic_by_topic=True, mappings=mappings)


def shown(fleet: Fleet, topic: str = "T") -> list[route_data_pb2.StaticTopicMapping]:
    """The mapping of each group of the route that has one."""
    return [queues.mapping for queues in known_route(fleet, topic).queue_datas if queues.HasField("mapping")]


def test_a_route_has_the_mapping_of_each_group_and_ordinary_topics_have_none(fleet: Fleet) -> None:
    says(fleet, "T", "Ordinary", T=STATIC)
    says(fleet, "T", addr=B, name="broker-b", T=MOVED)
    assert shown(fleet) == [mapping_message(STATIC), mapping_message(MOVED)]
    assert shown(fleet, "Ordinary") == []


def test_a_topic_registered_by_itself_keeps_its_mapping(fleet: Fleet) -> None:
    says(fleet, "T", T=STATIC)
    assert fleet.register_topic("T", {GROUP: (8, 8, 6, 0)})
    assert shown(fleet) == [mapping_message(STATIC)]


def test_a_held_static_topic_comes_back_with_the_mapping_that_was_said_last(fleet: Fleet) -> None:
    says(fleet, "T", "T2", T=STATIC)
    hold(fleet, "T")
    says(fleet, T=MOVED)
    says(fleet, "T")
    lift_all(fleet)
    assert shown(fleet) == [mapping_message(MOVED)]
