"""What producers and consumers make of a route."""

from __future__ import annotations

from dataclasses import replace

import pytest

from route_client.errors import MalformedOrderConfError
from route_client.queues import PublishInfoCache, default_publish_info, publish_info, subscribe_info
from route_client.route import from_wire
from route_client.settings import ClientSettings
from tests.support.routes.wire_routes import CLUSTER, route, wire_route

TOPIC = "TopicTest"


def names(queues: object) -> list[tuple[str, int]]:
    return [(queue.broker_name, queue.queue_id) for queue in queues]  # type: ignore[attr-defined]


def test_scenario_78_queues_of_a_group_with_a_master_or_of_the_ordered_configuration() -> None:
    info = publish_info(TOPIC, route(queues=4))
    assert (len(info.queues), info.ordered) == (4, False)
    ordered = publish_info(TOPIC, route(queues=4, order="127.0.0.1:4"))
    assert names(ordered.queues) == [("127.0.0.1", number) for number in range(4)]
    assert ordered.ordered


@pytest.mark.parametrize("perm", [0, 1, 4, 5])
def test_queues_without_the_write_bit_take_no_messages(perm: int) -> None:
    assert not publish_info(TOPIC, route(perm=perm)).usable


def test_queues_of_a_group_without_a_master_take_no_messages_and_can_be_read() -> None:
    without_master = route(ids=(1, 2))
    assert not publish_info(TOPIC, without_master).usable
    assert len(subscribe_info(TOPIC, without_master)) == 4


def test_queues_on_a_group_without_addresses_take_no_messages() -> None:
    wire = wire_route("broker-a", "broker-b")
    del wire.broker_datas[1]
    unknown = from_wire(wire)
    assert unknown.groups_without_addresses == ((CLUSTER, "broker-b"),)
    assert {queue.broker_name for queue in publish_info(TOPIC, unknown).queues} == {"broker-a"}


def test_queues_come_by_broker_name_whatever_the_order_on_the_wire() -> None:
    assert names(publish_info(TOPIC, route("b", "a", queues=2)).queues) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_ordered_queues_keep_their_order_and_look_at_nothing_else_in_the_route() -> None:
    info = publish_info(TOPIC, route("x", perm=4, ids=(), order="b:1;a:2;"))
    assert names(info.queues) == [("b", 0), ("a", 0), ("a", 1)]


def test_an_empty_ordered_configuration_is_none() -> None:
    assert not publish_info(TOPIC, route(order="")).ordered


@pytest.mark.parametrize(
    "order", ["a", "a:", ":4", "a:b", "a:-1", "a:65536", "a:4;;b:4", "a:" + "9" * 5_000, "a:\u0664", "a:4;b"]
)
def test_a_malformed_ordered_configuration_is_refused_by_piece_and_rule(order: str) -> None:
    with pytest.raises(MalformedOrderConfError, match=r"TopicTest.*piece.*brokerName:queues"):
        publish_info(TOPIC, route(order=order))


def test_a_malformed_ordered_configuration_leaves_the_queues_as_they_were() -> None:
    infos = PublishInfoCache(ClientSettings())
    with pytest.raises(MalformedOrderConfError):
        infos.of_route(TOPIC, route(order="a"))
    good = infos.of_route(TOPIC, route(order="a:2"))
    assert infos.of_route(TOPIC, route(order="a")) == good
    assert infos.of_route(TOPIC, route()).ordered is False


def test_publish_info_is_made_once_a_route() -> None:
    infos, held = PublishInfoCache(ClientSettings()), route()
    assert infos.of_route(TOPIC, held) is infos.of_route(TOPIC, held)


@pytest.mark.parametrize(("default_queues", "expected"), [(8, 4), (4, 4), (2, 2)])
def test_a_topic_without_a_route_has_at_most_four_queues_on_each_broker_of_the_default_topic(
    default_queues: int, expected: int
) -> None:
    info = default_publish_info("NewTopic", route(queues=default_queues, perm=7))
    assert len(info.queues) == expected
    assert info.by_default
    assert info.queues[0].topic == "NewTopic"


def test_subscribe_info_is_sorted_and_has_the_readable_queues() -> None:
    some = route("b", "a", queues=2)
    unreadable = replace(some, queue_datas=(replace(some.queue_datas[0], perm=2), some.queue_datas[1]))
    assert names(subscribe_info(TOPIC, some)) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert names(subscribe_info(TOPIC, unreadable)) == [("b", 0), ("b", 1)]


def test_the_own_zone_comes_first_and_everybody_if_it_has_nothing() -> None:
    zoned = route("a", "b", queues=1, zones={"a": "zone-1", "b": "zone-2"})
    assert names(publish_info(TOPIC, zoned, "zone-2").queues) == [("b", 0)]
    assert names(subscribe_info(TOPIC, zoned, "zone-1")) == [("a", 0)]
    nowhere = publish_info(TOPIC, zoned, "zone-3")
    assert names(nowhere.queues) == [("a", 0), ("b", 0)]
    assert nowhere.outside_zone


def test_a_zone_whose_groups_lost_their_masters_is_left_for_the_others() -> None:
    zoned = route("a", "b", queues=1, zones={"a": "zone-1", "b": "zone-2"})
    slaves = replace(zoned.broker_datas[0], broker_addrs=((1, "a:10912"),))
    info = publish_info(TOPIC, replace(zoned, broker_datas=(slaves, zoned.broker_datas[1])), "zone-1")
    assert names(info.queues) == [("b", 0)]
    assert info.outside_zone
