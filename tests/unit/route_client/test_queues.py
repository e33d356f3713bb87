"""The queues of a route: for producers and static topics, by label, the next one, and the shares of consumers."""

from __future__ import annotations

import hashlib
import logging
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from namesrv_api.v1 import route_data_pb2 as pb

from route_client import GroupKey, MessageQueue, QueuePlace, TopicRoute, place_of, queues
from route_client.allocate import (
    AllocateAveragely,
    AllocateAveragelyByCircle,
    AllocateByConfig,
    AllocateByConsistentHash,
    AllocateByMachineRoom,
    AllocateByMachineRoomNearby,
    AllocateStrategy,
)
from route_client.errors import AllocationError, MalformedOrderConfError, NoWritableQueueError
from route_client.queues import (
    LatencyFaults,
    PublishInfo,
    PublishInfoCache,
    QueueSelector,
    not_available_millis,
    publish_info,
    subscribe_info,
)
from route_client.route import from_wire
from route_client.settings import ClientSettings
from tests.support.routes.wire_routes import CLUSTER, route, wire_route
from tests.support.virtual_clock import VirtualClock

TOPIC = "TopicTest"


def names(queues: object) -> list[tuple[str, int]]:
    return [(queue.broker_name, queue.queue_id) for queue in queues]  # type: ignore[attr-defined]


def test_scenario_78_queues_of_a_group_with_a_master_or_of_the_ordered_configuration() -> None:
    for unordered in (route(queues=4), route(queues=4, order="")):
        info = publish_info(TOPIC, unordered)
        assert (len(info.queues), info.ordered) == (4, False)
    for default_queues, expected in ((8, 4), (2, 2)):
        info = publish_info("NewTopic", route(queues=default_queues), by_default=True)
        assert (len(info.queues), info.by_default) == (expected, True)
    wire = wire_route("x", perm=4, ids=(), order="b:1;127.0.0.1:4;")  # and nothing else in the route counts
    wire.queue_datas[0].mapping.CopyFrom(mapping({0: 0}))
    ordered = publish_info(TOPIC, from_wire(wire))
    assert names(ordered.queues) == [("b", 0), *(("127.0.0.1", number) for number in range(4))]
    assert ordered.ordered


def test_queues_without_write_bit_master_or_addresses_take_no_messages() -> None:
    for read_only in (route(perm=5), route(ids=(1, 2))):
        assert publish_info(TOPIC, read_only).queues == ()
        assert len(subscribe_info(TOPIC, read_only)) == 4
    wire = wire_route("broker-a", "broker-b")
    del wire.broker_datas[1]
    unknown = from_wire(wire)
    assert unknown.groups_without_addresses == ((CLUSTER, "broker-b"),)
    assert {queue.broker_name for queue in publish_info(TOPIC, unknown).queues} == {"broker-a"}


@pytest.mark.parametrize(
    "order", ["a", "a:", ":4", "a:b", "a:-1", "a:65536", "a:4;;b:4", "a:" + "9" * 5_000, "a:\u0664", "a:4;b"]
)
def test_a_malformed_ordered_configuration_is_refused_by_piece_and_rule(order: str) -> None:
    with pytest.raises(MalformedOrderConfError, match=r"TopicTest.*piece.*brokerName:queues"):
        publish_info(TOPIC, route(order=order))


def test_queues_are_made_once_a_route_and_a_malformed_one_leaves_them() -> None:
    infos, held = PublishInfoCache(ClientSettings()), route()
    assert infos.of(TOPIC, held) is infos.of(TOPIC, held)
    infos.forget(TOPIC)
    with pytest.raises(MalformedOrderConfError):
        infos.of(TOPIC, route(order="a"))
    good = infos.of(TOPIC, route(order="a:2"))
    assert infos.of(TOPIC, route(order="a")) == good
    assert infos.of(TOPIC, route()).ordered is False


def test_subscribe_info_is_sorted_and_has_the_readable_queues() -> None:
    some = route("b", "a", queues=2)
    a, b = some.queue_datas
    changed = replace(some, queue_datas=(replace(a, perm=2), replace(b, write_queue_nums=1)))
    assert names(subscribe_info(TOPIC, some)) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert names(subscribe_info(TOPIC, changed)) == [("b", 0), ("b", 1)]
    assert names(publish_info(TOPIC, changed).queues) == [("a", 0), ("a", 1), ("b", 0)]


