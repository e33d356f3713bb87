from __future__ import annotations

import threading

import pytest

from broker_agent.clients import groups as groups_module
from broker_agent.clients.groups import ProducerManager, ProducerRules
from broker_agent.errors import LimitExceeded
from tests.support.fakes.agent_clients import SILENCE, Events, FakeChannel, client
from tests.support.virtual_clock import VirtualClock

GROUP = "producers"


class Fixture:
    def __init__(self, rules: ProducerRules | None = None) -> None:
        self.clock, self.events = VirtualClock(), Events()
        self.manager = ProducerManager(self.clock, threading.RLock(), rules, [self.events])

    def register(self, channel: FakeChannel, client_id: str = "client-1", group: str = GROUP) -> None:
        self.manager.register_producer(group, client(channel, self.clock.seconds, client_id))


@pytest.fixture
def producers() -> Fixture:
    return Fixture()


def test_a_producer_that_is_silent_for_120_s_leaves_with_its_group_and_both_events(producers: Fixture) -> None:
    channel = FakeChannel()
    producers.register(channel)
    producers.clock.advance(SILENCE + 0.001)
    assert producers.manager.scan_not_active_channel() == 1
    assert producers.manager.members(GROUP) == ()
    assert producers.manager.groups == ()
    assert producers.manager.find_channel("client-1") is None
    assert producers.events.take() == [("CLIENT_UNREGISTER", GROUP, "client-1"), ("GROUP_UNREGISTER", GROUP)]


def test_a_producer_that_is_silent_for_exactly_120_s_stays(producers: Fixture) -> None:
    producers.register(FakeChannel())
    producers.clock.advance(SILENCE)
    assert producers.manager.scan_not_active_channel() == 0
    assert producers.manager.groups == (GROUP,)


def test_of_two_channels_of_one_client_the_second_stays_findable_when_the_first_expires(producers: Fixture) -> None:
    first, second = FakeChannel(), FakeChannel()
    producers.register(first)
    producers.clock.advance(SILENCE)
    producers.register(second)
    producers.clock.advance(1)
    producers.manager.scan_not_active_channel()
    assert [info.channel for info in producers.manager.members(GROUP)] == [second]
    assert producers.manager.find_channel("client-1") is second
    assert ("GROUP_UNREGISTER", GROUP) not in producers.events.all


def test_of_two_channels_of_one_client_the_first_stays_findable_when_the_second_ends(producers: Fixture) -> None:
    first, second = FakeChannel(), FakeChannel()
    producers.register(first)
    producers.register(second)
    producers.manager.do_channel_close_event(second)
    assert producers.manager.find_channel("client-1") is first


def test_the_end_of_a_channel_takes_its_client_out_of_every_group(producers: Fixture) -> None:
    gone, stays = FakeChannel(), FakeChannel()
    for group in ("one", "two"):
        producers.register(gone, group=group)
    producers.register(stays, "client-2", group="two")
    producers.events.take()
    assert sorted(producers.manager.do_channel_close_event(gone)) == ["one", "two"]
    assert producers.manager.groups == ("two",)
    assert producers.manager.find_channel("client-1") is None
    assert sorted(map(str, producers.events.take())) == sorted(
        map(
            str,
            [
                ("CLIENT_UNREGISTER", "one", "client-1"),
                ("GROUP_UNREGISTER", "one"),
                ("CLIENT_UNREGISTER", "two", "client-1"),
            ],
        )
    )


def test_the_end_of_a_channel_that_registered_nothing_changes_nothing(producers: Fixture) -> None:
    producers.register(FakeChannel())
    assert producers.manager.do_channel_close_event(FakeChannel()) == ()
    assert producers.manager.groups == (GROUP,)


def test_a_client_stays_findable_until_it_has_left_its_last_group(producers: Fixture) -> None:
    channel = FakeChannel()
    producers.register(channel, group="one")
    producers.register(channel, group="two")
    producers.manager.unregister_producer("one", channel)
    assert producers.manager.find_channel("client-1") is channel
    producers.manager.unregister_producer("two", channel)
    assert producers.manager.find_channel("client-1") is None


