"""Static topics: their mappings go wherever the group's queues of the topic go."""

from __future__ import annotations

from namesrv_api.v1 import route_data_pb2, route_service_pb2

from namesrv.core.digests import FRONT
from namesrv.core.model import BrokerKey, DataVersion, RegisterBrokerResult, StaticMapping
from namesrv.core.policy import Behaviour
from tests.support.core_fleet import CLUSTER, VERSION, A, B, Fleet
from tests.unit.namesrv.scenarios.groups import (
    GROUP,
    delete_topic,
    hold,
    known_route,
    lift_all,
    perms,
    wipe,
)

STATIC = StaticMapping("__global__", 4, 1_795_340_517_986, False, ((0, 0), (1, 1), (2, 2), (3, 3)))
MOVED = StaticMapping("__global__", 4, 1_795_340_999_999, True, ((0, 0), (3, 5)))


def says(
    fleet: Fleet, *topics: str, addr: str = A, name: str = "broker-a", **mappings: StaticMapping
) -> RegisterBrokerResult:
    """A RocketMQ broker of version 5 registers."""
    return fleet.register(
        addr, topics=topics, name=name, enable_acting_master=False, topic_by_topic=True, mappings=mappings
    )


def mapping(fleet: Fleet, topic: str = "T") -> StaticMapping | None:
    (queues,) = known_route(fleet, topic).queue_datas
    return mapping_of(queues)


def mapping_of(queues: route_data_pb2.QueueData) -> StaticMapping | None:
    if not queues.HasField("mapping"):
        return None
    row = queues.mapping
    queue_ids = tuple(zip(row.topic_queue_ids, row.broker_queue_ids, strict=True))
    return StaticMapping(row.scope, row.total_queue_nums, row.epoch, row.dirty, queue_ids)


def digest(fleet: Fleet) -> bytes:
    digests = fleet.state.digests
    digests.compute(digests.missing(FRONT, 10))
    page = digests.page(FRONT, 10)
    assert page is not None
    (row,) = page
    return row.digest


def test_a_route_has_the_mapping_of_each_group_and_ordinary_topics_have_none(fleet: Fleet) -> None:
    says(fleet, "T", "Ordinary", T=STATIC)
    says(fleet, "T", addr=B, name="broker-b", T=MOVED)
    assert [mapping_of(queues) for queues in known_route(fleet, "T").queue_datas] == [STATIC, MOVED]
    assert mapping(fleet, "Ordinary") is None


def test_a_mapping_that_is_said_again_changes_nothing_and_another_one_the_route(fleet: Fleet) -> None:
    says(fleet, "T", T=STATIC)
    assert not says(fleet, "T", T=STATIC).changed
    assert says(fleet, "T", T=MOVED).changed
    assert mapping(fleet) == MOVED


def test_a_part_of_a_table_without_mappings_leaves_them(fleet: Fleet) -> None:
    """All mappings come in the last part of a split table, whose topics are others."""
    says(fleet, "T", "T2", T=STATIC)
    assert not says(fleet, "T").changed
    assert mapping(fleet) == STATIC


def test_a_mapping_may_come_in_a_later_part_than_its_topic(fleet: Fleet) -> None:
    says(fleet, "T")
    assert mapping(fleet) is None
    says(fleet, T=STATIC)
    assert mapping(fleet) == STATIC


def test_a_mapping_of_a_topic_that_nobody_has_said_makes_no_route(fleet: Fleet) -> None:
    says(fleet, "T2", T=STATIC)
    assert fleet.topics == {"T2"}


def test_a_topic_registered_by_itself_keeps_its_mapping(fleet: Fleet) -> None:
    says(fleet, "T", T=STATIC)
    assert fleet.register_topic("T", {GROUP: (8, 8, 6, 0)})
    assert mapping(fleet) == STATIC


def test_a_whole_table_of_an_agent_takes_mappings_away_that_it_does_not_have(fleet: Fleet) -> None:
    """Name servers that were told the same whole table have the same digest."""
    says(fleet, "T", T=STATIC)
    fleet.register(topics=("T",))
    assert mapping(fleet) is None


def test_an_agent_says_a_mapping_with_its_topic(fleet: Fleet) -> None:
    fleet.register(topics=("Ordinary", ("T", (4, 4, 6, 0, STATIC))))
    assert (mapping(fleet), mapping(fleet, "Ordinary")) == (STATIC, None)


