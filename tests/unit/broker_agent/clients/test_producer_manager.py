from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from broker_agent.clients import groups as groups_module
from broker_agent.clients.groups import ProducerManager
from broker_agent.errors import Reason
from groundwork.shares import MACHINE, Sharer
from tests.support.fakes.agent_clients import SILENCE, FakeChannel, client
from tests.support.refusals import refuses
from tests.support.virtual_clock import VirtualClock

GROUP = "producers"


class Fixture:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.manager = ProducerManager(self.clock, threading.RLock())

    def register(self, channel: FakeChannel, client_id: str = "client-1", group: str = GROUP) -> None:
        self.manager.register_producer(group, client(channel, self.clock.seconds, client_id))


@pytest.fixture
def producers() -> Fixture:
    return Fixture()


def test_a_producer_that_is_silent_for_exactly_120_s_stays(producers: Fixture) -> None:
    producers.register(FakeChannel())
    producers.clock.advance(SILENCE)
    assert producers.manager.scan_not_active_channel() == 0
    assert producers.manager.groups == (GROUP,)


def test_the_end_of_a_channel_takes_its_client_out_of_every_group(producers: Fixture) -> None:
    gone, stays = FakeChannel(), FakeChannel()
    for group in ("one", "two"):
        producers.register(gone, group=group)
    producers.register(stays, "client-2", group="two")
    assert sorted(producers.manager.do_channel_close_event(gone)) == ["one", "two"]
    assert producers.manager.groups == ("two",)


def test_the_end_of_a_channel_that_registered_nothing_changes_nothing(producers: Fixture) -> None:
    producers.register(FakeChannel())
    assert producers.manager.do_channel_close_event(FakeChannel()) == ()
    assert producers.manager.groups == (GROUP,)


def test_unregistering_removes_client_and_group_and_only_once(producers: Fixture) -> None:
    channel = FakeChannel()
    producers.register(channel)
    assert producers.manager.unregister_producer(GROUP, channel)
    assert producers.manager.groups == ()
    assert not producers.manager.unregister_producer(GROUP, channel)


def test_a_second_client_id_over_one_channel_only_renews_the_first(producers: Fixture) -> None:
    channel = FakeChannel()
    producers.register(channel, "first")
    producers.register(channel, "second")
    assert [info.client_id for info in producers.manager.members(GROUP)] == ["first"]


def test_one_address_has_half_of_the_groups_and_memberships(
    producers: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups_module, "MAX_GROUPS", 4)
    monkeypatch.setattr(groups_module, "MAX_MEMBERSHIPS", 6)
    flood, other = Sharer("10.0.0.1"), Sharer("10.0.0.2")
    manager = ProducerManager(producers.clock, threading.RLock())

    def join(channel: FakeChannel, group: str, sharer: Sharer) -> None:
        manager.check_room(channel, [group], sharer)
        manager.register_producer(group, replace(client(channel, producers.clock.seconds), sharer=sharer))

    first = FakeChannel()
    join(first, "one", flood)
    join(FakeChannel(), "two", flood)
    with refuses(Reason.LIMIT_EXCEEDED, match=r"producer groups: 3 is over the limit of 2 for 10\.0\.0\.1"):
        join(first, "three", flood)
    join(FakeChannel(), "three", other)
    join(FakeChannel(), "one", flood)
    with refuses(Reason.LIMIT_EXCEEDED, match=r"producers of all groups: 4 is over the limit of 3 for 10\.0\.0\.1"):
        join(FakeChannel(), "two", flood)
    join(FakeChannel(), "one", other)
    manager.do_channel_close_event(first)
    join(FakeChannel(), "two", flood)


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
    monkeypatch: pytest.MonkeyPatch, limit: str, groups: list[str], problem: str
) -> None:
    for highest in (1, 2):
        known, new = FakeChannel(), FakeChannel()
        monkeypatch.setattr(groups_module, limit, highest)
        producers = Fixture()
        producers.manager.check_room(known, [GROUP], MACHINE)
        producers.register(known)
        producers.manager.check_room(known, [GROUP], MACHINE)  # whoever is in has room
        if highest == 1:
            with refuses(Reason.LIMIT_EXCEEDED, match=problem):
                producers.manager.check_room(new, groups, MACHINE)
        else:
            producers.manager.check_room(new, groups, MACHINE)
