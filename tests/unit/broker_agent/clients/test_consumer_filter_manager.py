from __future__ import annotations

import pytest

from broker_agent.clients import consumer_filter_manager
from broker_agent.clients.consumer_filter_manager import ConsumerFilterData, ConsumerFilterManager
from tests.support.fakes.agent_clients import Agent, consumer, sql, tags
from tests.support.timing import agent_timing
from tests.support.virtual_clock import VirtualClock

GROUP = "consumers"
DAY = 24 * 3600.0


class Fixture:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.manager = ConsumerFilterManager(agent_timing(self.clock))

    def get(self, topic: str = "T", group: str = GROUP) -> ConsumerFilterData:
        return next(data for data in self.manager.by_group(group) if data.topic == topic)

    def is_dead(self, group: str = GROUP) -> bool:
        return self.get(group=group).dead_time_millis is not None

    @property
    def millis(self) -> int:
        return int(self.clock.wall() * 1000)


@pytest.fixture
def filters() -> Fixture:
    return Fixture()


def test_a_filter_by_expression_is_born_with_its_subscription(filters: Fixture) -> None:
    filters.manager.register(GROUP, [sql("T", 7, "a > 5")])
    data = filters.get()
    assert (data.expression, data.client_version, data.born_time_millis) == ("a > 5", 7, filters.millis)
    assert data.dead_time_millis is None


def test_tags_and_empty_expressions_are_no_filters(filters: Fixture) -> None:
    filters.manager.register(GROUP, [tags("T"), sql("U", expression="")])
    assert filters.manager.by_group(GROUP) == ()


@pytest.mark.parametrize("now", [[], [sql("other")], [tags("T", 2)]], ids=["no topic", "other topic", "by tags"])
def test_a_filter_dies_when_its_group_reads_the_topic_no_more_or_by_tags(filters: Fixture, now: list[object]) -> None:
    filters.manager.register(GROUP, [sql("T")])
    filters.clock.advance(5)
    filters.manager.register(GROUP, now)  # type: ignore[arg-type]
    assert filters.get().dead_time_millis == filters.millis


def test_unregistering_a_group_kills_all_its_filters_and_no_others(filters: Fixture) -> None:
    filters.manager.register(GROUP, [sql("T"), sql("U")])
    filters.manager.register("other", [sql("T")])
    filters.manager.unregister(GROUP)
    assert [data.dead_time_millis is not None for data in filters.manager.by_group(GROUP)] == [True, True]
    assert not filters.is_dead("other")


def test_the_time_of_death_is_that_of_the_first_death(filters: Fixture) -> None:
    filters.manager.register(GROUP, [sql("T")])
    filters.manager.unregister(GROUP)
    died = filters.millis
    filters.clock.advance(5)
    filters.manager.unregister(GROUP)
    assert filters.get().dead_time_millis == died


@pytest.mark.parametrize("version", [7, 8])
def test_the_same_filter_in_the_same_or_a_newer_version_lives_again_and_is_as_old_as_before(
    filters: Fixture, version: int
) -> None:
    filters.manager.register(GROUP, [sql("T", 7)])
    born = filters.millis
    filters.manager.unregister(GROUP)
    filters.clock.advance(5)
    filters.manager.register(GROUP, [sql("T", version)])
    data = filters.get()
    assert (filters.is_dead(), data.born_time_millis, data.client_version) == (False, born, version)


def test_an_older_version_neither_changes_nor_revives_a_filter(filters: Fixture) -> None:
    filters.manager.register(GROUP, [sql("T", 7, "a > 5")])
    filters.manager.unregister(GROUP)
    filters.manager.register(GROUP, [sql("T", 6, "a > 6")])
    assert filters.is_dead()
    assert filters.get().expression == "a > 5"


def test_a_newer_expression_is_born_anew_and_one_of_the_same_version_is_passed_over(filters: Fixture) -> None:
    filters.manager.register(GROUP, [sql("T", 7, "a > 5")])
    filters.clock.advance(5)
    filters.manager.register(GROUP, [sql("T", 7, "a > 6")])
    assert filters.get().expression == "a > 5"
    filters.manager.register(GROUP, [sql("T", 8, "a > 7")])
    assert (filters.get().expression, filters.get().born_time_millis) == ("a > 7", filters.millis)


def test_dead_filters_are_kept_for_a_day_and_living_ones_for_ever(filters: Fixture) -> None:
    filters.manager.register(GROUP, [sql("T")])
    filters.manager.register("living", [sql("T")])
    filters.manager.unregister(GROUP)
    filters.clock.advance(DAY - 1)
    filters.manager.clean()
    assert filters.is_dead()
    filters.clock.advance(1)
    filters.manager.clean()
    assert filters.manager.by_group(GROUP) == ()
    assert not filters.is_dead("living")


def test_a_filter_that_lives_again_is_not_dropped_for_its_earlier_death(filters: Fixture) -> None:
    filters.manager.register(GROUP, [sql("T")])
    filters.manager.unregister(GROUP)
    filters.manager.register(GROUP, [sql("T")])
    filters.clock.advance(2 * DAY)
    filters.manager.clean()
    assert not filters.is_dead()


@pytest.mark.parametrize("jump", [-10 * DAY, 10 * DAY])
def test_a_jump_of_the_wall_clock_neither_revives_nor_drops_a_filter(filters: Fixture, jump: float) -> None:
    filters.manager.register(GROUP, [sql("T")])
    filters.clock.wall_ahead += jump
    filters.manager.unregister(GROUP)
    filters.manager.clean()
    assert filters.is_dead()


def test_beyond_the_limit_the_longest_dead_filter_goes_first(filters: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_filter_manager, "MAX_DEAD_FILTERS", 2)
    for group in ("one", "two", "three"):
        filters.manager.register(group, [sql("T")])
    for group in ("two", "one"):
        filters.manager.unregister(group)
    assert filters.is_dead("two")
    filters.manager.unregister("three")
    assert filters.manager.by_group("two") == ()
    assert filters.is_dead("one")


def test_heartbeats_and_the_end_of_the_last_channel_drive_the_filters_of_a_group() -> None:
    agent = Agent()
    channel = agent.open()
    agent.beat(channel, consumers=[consumer(GROUP, sql("T"))])
    assert [data.dead_time_millis is not None for data in agent.tables.filters.by_group(GROUP)] == [False]
    agent.managers.housekeeping.on_channel_close(channel)
    assert [data.dead_time_millis is not None for data in agent.tables.filters.by_group(GROUP)] == [True]
    agent.beat(agent.open(), consumers=[consumer(GROUP, sql("T"))])
    assert [data.dead_time_millis is not None for data in agent.tables.filters.by_group(GROUP)] == [False]
