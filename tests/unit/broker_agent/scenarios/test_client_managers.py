"""Scenarios of upstream's ProducerManagerTest and ConsumerManagerTest (and its scan test)."""

from __future__ import annotations

import threading

import pytest

from broker_agent.clients.groups import ConsumerManager, ProducerManager
from tests.support.fakes.agent_clients import BROADCASTING, SILENCE, Events, FakeChannel, client, consumer
from tests.support.virtual_clock import VirtualClock

GROUP = "group"


class Producers:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.manager = ProducerManager(self.clock, threading.RLock())

    def register(self, client_id: str = "client-1") -> FakeChannel:
        channel = FakeChannel()
        self.manager.register_producer(GROUP, client(channel, self.clock.seconds, client_id))
        return channel

    def are_gone(self) -> bool:
        return not self.manager.groups and not self.manager.members(GROUP)


@pytest.fixture
def producers() -> Producers:
    return Producers()


def test_scenario_69_a_producer_that_was_silent_for_too_long_is_scanned_away(producers: Producers) -> None:
    producers.register()
    producers.clock.advance(SILENCE + 1)
    producers.manager.scan_not_active_channel()
    assert producers.are_gone()


def test_scenario_70_the_second_channel_of_a_client_stays_when_its_first_expires(producers: Producers) -> None:
    producers.register()
    producers.clock.advance(SILENCE)
    second = producers.register()
    producers.clock.advance(1)
    producers.manager.scan_not_active_channel()
    assert [info.channel for info in producers.manager.members(GROUP)] == [second]


def test_scenario_71_the_end_of_a_channel_takes_its_producer_away(producers: Producers) -> None:
    producers.manager.do_channel_close_event(producers.register())
    assert producers.are_gone()


def test_scenario_73_a_producer_that_unregisters_is_gone(producers: Producers) -> None:
    producers.manager.unregister_producer(GROUP, producers.register())
    assert producers.are_gone()


class Consumers:
    def __init__(self) -> None:
        self.clock, self.events = VirtualClock(), Events()
        self.manager = ConsumerManager(self.clock, threading.RLock(), self.events)

    def register(self, **more: object) -> FakeChannel:
        channel = FakeChannel()
        data = consumer(GROUP, **more)  # type: ignore[arg-type] # its keyword arguments
        self.manager.register_consumer(client(channel, self.clock.seconds), data)
        return channel


@pytest.fixture
def consumers() -> Consumers:
    return Consumers()


def test_scenario_75_a_broadcasting_group_comes_and_goes_without_a_change(consumers: Consumers) -> None:
    channel = consumers.register(attributes=BROADCASTING)
    assert consumers.manager.group(GROUP) is not None
    consumers.manager.unregister_consumer(GROUP, channel)
    assert consumers.manager.group(GROUP) is None
    channel = consumers.register(attributes=BROADCASTING)
    assert consumers.manager.group(GROUP) is not None
    consumers.manager.do_channel_close_event(channel)
    assert consumers.manager.group(GROUP) is None
    assert "CHANGE" not in {event[0] for event in consumers.events.all}


def test_scenario_76_an_expired_consumer_is_scanned_away_with_its_group_and_listeners_hear_of_it(
    consumers: Consumers,
) -> None:
    consumers.register()
    consumers.clock.advance(SILENCE + 1)
    consumers.manager.scan_not_active_channel()
    assert consumers.manager.group(GROUP) is None
    assert ("UNREGISTER", GROUP) in consumers.events.all