def test_producers_are_passed_over_only_if_both_rules_say_so(producers: Fixture) -> None:
    channel = FakeChannel()
    producers.manager.rules = ProducerRules(enable_register_producer=False, reject_transaction_message=True)
    producers.register(channel)
    assert producers.manager.groups == ()
    for rules in (ProducerRules(reject_transaction_message=True), ProducerRules(enable_register_producer=False)):
        producers.manager.rules = rules
        producers.register(channel)
        assert producers.manager.find_channel("client-1") is channel
        producers.manager.unregister_producer(GROUP, channel)


def test_a_producer_that_is_known_is_renewed_even_while_new_ones_are_passed_over(producers: Fixture) -> None:
    channel = FakeChannel()
    producers.register(channel)
    producers.manager.rules = ProducerRules(enable_register_producer=False, reject_transaction_message=True)
    producers.clock.advance(SILENCE)
    producers.register(channel)
    producers.clock.advance(SILENCE)
    assert producers.manager.scan_not_active_channel() == 0


def test_unregistering_removes_client_and_group_with_both_events_and_only_once(producers: Fixture) -> None:
    channel = FakeChannel()
    producers.register(channel)
    assert producers.manager.unregister_producer(GROUP, channel)
    assert producers.manager.groups == ()
    assert producers.manager.find_channel("client-1") is None
    assert producers.events.take() == [("CLIENT_UNREGISTER", GROUP, "client-1"), ("GROUP_UNREGISTER", GROUP)]
    assert not producers.manager.unregister_producer(GROUP, channel)
    assert producers.events.take() == []


def test_a_second_client_id_over_one_channel_only_renews_the_first(producers: Fixture) -> None:
    channel = FakeChannel()
    producers.register(channel, "first")
    producers.register(channel, "second")
    assert [info.client_id for info in producers.manager.members(GROUP)] == ["first"]
    assert producers.manager.find_channel("second") is None


def test_the_available_channel_is_writable_before_active_before_none(producers: Fixture) -> None:
    channel = FakeChannel()
    producers.register(channel)
    assert producers.manager.get_available_channel(GROUP) is channel
    channel.is_writable = False
    assert producers.manager.get_available_channel(GROUP) is channel
    writable = FakeChannel()
    producers.register(writable, "client-2")
    assert {producers.manager.get_available_channel(GROUP) for _ in range(4)} == {writable}
    channel.is_active = writable.is_active = False
    assert producers.manager.get_available_channel(GROUP) is None
    assert producers.manager.get_available_channel("unknown") is None


def test_available_channels_take_turns(producers: Fixture) -> None:
    channels = [FakeChannel() for _ in range(3)]
    for number, channel in enumerate(channels):
        producers.register(channel, f"client-{number}")
    turns = [producers.manager.get_available_channel(GROUP) for _ in range(6)]
    assert set(turns[:3]) == set(channels)
    assert turns[3:] == turns[:3]


@pytest.mark.parametrize(
    ("limit", "groups", "problem"),
    [
        ("MAX_GROUPS", ["new"], "producer groups: 2 is over the limit of 1"),
        ("MAX_CLIENTS_PER_GROUP", [GROUP], "clients of one producer group: 2 is over the limit of 1"),
        ("MAX_GROUPS_PER_CLIENT", [GROUP, "new"], "producer groups of one client: 2 is over the limit of 1"),
        ("MAX_MEMBERSHIPS", [GROUP], "producers of all groups: 2 is over the limit of 1"),
    ],
)
def test_there_is_room_up_to_each_limit_and_not_beyond(
    producers: Fixture, monkeypatch: pytest.MonkeyPatch, limit: str, groups: list[str], problem: str
) -> None:
    known, new = FakeChannel(), FakeChannel()
    monkeypatch.setattr(groups_module, limit, 1)
    producers.manager.check_room(known, [GROUP])
    producers.register(known)
    producers.manager.check_room(known, [GROUP])  # whoever is in has room
    with pytest.raises(LimitExceeded, match=problem):
        producers.manager.check_room(new, groups)
    monkeypatch.setattr(groups_module, limit, 2)
    producers.manager.check_room(new, groups)
