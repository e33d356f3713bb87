"""Scenarios of upstream's ProducerManagerTest and ConsumerManagerTest (and its scan test)."""

from __future__ import annotations

import threading

import pytest

from broker_agent.clients.groups import ConsumerManager, ProducerManager, ProducerRules
from tests.support.fakes.agent_clients import BROADCASTING, SILENCE, Events, FakeChannel, client, consumer
from tests.support.virtual_clock import VirtualClock

GROUP = "group"
BOTH_EVENTS = [("CLIENT_UNREGISTER", GROUP, "client-1"), ("GROUP_UNREGISTER", GROUP)]


class Producers:
    def __init__(self) -> None:
        self.clock, self.events = VirtualClock(), Events()
        self.manager = ProducerManager(self.clock, threading.RLock(), None, [self.events])

    def register(self, client_id: str = "client-1") -> FakeChannel:
        channel = FakeChannel()
        self.manager.register_producer(GROUP, client(channel, self.clock.seconds, client_id))
        return channel

    def are_gone(self) -> bool:
        return not self.manager.groups and not self.manager.members(GROUP)


@pytest.fixture
def producers() -> Producers:
    return Producers()


def test_scenario_69_a_producer_that_was_silent_for_too_long_is_scanned_away_with_both_events(
    producers: Producers,
) -> None:
    producers.register()
    producers.clock.advance(SILENCE + 1)
    producers.manager.scan_not_active_channel()
    assert producers.are_gone()
    assert producers.manager.find_channel("client-1") is None
    assert producers.events.all == BOTH_EVENTS


def test_scenario_70_the_second_channel_of_a_client_stays_findable_when_its_first_expires(producers: Producers) -> None:
    producers.register()
    producers.clock.advance(SILENCE)
    second = producers.register()
    producers.clock.advance(1)
    producers.manager.scan_not_active_channel()
    assert [info.channel for info in producers.manager.members(GROUP)] == [second]
    assert producers.manager.find_channel("client-1") is second


def test_scenario_71_the_end_of_a_channel_takes_its_producer_away_with_both_events(producers: Producers) -> None:
    producers.manager.do_channel_close_event(producers.register())
    assert producers.are_gone()
    assert producers.manager.find_channel("client-1") is None
    assert producers.events.all == BOTH_EVENTS


def test_scenario_72_a_producer_is_passed_over_while_both_rules_say_so_and_taken_afterwards(
    producers: Producers,
) -> None:
    producers.manager.rules = ProducerRules(enable_register_producer=False, reject_transaction_message=True)
    producers.register()
    assert producers.are_gone()
    producers.manager.rules = ProducerRules(enable_register_producer=True, reject_transaction_message=True)
    assert producers.manager.find_channel("client-1") is None
    channel = producers.register()
    assert producers.manager.find_channel("client-1") is channel


def test_scenario_73_a_producer_that_unregisters_is_gone_with_both_events(producers: Producers) -> None:
    producers.manager.unregister_producer(GROUP, producers.register())
    assert producers.are_gone()
    assert producers.manager.find_channel("client-1") is None
    assert producers.events.all == BOTH_EVENTS


@pytest.mark.parametrize(
    ("is_active", "is_writable", "found"), [(True, True, True), (True, False, True), (False, True, False)]
)
def test_scenario_74_the_available_channel_is_an_active_one_writable_if_there_is_such_a_one(
    producers: Producers, is_active: bool, is_writable: bool, found: bool
) -> None:
    channel = producers.register()
    channel.is_active, channel.is_writable = is_active, is_writable
    assert producers.manager.get_available_channel(GROUP) is (channel if found else None)


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
    assert ("CLIENT_UNREGISTER", GROUP, "client-1") in consumers.events.all
