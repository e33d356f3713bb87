"""The guard against mass loss: half a fleet that vanishes at once is rather the network's fault, or ours.

Upstream has none: a switch that flaps empties its routes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from namesrv.core.model import Behaviour, RemovalReason, RemovedBroker, StaticMapping
from namesrv.core.removals import BROKERS_PER_CHANGE, scan_not_active_broker
from tests.support.core_fleet import CLUSTER, SMALL_FLEETS, Fleet
from tests.support.state_changes import apply_all_now, apply_now
from tests.unit.namesrv.scenarios.groups import delete_topic, hold, known_route, lift_all

HOLD, TIMEOUT = 600.0, 120.0
STATIC = StaticMapping("__global__", 4, 1, False, ((0, 0),))


class LostFleet(Fleet):
    """Masters of a group each, with a channel each."""

    def __init__(self, size: int, behaviour: Behaviour = SMALL_FLEETS) -> None:
        super().__init__(behaviour)
        self.channels = {number: self.state.open_channel() for number in range(size)}
        for number in range(size):
            self.come(number, self.channels[number])

    def come(self, number: int, channel_id: str | None = None) -> None:
        self.register(
            f"10.0.0.{number}:10911",
            name=f"broker-{number}",
            topics=(("shared", (4, 4, 6, 0, STATIC)), f"topic-{number}"),
            filter_servers=(f"10.0.0.{number}:8080",),
            zone_name=f"zone-{number}",
            labels=(("rack", f"r{number}"),),
            channel_id=channel_id,
        )

    def lose(self, *numbers: int) -> list[RemovedBroker]:
        """Ends the channels of some brokers, one by one."""
        return [gone for number in numbers for gone in self.end_channel(self.channels[number])]

    @property
    def unconfirmed(self) -> set[int]:
        """Brokers that are routed without having said so."""
        return {int(key.broker_addr.split(":")[0][-1]) for key in self.state.unconfirmed}

    @property
    def routed(self) -> set[int]:
        return {int(topic[-1]) for topic in self.topics if topic != "shared"}


def test_a_fleet_of_four_brokers_is_believed_to_be_lost_and_one_of_five_is_held() -> None:
    four, five = LostFleet(4, Behaviour()), LostFleet(5, Behaviour())
    four.lose(0, 1, 2, 3)
    five.lose(0, 1, 2, 3)
    assert (four.routed, five.routed) == (set(), {4})
    five.lose(4)
    assert (five.routed, five.unconfirmed) == ({0, 1, 2, 3, 4}, {0, 1, 2, 3, 4})


def test_more_than_half_of_a_fleet_comes_back_in_one_change_with_its_cause() -> None:
    fleet = LostFleet(6)
    before = known_route(fleet, "shared")
    fleet.lose(0, 1, 2)
    revision = fleet.state.revision
    assert fleet.lose(3) == []
    assert (fleet.routed, fleet.unconfirmed) == ({0, 1, 2, 3, 4, 5}, {0, 1, 2, 3})
    assert (fleet.state.revision, fleet.state.change_log.last.cause.call) == (revision + 1, "mass-loss guard")
    after = known_route(fleet, "shared")
    assert [list(group.unconfirmed_broker_ids) for group in after.broker_datas] == [[0]] * 4 + [[]] * 2
    for group in after.broker_datas:
        del group.unconfirmed_broker_ids[:]
    assert after == before


@pytest.mark.parametrize(("cluster_name", "stays"), [(None, False), (CLUSTER, False), ("other-cluster", True)])
def test_a_topic_that_an_operator_deleted_meanwhile_does_not_come_back(cluster_name: str | None, stays: bool) -> None:
    fleet = LostFleet(6)
    fleet.lose(0, 1, 2)
    for topic in ("shared", "topic-0"):
        delete_topic(fleet, topic, cluster_name)
    fleet.lose(3)
    assert fleet.routed >= {1, 2, 3, 4, 5}
    assert [fleet.route(topic) is not None for topic in ("shared", "topic-0")] == [stays, stays]


@pytest.mark.parametrize("is_held", [True, False])
def test_a_topic_comes_back_as_the_group_reported_it_last(*, is_held: bool) -> None:
    fleet = LostFleet(6)
    fleet.lose(0)
    if is_held:
        hold(fleet, "topic-0")
    other, topics = "10.0.0.9:10911", [("topic-0", (8, 8, 6, 0))]
    fleet.register(other, 1, topics, name="broker-0", enable_acting_master=True, topic_by_topic=True)
    fleet.lose(1, 2, 3)
    assert fleet.unconfirmed == {0, 1, 2, 3}
    lift_all(fleet)
    (queues,) = known_route(fleet, "topic-0").queue_datas
    assert queues.read_queue_nums == 8


def test_a_large_fleet_is_held_in_several_changes_without_who_is_heard_of_meanwhile() -> None:
    fleet = Fleet()
    brokers = {f"10.0.{number // 256}.{number % 256}:1": f"broker-{number}" for number in range(2 * BROKERS_PER_CHANGE)}
    for addr, name in brokers.items():
        fleet.register(addr, name=name)
    revision = fleet.state.revision
    fleet.clock.advance(TIMEOUT + 0.001)
    scan = scan_not_active_broker(fleet.state)
    apply_now(next(scan))
    held = {key.broker_addr for key in fleet.state.unconfirmed}
    assert len(held) == BROKERS_PER_CHANGE
    alive = next(addr for addr in brokers if addr not in held)
    second = next(scan)
    second.prepare()
    fleet.query(alive, name=brokers[alive])
    assert second.commit() == []
    assert apply_all_now(scan) == []
    assert {key.broker_addr for key in fleet.state.unconfirmed} == brokers.keys() - {alive}
    assert fleet.state.revision == revision + 2


def test_the_numbers_of_the_guard_are_settings() -> None:
    numbers = replace(SMALL_FLEETS, mass_loss_percent=25, mass_loss_min_brokers=2, mass_loss_hold_seconds=5.0)
    fleet = LostFleet(4, numbers)
    assert len(fleet.lose(0)) == 1
    assert fleet.lose(1) == []
    assert fleet.unconfirmed == {0, 1}
    fleet.clock.advance(5.001)
    assert {gone.reason for gone in fleet.scan()} == {RemovalReason.LOSS_CONFIRMED}


@pytest.mark.parametrize(("later", "is_held"), [(0.0, True), (0.001, False)])
def test_losses_count_together_until_their_window_has_passed(*, later: float, is_held: bool) -> None:
    fleet = LostFleet(6)
    fleet.lose(0, 1, 2)
    fleet.clock.advance(SMALL_FLEETS.mass_loss_window_seconds + later)
    fleet.lose(3)
    assert (3 in fleet.unconfirmed) is is_held


def test_how_many_are_held_and_until_when_is_told() -> None:
    fleet = LostFleet(6)
    assert fleet.state.guarded() == (0, None)
    fleet.lose(0, 1, 2)
    fleet.clock.advance(10)
    fleet.lose(3)
    held, ends_at = fleet.state.guarded()
    assert (held, ends_at) == (len(fleet.unconfirmed), fleet.clock.wall_millis() + round(HOLD * 1000))
    fleet.clock.advance(1)
    assert fleet.state.guarded() == (held, ends_at), "the time runs"
    for number in fleet.unconfirmed:
        fleet.come(number)
    assert fleet.state.guarded() == (0, None)