TWO_BROKERS = publish_info("TopicTest", route("broker-a", "broker-b", queues=2))


def test_queues_are_taken_in_turn_from_a_random_one_on() -> None:
    firsts = set()
    for seed in range(20):
        selector = QueueSelector(random.Random(seed))
        taken = [selector.select_one_queue(TWO_BROKERS) for _ in range(8)]
        start = TWO_BROKERS.queues.index(taken[0])
        assert taken == [TWO_BROKERS.queues[(start + step) % 4] for step in range(8)]
        firsts.add(start)
    assert firsts == {0, 1, 2, 3}


def test_another_try_goes_to_another_broker_if_there_is_one() -> None:
    selector = QueueSelector(random.Random(0))
    for _ in range(10):
        assert selector.select_one_queue(TWO_BROKERS, "broker-a").broker_name == "broker-b"
    assert selector.select_one_queue(publish_info(TOPIC, route("broker-a")), "broker-a").broker_name == "broker-a"
    with pytest.raises(NoWritableQueueError, match="TopicTest"):
        selector.select_one_queue(PublishInfo("TopicTest", ()))


def test_scenario_85_faulty_and_slow_brokers_are_avoided_for_their_time() -> None:
    clock = VirtualClock()
    faults = LatencyFaults(clock, random.Random(1))
    faults.update_fault_item("broker-a", 3_000, 3_000)
    assert not faults.is_available("broker-a")
    assert faults.is_available("broker-b")
    clock.advance(3.0)
    assert faults.is_available("broker-a")
    faults.remove("broker-a")
    faults.update_fault_item("slow", 5_000, 60_000)
    faults.update_fault_item("quick", 40, 60_000)
    assert {faults.pick_one_at_least() for _ in range(4)} == {"quick"}
    faults.update_fault_item("back", 9_000, 0)
    assert {faults.pick_one_at_least() for _ in range(4)} == {"back"}
    faults.remove("slow")
    assert faults.is_available("slow")
    faults.report("refuses", 0.2, failed=True)
    faults.report("slow", 14_999)
    assert faults.pick_one_at_least({"refuses", "slow"}) == "slow"


def test_faults_that_end_first_are_forgotten_over_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    faults = LatencyFaults(clock, random.Random(1))
    monkeypatch.setattr(queues, "MAX_FAULT_ITEMS", 2)
    for name in "abacd":
        clock.advance(1)
        faults.report(name, 0.0, failed=True)
    assert [faults.is_available(name) for name in "abcd"] == [True, True, False, False]


def test_the_better_half_takes_turns() -> None:
    faults = LatencyFaults(VirtualClock(), random.Random(1))
    for number in range(5):
        faults.update_fault_item(f"broker-{number}", number, 60_000)
    assert Counter(faults.pick_one_at_least() for _ in range(10)) == {"broker-0": 5, "broker-1": 5}
    assert faults.pick_one_at_least({"broker-4"}) == "broker-4"
    assert faults.pick_one_at_least({"unheard of"}) is None


@pytest.mark.parametrize(
    ("latency", "left_alone"),
    [(0, 0), (50, 0), (549, 0), (550, 30_000), (999, 30_000), (1_000, 60_000), (14_999, 180_000), (15_000, 600_000)],
)
def test_the_longer_a_call_takes_the_longer_its_broker_is_left_alone(latency: int, left_alone: int) -> None:
    assert not_available_millis(latency) == left_alone


def test_if_all_are_faulty_the_best_is_taken_and_the_shared_list_stays_as_it_is() -> None:
    before = TWO_BROKERS.queues
    faults = LatencyFaults(VirtualClock(), random.Random(1))
    selector = QueueSelector(random.Random(0), faults)
    faults.report("broker-a", 15_000)
    faults.report("broker-b", 600)
    faults.report("of-another-topic", 550)
    taken = [selector.select_one_queue(TWO_BROKERS) for _ in range(8)]
    assert {(queue.broker_name, queue.queue_id) for queue in taken} == {("broker-b", 0), ("broker-b", 1)}
    assert TWO_BROKERS.queues == before
    assert not faults.is_available("of-another-topic"), "upstream forgets the fault of a broker that it cannot use"