def test_an_increment_of_an_agent_moves_the_mapping_of_the_topics_that_it_names(fleet: Fleet) -> None:
    second, third = DataVersion(1_001, 2), DataVersion(1_002, 3)
    fleet.register(topics=(("T", (4, 4, 6, 0, STATIC)), ("T2", (4, 4, 6, 0, STATIC))))
    fleet.register(topics=(("T", (4, 4, 6, 0, MOVED)),), version=second, base_version=VERSION)
    assert (mapping(fleet), mapping(fleet, "T2")) == (MOVED, STATIC)
    fleet.register(topics=("T",), version=third, base_version=second)
    assert (mapping(fleet), mapping(fleet, "T2")) == (None, STATIC)


def test_nobody_can_tell_by_its_queues_how_a_static_topic_was_registered(fleet: Fleet) -> None:
    """Routes, digests and the rows of snapshots, which copies and Spark read, are the same."""
    agents = Fleet()
    agents.register(topics=(("T", (4, 4, 6, 0, STATIC)),))
    says(fleet, "T", T=STATIC)
    assert digest(fleet) == digest(agents)
    assert known_route(fleet, "T").queue_datas == known_route(agents, "T").queue_datas

    def rows(one: Fleet) -> list[route_data_pb2.QueueData]:
        answers = map(route_service_pb2.StreamRouteSnapshotResponse.FromString, one.state.snapshot().messages())
        return [queues for answer in answers for row in answer.chunk.topics for queues in row.queue_datas]

    assert rows(fleet) == rows(agents)
    assert len(rows(fleet)) == 1


def test_a_table_of_an_agent_that_is_taken_exactly_may_have_mappings() -> None:
    fleet = Fleet(Behaviour(delete_topic_with_broker_registration=True))
    fleet.register(topics=("T2", ("T", (4, 4, 6, 0, STATIC))))
    fleet.register(topics=(("T", (4, 4, 6, 0, MOVED)),))
    assert fleet.topics == {"T"}
    assert mapping(fleet) == MOVED


def test_a_mapping_goes_with_the_topic_and_with_the_group(fleet: Fleet) -> None:
    """RocketMQ never forgets one."""
    says(fleet, "T", "T2", T=STATIC)
    delete_topic(fleet, "T")
    says(fleet, "T")
    assert mapping(fleet) is None
    says(fleet, T=STATIC)
    fleet.unregister(A)
    assert not fleet.state.index.queue_datas.mapped
    says(fleet, "T", "T2")
    assert mapping(fleet) is None


def test_a_held_static_topic_comes_back_with_the_mapping_that_was_said_last(fleet: Fleet) -> None:
    says(fleet, "T", "T2", T=STATIC)
    hold(fleet, "T")
    says(fleet, T=MOVED)
    says(fleet, "T")
    lift_all(fleet)
    assert mapping(fleet) == MOVED


def test_a_drained_group_shows_its_mapping_with_the_permission_in_force(fleet: Fleet) -> None:
    says(fleet, "T", T=STATIC)
    wipe(fleet)
    assert perms(fleet, "T") == [4]
    assert mapping(fleet) == STATIC


def test_what_the_guard_brings_back_has_its_mappings() -> None:
    fleet = Fleet(Behaviour(mass_loss_min_brokers=2))
    for number, addr in enumerate((A, B)):
        channel = fleet.heartbeats.open_channel()
        fleet.register(
            addr, 0, ("T",), name=f"broker-{number}", channel_id=channel, topic_by_topic=True, mappings={"T": STATIC}
        )
    fleet.end_channel("channel-1")
    fleet.end_channel("channel-2")
    assert [mapping_of(queues) for queues in known_route(fleet, "T").queue_datas] == [STATIC, STATIC]


def test_mappings_are_in_a_snapshot_and_come_back_with_its_file(fleet: Fleet) -> None:
    says(fleet, "T", T=STATIC)
    restarted = Fleet()
    restarted.state.load_snapshot(fleet.state.snapshot().messages())
    assert mapping(restarted) == STATIC
    assert set(restarted.state.index.queue_datas.mapped) == {BrokerKey(CLUSTER, "broker-a")}


def test_a_digest_tells_mappings_apart_and_is_as_before_without_one(fleet: Fleet) -> None:
    agents = Fleet()
    agents.register(topics=("T",))
    says(fleet, "T")
    assert digest(fleet) == digest(agents)
    says(fleet, T=STATIC)
    with_static = digest(fleet)
    says(fleet, T=MOVED)
    assert len({digest(agents), with_static, digest(fleet)}) == 3


def test_registrations_that_are_taken_exactly_delete_nothing_where_mappings_come() -> None:
    """As in RocketMQ 5."""
    fleet = Fleet(Behaviour(delete_topic_with_broker_registration=True))
    says(fleet, "T", "T2", T=STATIC)
    says(fleet, "T2", T=STATIC)
    assert fleet.topics == {"T", "T2"}
    says(fleet, "T2")
    assert fleet.topics == {"T2"}
