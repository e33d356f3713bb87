"""The allocation strategies give what RocketMQ's give."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from route_client.allocate import (
    AllocateAveragely,
    AllocateAveragelyByCircle,
    AllocateByConfig,
    AllocateByConsistentHash,
    AllocateByMachineRoom,
    AllocateByMachineRoomNearby,
    AllocateStrategy,
)
from route_client.errors import AllocationError
from route_client.route import MessageQueue

GROUP = "consumers"


def queues(number: int, broker: str = "broker-a") -> list[MessageQueue]:
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


ALL = [
    AllocateAveragely(),
    AllocateAveragelyByCircle(),
    AllocateByMachineRoom({"room1"}),
    AllocateByMachineRoomNearby(AllocateAveragely(), ByPrefix()),
    AllocateByConsistentHash(),
]


def test_scenario_80_averagely_gives_neighbouring_queues_and_the_first_clients_one_more() -> None:
    assert shares(AllocateAveragely(), queues(10), clients(4)) == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]
    assert shares(AllocateAveragely(), queues(2), clients(4)) == [[0], [1], [], []]
    assert shares(AllocateAveragely(), queues(4), clients(2)) == [[0, 1], [2, 3]]


@given(st.integers(1, 60), st.integers(1, 20), st.data())
@settings(deadline=None)
def test_averagely_is_upstream_s_formula(number: int, consumers: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, consumers - 1))
    mod = number % consumers
    more = mod > 0 and index < mod
    average = 1 if number <= consumers else number // consumers + (1 if more else 0)
    start = index * average if more else index * average + mod
    expected = [(start + step) % number for step in range(min(average, number - start))]
    assert shares(AllocateAveragely(), queues(number), clients(consumers))[index] == expected


def test_scenario_81_by_circle_deals_out_and_a_stranger_gets_nothing(caplog: pytest.LogCaptureFixture) -> None:
    circle = AllocateAveragelyByCircle()
    assert shares(circle, queues(10), clients(4)) == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
    with caplog.at_level(logging.WARNING, logger="route_client.allocate"):  # whatever other tests set
        assert circle.allocate(GROUP, "stranger", queues(10), clients(4)) == []
    assert "stranger" in caplog.text


def test_scenario_82_by_machine_room_gives_blocks_of_the_configured_rooms() -> None:
    roomless = [queues(1, name)[0] for name in ("room1", "room1@a@b", "room1@", "broker@room1")]
    all_queues = queues(5, "room1@broker-a") + queues(5, "room2@broker-b") + roomless
    strategy = AllocateByMachineRoom({"room1"})
    assert shares(strategy, all_queues, clients(2)) == [[0, 1, 4], [2, 3]]


def test_scenario_82_nearby_keeps_to_the_room_and_spreads_orphans() -> None:
    strategy = AllocateByMachineRoomNearby(AllocateAveragely(), ByPrefix())
    ids = [*clients(2, "room1:"), *clients(1, "room2:")]
    all_queues = [*queues(4, "room1@a"), *queues(3, "room2@b"), *queues(3, "room3@c")]
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
        strategy.allocate(GROUP, client, queues(2, broker), [client])


def test_config_gives_what_it_was_told_whoever_asks() -> None:
    strategy = AllocateByConfig(queues(2))
    assert strategy.allocate(GROUP, "", [], []) == queues(2)
    assert strategy.name == "CONFIG"


def owners(number: int, ids: Sequence[str]) -> dict[MessageQueue, str]:
    strategy = AllocateByConsistentHash()
    parts = [(id_, strategy.allocate(GROUP, id_, queues(number), ids)) for id_ in ids]
    assert sorted(queue for _, part in parts for queue in part) == queues(number), "each exactly once"
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
    assert AllocateByConsistentHash(0).allocate(GROUP, "a", queues(3), ["a"]) == []


@pytest.mark.parametrize("strategy", ALL, ids=lambda strategy: strategy.name)
def test_scenario_84_empty_arguments_are_refused_and_a_stranger_gets_nothing(strategy: AllocateStrategy) -> None:
    for arguments in (("", queues(1), ["a"]), ("a", [], ["a"]), ("a", queues(1), [])):
        with pytest.raises(AllocationError, match="is empty"):
            strategy.allocate(GROUP, *arguments)
    assert strategy.allocate(GROUP, "room1:stranger", queues(4, "room1@a"), ["room1:a"]) == []