STATIC = "Static"
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


def test_its_queues_are_named_after_scopes_and_numbered_over_all_groups() -> None:
    found = static_route(
        broker_a=mapping({0: 5}, scope="s", total=1), broker_b=mapping({0: 0, 1: 1}), broker_c=mapping({2: 0}, total=3)
    )
    global_ones = [MessageQueue(STATIC, SHARED, number) for number in range(4)]
    queues = (global_ones[0], MessageQueue(STATIC, "__syslo__s", 0), *global_ones[1:])
    assert publish_info(STATIC, found).queues == subscribe_info(STATIC, found) == queues
    a, b, c = (GroupKey(CLUSTER, name) for name in ("broker_a", "broker_b", "broker_c"))
    places = [QueuePlace(b, 0), QueuePlace(a, 5), QueuePlace(b, 1), QueuePlace(c, 0), None]
    assert [place_of(found, queue) for queue in queues] == places, "no group has the last one"
    (_, named_after_its_broker) = publish_info(STATIC, route("broker_a", queues=2)).queues
    assert place_of(found, named_after_its_broker) == QueuePlace(a, 1)
    assert place_of(None, named_after_its_broker) is None


def test_a_queue_that_has_moved_is_where_the_newer_mapping_says() -> None:
    for epochs, group in (((1, 2), "broker_b"), ((2, 1), "broker_a"), ((1, 1), "broker_b")):
        found = static_route(broker_a=mapping({0: 0}, epoch=epochs[0]), broker_b=mapping({0: 7}, epoch=epochs[1]))
        place = place_of(found, MessageQueue(STATIC, SHARED, 0))
        assert place is not None
        assert place.group == GroupKey(CLUSTER, group)


def test_an_absent_field_differs_from_an_empty_one() -> None:
    empty = wire_route(order="", zones={"broker-a": ""})
    empty.broker_datas[0].enable_acting_master = False
    for found, expected in ((route(), (None, None, None)), (from_wire(empty), ("", "", False))):
        (group,) = found.broker_datas
        assert (found.order_topic_conf, group.zone_name, group.enable_acting_master) == expected


@pytest.mark.parametrize(
    "broken",
    [
        {"read_queue_nums": -1},
        {"write_queue_nums": 65_536},
        {"mapping": pb.StaticTopicMapping(total_queue_nums=-1)},
        {"mapping": pb.StaticTopicMapping(total_queue_nums=65_536)},
        {"mapping": pb.StaticTopicMapping(topic_queue_ids=[1, 2], broker_queue_ids=[1])},
    ],
)
def test_queues_that_no_broker_can_have_are_refused_by_field(broken: dict[str, Any]) -> None:
    wire = wire_route()
    wire.queue_datas[0].MergeFrom(pb.QueueData(**broken))
    with pytest.raises(ValueError, match=f"^{next(iter(broken))}.* of broker 'broker-a' "):
        from_wire(wire)


LABELS = {"a": {"rack": "r1", "row": "7"}, "b": {"rack": "r2"}, "c": {}, "d": {}}
"""Those of each master; each slave has others. The last group has slaves only."""
ZONES = {"a": "zone-1", "b": "zone-2", "c": "zone-2", "d": "zone-3"}


def labelled_route() -> TopicRoute:
    wire = wire_route(*LABELS, queues=2, zones=ZONES)
    for group in wire.broker_datas:
        master, slave = group.broker_addrs
        master.labels.update(LABELS[group.broker_name])
        slave.labels["rack"] = "of-slaves"
    del wire.broker_datas[3].broker_addrs[0]
    return from_wire(wire)


