from __future__ import annotations

import pytest
from broker_agent_api.v1 import client_service_pb2 as pb

from broker_agent.clients import limits
from broker_agent.clients.groups import ConsumerFilterManager
from tests.support.fakes.agent_clients import GROUP, Agent, consumer, sql, tags
from tests.support.timing import agent_timing
from tests.support.virtual_clock import VirtualClock

DAY = 24 * 3600.0


class Fixture:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.manager = ConsumerFilterManager(agent_timing(self.clock))

    def register(self, *subscriptions: pb.SubscriptionData, group: str = GROUP) -> None:
        self.manager.register(group, {data.topic: data for data in subscriptions})

    def get(self, group: str = GROUP) -> pb.ConsumerFilterData:
        return next(data for data in self.manager.by_group(group) if data.topic == "T")

    def is_dead(self, group: str = GROUP) -> bool:
        return self.get(group).HasField("dead_time_millis")


@pytest.fixture
def filters() -> Fixture:
    return Fixture()


def test_a_filter_by_expression_is_born_with_its_subscription(filters: Fixture) -> None:
    filters.register(sql("T", 7, "a > 5"), tags("U"), sql("V", expression=""))
    (data,) = filters.manager.by_group(GROUP)
    assert (data.topic, data.expression, data.client_version) == ("T", "a > 5", 7)
    assert data.born_time_millis == filters.clock.wall_millis()
    assert not filters.is_dead()


@pytest.mark.parametrize("now", [[], [sql("other")], [tags("T", 2)]], ids=["no topic", "other topic", "by tags"])
def test_a_filter_dies_once_when_its_group_stops_to_use_it(filters: Fixture, now: list[pb.SubscriptionData]) -> None:
    filters.register(sql("T"))
    filters.register(sql("T"), group="other")
    filters.clock.advance(5)
    filters.register(*now)
    died = filters.clock.wall_millis()
    filters.clock.advance(5)
    filters.manager.unregister(GROUP)
    assert filters.get().dead_time_millis == died
    assert not filters.is_dead("other")


@pytest.mark.parametrize("version", [7, 8])
def test_the_same_filter_lives_again_and_keeps_its_age(filters: Fixture, version: int) -> None:
    filters.register(sql("T", 7))
    born = filters.clock.wall_millis()
    filters.manager.unregister(GROUP)
    filters.clock.advance(5)
    filters.register(sql("T", version))
    assert (filters.is_dead(), filters.get().born_time_millis, filters.get().client_version) == (False, born, version)
    filters.clock.advance(2 * DAY)
    filters.manager.clean()
    assert not filters.is_dead()


def test_an_older_version_revives_no_filter_and_a_new_expression_is_young(filters: Fixture) -> None:
    filters.register(sql("T", 7, "a > 5"))
    filters.manager.unregister(GROUP)
    filters.register(sql("T", 6, "a > 6"))
    assert (filters.is_dead(), filters.get().expression) == (True, "a > 5")
    filters.clock.advance(5)
    filters.register(sql("T", 8, "a > 7"))
    assert (filters.get().expression, filters.get().born_time_millis) == ("a > 7", filters.clock.wall_millis())


@pytest.mark.parametrize("jump", [-10 * DAY, 0.0, 10 * DAY])
def test_dead_filters_are_kept_for_a_day_of_the_monotonic_clock(filters: Fixture, jump: float) -> None:
    filters.register(sql("T"))
    filters.register(sql("T"), group="living")
    filters.manager.unregister(GROUP)
    filters.clock.wall_ahead += jump
    filters.clock.advance(DAY - 1)
    filters.manager.clean()
    assert filters.is_dead()
    filters.clock.advance(1)
    filters.manager.clean()
    assert filters.manager.by_group(GROUP) == []
    assert not filters.is_dead("living")


def test_beyond_the_limit_the_longest_dead_filter_goes_first(filters: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_DEAD_FILTERS", 2)
    for group in ("one", "two", "three"):
        filters.register(sql("T"), group=group)
    for group in ("two", "one", "three"):
        filters.manager.unregister(group)
    assert filters.manager.by_group("two") == []
    assert filters.is_dead("one")


def test_heartbeats_and_the_end_of_a_group_drive_its_filters() -> None:
    agent = Agent()

    def are_dead() -> list[bool]:
        return [data.HasField("dead_time_millis") for data in agent.managers.filters.by_group(GROUP)]

    channel = agent.open()
    agent.beat(channel, consumers=[consumer(GROUP, sql("T"))])
    assert are_dead() == [False]
    agent.managers.on_channel_close(channel)
    assert are_dead() == [True]
    agent.beat(agent.open(), consumers=[consumer(GROUP, sql("T"))])
    assert are_dead() == [False]
