"""The guard against mass loss: half a fleet that vanishes at once is rather the network's fault, or ours.

Upstream has none: a switch that flaps empties its routes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from namesrv.core.errors import Reason
from namesrv.core.model import BrokerKey, BrokerLiveInfo, RemovalReason, RemovedBroker
from namesrv.core.policy import Behaviour
from namesrv.core.removals import (
    BROKERS_PER_CHANGE,
    confirm_broker_loss,
    preview_broker_loss,
    scan_not_active_broker,
)
from tests.support.core_fleet import CLUSTER, SMALL_FLEETS, Fleet
from tests.support.refusals import refuses
from tests.support.state_changes import apply_all_now, apply_now
from tests.unit.namesrv.scenarios.groups import (
    TEST,
    delete_topic,
    hold,
    known_route,
    lift_all,
    names,
    version,
)

WINDOW, HOLD, TIMEOUT = 30.0, 600.0, 120.0


def addr_of(number: int) -> str:
    return f"10.0.0.{number}:10911"


class LostFleet(Fleet):
    """Masters of a group each, with a channel each."""

    def __init__(self, size: int, behaviour: Behaviour = SMALL_FLEETS) -> None:
        super().__init__(behaviour)
        self.channels = {number: self.heartbeats.open_channel() for number in range(size)}
        for number in range(size):
            self.come(number, self.channels[number])

    def come(self, number: int, channel_id: str | None = None) -> None:
        self.register(
            addr_of(number),
            name=f"broker-{number}",
            topics=("shared", f"topic-{number}"),
            filter_servers=(f"10.0.0.{number}:8080",),
            zone_name=f"zone-{number}",
            channel_id=channel_id,
        )

    def lose(self, *numbers: int) -> list[RemovedBroker]:
        """Ends the channels of some brokers, one by one."""
        return [gone for number in numbers for gone in self.end_channel(self.channels[number])]

    def beat(self, *numbers: int) -> None:
        for number in numbers:
            self.heartbeats.broker_heartbeat(self.key(number), 0, addr_of(number))

    def key(self, number: int) -> BrokerKey:
        return BrokerKey(CLUSTER, f"broker-{number}")

    @property
    def unconfirmed(self) -> set[int]:
        """Brokers that are routed without having said so; groups and live entries must agree."""
        tables = self.state.tables
        shown = {int(key.broker_name[-1]) for key, group in tables.broker_addr_table.items() if group.unconfirmed}
        live = {int(row.broker.broker_name[-1]) for row in tables.broker_live_table.values() if row.unconfirmed}
        assert shown == live == {int(key.broker_addr.split(":")[0][-1]) for key in self.state.unconfirmed}
        return shown

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


def test_more_than_half_of_a_fleet_comes_back_the_first_losses_included() -> None:
    fleet = LostFleet(6)
    before = known_route(fleet, "shared")
    fleet.lose(0, 1, 2)
    assert fleet.lose(3) == []
    assert (fleet.routed, fleet.unconfirmed) == ({0, 1, 2, 3, 4, 5}, {0, 1, 2, 3})
    after = known_route(fleet, "shared")
    assert [list(group.unconfirmed_broker_ids) for group in after.broker_datas] == [[0]] * 4 + [[]] * 2
    for group in after.broker_datas:
        del group.unconfirmed_broker_ids[:]
    assert after == before


def test_what_comes_back_is_one_change_with_its_cause() -> None:
    fleet = LostFleet(6)
    fleet.lose(0, 1, 2)
    revision = fleet.state.revision
    fleet.lose(3)
    assert fleet.state.revision == revision + 1
    assert fleet.state.change_log.last.cause.call == "mass-loss guard"


def test_a_fleet_that_is_lost_in_one_scan_stays() -> None:
    fleet = LostFleet(5)
    fleet.clock.advance(TIMEOUT + 0.001)
    assert fleet.scan() == []
    assert fleet.routed == fleet.unconfirmed == {0, 1, 2, 3, 4}


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


def test_ends_of_channels_and_silence_count_together() -> None:
    fleet = LostFleet(6)
    fleet.clock.advance(TIMEOUT - WINDOW)
    fleet.beat(0, 1, 4, 5)
    fleet.clock.advance(WINDOW)
    fleet.lose(0, 1)
    fleet.clock.advance(0.001)
    assert fleet.scan() == []
    assert fleet.unconfirmed == {0, 1, 2, 3}


def test_losses_within_the_window_count_together_and_older_ones_do_not() -> None:
    within, beyond = LostFleet(5), LostFleet(5)
    for fleet, pause in ((within, WINDOW), (beyond, WINDOW + 0.001)):
        fleet.lose(0, 1)
        fleet.clock.advance(pause)
        fleet.lose(2)
    assert within.unconfirmed == {0, 1, 2}
    assert (beyond.unconfirmed, beyond.routed) == (set(), {3, 4})


def test_brokers_that_are_held_already_are_no_part_of_the_fleet_that_is_left() -> None:
    fleet = LostFleet(8)
    fleet.lose(0, 1, 2, 3, 4)
    assert fleet.unconfirmed == {0, 1, 2, 3, 4}
    fleet.clock.advance(WINDOW + 0.001)
    fleet.lose(5, 6)
    assert fleet.routed == {0, 1, 2, 3, 4, 7}
    fleet.lose(7)
    assert fleet.unconfirmed == set(range(8))


def test_a_held_broker_goes_when_its_time_is_up_as_a_confirmed_loss() -> None:
    fleet = LostFleet(5)
    fleet.lose(0, 1, 2)
    fleet.clock.advance(HOLD)
    fleet.beat(3, 4)
    assert fleet.scan() == []
    fleet.clock.advance(0.001)
    assert {(gone.live.broker_addr, gone.reason) for gone in fleet.scan()} == {
        (addr_of(number), RemovalReason.LOSS_CONFIRMED) for number in range(3)
    }
    assert (fleet.routed, fleet.unconfirmed) == ({3, 4}, set())


def test_a_registration_confirms_a_held_broker_with_its_own_word() -> None:
    fleet = LostFleet(5)
    fleet.lose(0, 1, 2)
    assert fleet.query(addr_of(0), name="broker-0") == (True, version(1))
    with refuses(Reason.BROKER_NOT_REGISTERED):
        fleet.beat(0)
    fleet.come(0)
    assert fleet.unconfirmed == {1, 2}
    assert fleet.query(addr_of(0), name="broker-0") == (False, version(1))
    fleet.clock.advance(TIMEOUT)
    fleet.beat(0, 3, 4)
    fleet.clock.advance(HOLD - TIMEOUT)
    fleet.beat(0, 3, 4)
    fleet.clock.advance(0.001)
    fleet.scan()
    assert fleet.routed == {0, 3, 4}


@pytest.mark.parametrize(("number", "left"), [(1, {0, 2, 3, 4}), (None, {3, 4}), (4, {0, 1, 2, 3, 4})])
def test_an_operator_confirms_the_loss_of_held_brokers_and_of_no_others(number: int | None, left: set[int]) -> None:
    fleet = LostFleet(5)
    fleet.lose(0, 1, 2)
    revision, topics = fleet.state.revision, fleet.topics

    def wanted(live: BrokerLiveInfo) -> bool:
        return number is None or live.broker == fleet.key(number)

    would_go, radius = apply_now(preview_broker_loss(fleet.state, wanted))
    assert (fleet.routed, fleet.state.revision) == ({0, 1, 2, 3, 4}, revision)
    gone = apply_all_now(confirm_broker_loss(fleet.state, wanted, TEST))
    assert gone == would_go
    assert radius.vanishing == len(topics - fleet.topics) == 5 - len(left)
    assert {broker.reason for broker in gone} <= {RemovalReason.LOSS_CONFIRMED}
    assert fleet.routed == left


def test_a_whole_group_comes_back_with_the_topics_that_went_with_its_last_broker() -> None:
    fleet = Fleet()
    members = [(fleet.heartbeats.open_channel(), addr_of(number), number) for number in range(3)]
    for channel_id, addr, broker_id in members:
        fleet.register(addr, broker_id, channel_id=channel_id)
    other = fleet.heartbeats.open_channel()
    fleet.register(addr_of(8), name="other", channel_id=other)
    for channel_id, _, _ in members[:2]:
        fleet.end_channel(channel_id)
    assert fleet.end_channel(members[2][0]) == []
    assert fleet.addrs() == {0: addr_of(0), 1: addr_of(1), 2: addr_of(2)}
    assert names(fleet) == ["broker-a", "other"]


@pytest.mark.parametrize(("cluster_name", "stays"), [(None, False), (CLUSTER, False), ("other-cluster", True)])
def test_a_topic_that_an_operator_deleted_meanwhile_does_not_come_back(cluster_name: str | None, stays: bool) -> None:
    fleet = LostFleet(6)
    fleet.lose(0, 1, 2)
    for topic in ("shared", "topic-0"):
        delete_topic(fleet, topic, cluster_name)
    fleet.lose(3)
    assert fleet.routed >= {1, 2, 3, 4, 5}
    assert [fleet.route(topic) is not None for topic in ("shared", "topic-0")] == [stays, stays]


def test_a_held_topic_comes_back_as_the_group_reported_it_last() -> None:
    fleet = LostFleet(6)
    fleet.lose(0)
    hold(fleet, "topic-0")
    fleet.register(
        addr_of(9), 1, [("topic-0", (8, 8, 6, 0))], name="broker-0", enable_acting_master=True, topic_by_topic=True
    )
    fleet.lose(1, 2, 3)
    assert fleet.unconfirmed == {0, 1, 2, 3}
    lift_all(fleet)
    (queues,) = known_route(fleet, "topic-0").queue_datas
    assert queues.read_queue_nums == 8


@pytest.mark.parametrize(("late", "held"), [(0.0, {0, 1, 2, 3, 4}), (0.001, {0, 1, 2, 3})])
def test_held_brokers_count_as_lost_until_the_window_has_passed(late: float, held: set[int]) -> None:
    fleet = LostFleet(6)
    fleet.lose(0, 1, 2, 3)
    fleet.clock.advance(WINDOW + late)
    fleet.lose(4)
    assert fleet.unconfirmed == held


def test_the_numbers_of_the_guard_are_settings() -> None:
    fleet = LostFleet(
        4, replace(SMALL_FLEETS, mass_loss_percent=25, mass_loss_min_brokers=2, mass_loss_hold_seconds=5.0)
    )
    assert len(fleet.lose(0)) == 1
    assert fleet.lose(1) == []
    assert fleet.unconfirmed == {0, 1}
    fleet.clock.advance(5.001)
    assert {gone.reason for gone in fleet.scan()} == {RemovalReason.LOSS_CONFIRMED}


def test_at_100_percent_the_guard_is_off() -> None:
    fleet = LostFleet(4, replace(SMALL_FLEETS, mass_loss_percent=100))
    assert len(fleet.lose(0, 1, 2, 3)) == 4
    assert fleet.routed == set()


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


def test_a_broker_that_comes_back_has_its_last_filter_servers() -> None:
    fleet = LostFleet(4)
    filter_servers, channel_id = ("10.0.0.0:7001",), fleet.channels[0]
    fleet.register(addr_of(0), 0, (), name="broker-0", filter_servers=filter_servers, channel_id=channel_id)
    fleet.lose(0, 1, 2)
    assert fleet.unconfirmed == {0, 1, 2}
    (found,) = known_route(fleet, "topic-0").filter_servers
    assert tuple(found.filter_servers) == filter_servers