@pytest.mark.parametrize(
    ("zone", "wanted", "groups", "outside"),
    [
        (None, {}, "abc", None),
        (None, {"rack": "r1"}, "a", None),
        (None, {"rack": "r1", "row": "7"}, "a", None),
        (None, {"rack": "r2", "row": "7"}, "abc", "labels"),
        (None, {"rack": "of-slaves"}, "abc", "labels"),
        ("zone-1", {}, "a", None),
        ("zone-2", {"rack": "r2"}, "b", None),
        ("zone-2", {"rack": "r1"}, "bc", "labels"),
        ("zone-3", {}, "abc", "zone"),
        ("zone-4", {}, "abc", "zone"),
    ],
)
def test_brokers_with_all_labels_are_taken_or_all_of_the_zone_or_all(
    zone: str | None, wanted: dict[str, str], groups: str, outside: str | None
) -> None:
    found = labelled_route()
    info = PublishInfoCache(ClientSettings(zone_name=zone, prefer_labels=wanted)).of(TOPIC, found)
    assert names(info.queues) == [(group, number) for group in groups for number in range(2)]
    assert (info.outside_zone, info.outside_labels) == (outside == "zone", outside == "labels")
    in_zone = [group for group in LABELS if zone in {ZONES[group], "zone-4", None}]
    assert names(subscribe_info(TOPIC, found, zone)) == [(group, number) for group in in_zone for number in range(2)]


GROUP = "consumers"


def numbered(number: int, broker: str = "broker-a") -> list[MessageQueue]:
    return [MessageQueue("TopicTest", broker, queue_id) for queue_id in range(number)]


def clients(number: int, room: str = "") -> list[str]:
    return [f"{room}client-{index:03}" for index in range(number)]


def shares(strategy: AllocateStrategy, all_queues: Sequence[MessageQueue], ids: Sequence[str]) -> list[list[int]]:
    return [[all_queues.index(queue) for queue in strategy.allocate(GROUP, id_, all_queues, ids)] for id_ in ids]


class ByPrefix:
    """Rooms are what stands before the colon, or before the at sign of a broker's name."""

    def broker_deploy_in(self, queue: MessageQueue) -> str:
        return queue.broker_name.partition("@")[0]

    def consumer_deploy_in(self, client_id: str) -> str:
        return client_id.partition(":")[0]


def test_scenario_80_averagely_gives_neighbouring_queues_and_the_first_clients_one_more() -> None:
    assert shares(AllocateAveragely(), numbered(10), clients(4)) == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]
    assert shares(AllocateAveragely(), numbered(2), clients(4)) == [[0], [1], [], []]
    assert shares(AllocateAveragely(), numbered(4), clients(2)) == [[0, 1], [2, 3]]


@given(st.integers(1, 60), st.integers(1, 20), st.data())
@settings(deadline=None)
def test_averagely_is_upstream_s_formula(number: int, consumers: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, consumers - 1))
    mod = number % consumers
    more = mod > 0 and index < mod
    average = 1 if number <= consumers else number // consumers + (1 if more else 0)
    start = index * average if more else index * average + mod
    expected = [(start + step) % number for step in range(min(average, number - start))]
    assert shares(AllocateAveragely(), numbered(number), clients(consumers))[index] == expected


def test_scenario_81_by_circle_deals_out_and_a_stranger_gets_nothing(caplog: pytest.LogCaptureFixture) -> None:
    circle = AllocateAveragelyByCircle()
    assert shares(circle, numbered(10), clients(4)) == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
    with caplog.at_level(logging.WARNING, logger="route_client.allocate"):  # whatever other tests set
        assert circle.allocate(GROUP, "stranger", numbered(10), clients(4)) == []
    assert "stranger" in caplog.text


def test_scenario_82_by_machine_room_gives_blocks_of_the_configured_rooms() -> None:
    roomless = [numbered(1, name)[0] for name in ("room1", "room1@a@b", "room1@", "broker@room1")]
    all_queues = numbered(5, "room1@broker-a") + numbered(5, "room2@broker-b") + roomless
    strategy = AllocateByMachineRoom({"room1"})
    assert shares(strategy, all_queues, clients(2)) == [[0, 1, 4], [2, 3]]


def test_scenario_82_nearby_keeps_to_the_room_and_spreads_orphans() -> None:
    strategy = AllocateByMachineRoomNearby(AllocateAveragely(), ByPrefix())
    ids = [*clients(2, "room1:"), *clients(1, "room2:")]
    all_queues = [*numbered(4, "room1@a"), *numbered(3, "room2@b"), *numbered(3, "room3@c")]
    got = {id_: strategy.allocate(GROUP, id_, all_queues, ids) for id_ in ids}
    assert sorted(queue for part in got.values() for queue in part) == sorted(all_queues), "each exactly once"
    for id_, part in got.items():
        assert {queue.broker_name.partition("@")[0] for queue in part} == {id_.partition(":")[0], "room3"}
    assert [len([queue for queue in part if queue.broker_name == "room3@c"]) for part in got.values()] == [1, 1, 1]
    assert strategy.name == "MACHINE_ROOM_NEARBY-AVG"


@pytest.mark.parametrize(("broker", "client"), [("@x", "room1:a"), ("room1@x", ":a")])
def test_nearby_refuses_whoever_is_nowhere(broker: str, client: str) -> None:
    strategy = AllocateByMachineRoomNearby(AllocateAveragely(), ByPrefix())
    with pytest.raises(AllocationError, match="has no machine room"):
        strategy.allocate(GROUP, client, numbered(2, broker), [client])


def test_config_gives_what_it_was_told_whoever_asks() -> None:
    strategy = AllocateByConfig(numbered(2))
    assert strategy.allocate(GROUP, "", [], []) == numbered(2)
    assert strategy.name == "CONFIG"


def owners(number: int, ids: Sequence[str]) -> dict[MessageQueue, str]:
    strategy = AllocateByConsistentHash()
    parts = [(id_, strategy.allocate(GROUP, id_, numbered(number), ids)) for id_ in ids]
    assert sorted(queue for _, part in parts for queue in part) == numbered(number), "each exactly once"
    return {queue: id_ for id_, part in parts for queue in part}


@given(st.integers(1, 100), st.integers(2, 12), st.data())
@settings(deadline=None)
def test_scenario_83_consistent_hash_moves_only_the_queues_of_who_comes_or_goes(
    number: int, consumers: int, data: st.DataObject
) -> None:
    ids = clients(consumers)
    leaver = data.draw(st.sampled_from(ids))
    before, after = owners(number, ids), owners(number, [id_ for id_ in ids if id_ != leaver])
    moved = {queue for queue in before if before[queue] != after[queue]}
    assert {before[queue] for queue in moved} <= {leaver}
    assert all(queue in moved for queue, id_ in before.items() if id_ == leaver)


def test_consistent_hash_has_upstream_s_places() -> None:
    def first_four_bytes(key: str) -> int:
        number = 0
        for byte in hashlib.md5(key.encode()).digest()[:4]:
            number = number << 8 | byte
        return number

    ring = {first_four_bytes(f"{id_}-{node}"): id_ for id_ in clients(3) for node in range(10)}
    for queue, owner in owners(20, clients(3)).items():
        key = f"MessageQueue [topic=TopicTest, brokerName=broker-a, queueId={queue.queue_id}]"
        later = [place for place in ring if place >= first_four_bytes(key)]
        assert ring[min(later or ring)] == owner


def test_a_negative_number_of_virtual_nodes_is_refused_and_none_gives_nothing() -> None:
    with pytest.raises(AllocationError, match="virtual_nodes is -1"):
        AllocateByConsistentHash(-1)
    assert AllocateByConsistentHash(0).allocate(GROUP, "a", numbered(3), ["a"]) == []


@pytest.mark.parametrize(
    "strategy",
    [
        *(AllocateAveragely(), AllocateAveragelyByCircle(), AllocateByConsistentHash()),
        *(AllocateByMachineRoom({"room1"}), AllocateByMachineRoomNearby(AllocateAveragely(), ByPrefix())),
    ],
    ids=lambda strategy: strategy.name,
)
def test_scenario_84_empty_arguments_are_refused_and_a_stranger_gets_nothing(strategy: AllocateStrategy) -> None:
    for arguments in (("", numbered(1), ["a"]), ("a", [], ["a"]), ("a", numbered(1), [])):
        with pytest.raises(AllocationError, match="is empty"):
            strategy.allocate(GROUP, *arguments)
    assert strategy.allocate(GROUP, "room1:stranger", numbered(4, "room1@a"), ["room1:a"]) == []
