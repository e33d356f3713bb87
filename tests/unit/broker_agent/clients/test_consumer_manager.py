from __future__ import annotations

import threading

import pytest

from broker_agent.clients import groups
from broker_agent.clients.groups import ConsumerManager
from broker_agent.clients.records import ConsumeFromWhere, ConsumerAttributes, ConsumeType, MessageModel
from broker_agent.errors import Reason
from groundwork.shares import MACHINE
from tests.support.fakes.agent_clients import (
    BROADCASTING,
    CLUSTERING,
    SILENCE,
    Events,
    FakeChannel,
    client,
    consumer,
    tags,
)
from tests.support.refusals import refuses
from tests.support.virtual_clock import VirtualClock

GROUP = "consumers"


class Fixture:
    def __init__(self) -> None:
        self.clock, self.events = VirtualClock(), Events()
        self.manager = ConsumerManager(self.clock, threading.RLock(), self.events)

    def register(self, channel: FakeChannel, client_id: str = "client-1", **changes: object) -> bool:
        data = changes.get("data") or consumer(GROUP)
        return self.manager.register_consumer(client(channel, self.clock.seconds, client_id), data)  # type: ignore[arg-type]

    def ids(self, group: str = GROUP) -> list[str]:
        found = self.manager.group(group)
        assert found is not None
        return found.client_ids


@pytest.fixture
def consumers() -> Fixture:
    return Fixture()


def test_joining_tells_all_members_and_registers_the_subscriptions(consumers: Fixture) -> None:
    first, second = FakeChannel(), FakeChannel()
    assert consumers.register(first)
    assert consumers.events.take() == [("CHANGE", GROUP, first), ("REGISTER", GROUP)]
    assert consumers.register(second, "client-2")
    assert consumers.events.take() == [("CHANGE", GROUP, first, second), ("REGISTER", GROUP)]
    assert consumers.ids() == ["client-1", "client-2"]


def test_a_heartbeat_that_says_nothing_new_is_no_change_but_registers_again(consumers: Fixture) -> None:
    channel = FakeChannel()
    consumers.register(channel)
    consumers.events.take()
    assert not consumers.register(channel)
    assert consumers.events.take() == [("REGISTER", GROUP)]


@pytest.mark.parametrize(("now", "changed"), [("A B", True), ("", True), ("B", True), ("A", False)])
def test_a_topic_that_comes_or_goes_is_a_change(consumers: Fixture, now: str, changed: bool) -> None:
    channel = FakeChannel()
    consumers.register(channel, data=consumer(GROUP, tags("A")))
    data = consumer(GROUP)
    data = type(data)(GROUP, CLUSTERING, tuple(tags(topic) for topic in now.split()))
    assert consumers.register(channel, data=data) is changed
    found = consumers.manager.group(GROUP)
    assert found is not None
    assert [subscription.topic for subscription in found.subscriptions] == now.split()


def test_a_newer_version_of_a_subscription_replaces_the_older_one_without_a_change(consumers: Fixture) -> None:
    channel = FakeChannel()
    consumers.register(channel, data=consumer(GROUP, tags("A", 5, "old")))
    for version, expression, kept in ((4, "older", "old"), (5, "same", "old"), (6, "newer", "newer")):
        assert not consumers.register(channel, data=consumer(GROUP, tags("A", version, expression)))
        found = consumers.manager.group(GROUP)
        assert found is not None
        assert [subscription.expression for subscription in found.subscriptions] == [kept]


def test_a_group_keeps_the_attributes_of_the_last_heartbeat(consumers: Fixture) -> None:
    other = ConsumerAttributes(ConsumeType.ACTIVELY, MessageModel.BROADCASTING, ConsumeFromWhere.TIMESTAMP)
    for attributes in (CLUSTERING, other):
        consumers.register(FakeChannel(), data=consumer(GROUP, attributes=attributes))
        found = consumers.manager.group(GROUP)
        assert found is not None
        assert found.attributes == attributes


def test_another_client_id_over_one_channel_takes_the_place_of_the_first_and_the_others_are_told(
    consumers: Fixture,
) -> None:
    peer, channel = FakeChannel(), FakeChannel()
    consumers.register(peer, "peer")
    consumers.register(channel, "first")
    consumers.events.take()
    assert consumers.register(channel, "second")
    assert consumers.ids() == ["peer", "second"]
    assert ("CHANGE", GROUP, peer, channel) in consumers.events.take()


def test_a_client_with_two_channels_is_listed_once_and_leaves_with_the_second(consumers: Fixture) -> None:
    old, new = FakeChannel(), FakeChannel()
    consumers.register(old)
    consumers.register(new)
    assert consumers.ids() == ["client-1"]
    consumers.manager.do_channel_close_event(old)
    assert consumers.ids() == ["client-1"]
    consumers.manager.do_channel_close_event(new)
    assert consumers.manager.group(GROUP) is None


def test_unregistering_tells_the_remaining_and_the_last_one_takes_the_group_with_it(consumers: Fixture) -> None:
    stays, leaves = FakeChannel(), FakeChannel()
    consumers.register(stays, "stays")
    consumers.register(leaves, "leaves")
    consumers.events.take()
    assert consumers.manager.unregister_consumer(GROUP, leaves)
    assert consumers.events.take() == [("CHANGE", GROUP, stays)]
    assert not consumers.manager.unregister_consumer(GROUP, leaves)
    assert consumers.events.take() == []
    assert consumers.manager.unregister_consumer(GROUP, stays)
    assert consumers.events.take() == [("UNREGISTER", GROUP)]
    assert consumers.manager.groups == ()


def test_the_end_of_a_channel_takes_its_client_out_of_every_group(consumers: Fixture) -> None:
    gone, peer = FakeChannel(), FakeChannel()
    for group in ("alone", "shared"):
        consumers.register(gone, "gone", data=consumer(group))
    consumers.register(peer, "peer", data=consumer("shared"))
    consumers.events.take()
    assert sorted(consumers.manager.do_channel_close_event(gone)) == ["alone", "shared"]
    assert consumers.manager.groups == ("shared",)
    events = consumers.events.take()
    assert ("UNREGISTER", "alone") in events
    assert ("CHANGE", "shared", peer) in events


def test_the_scan_removes_the_silent_and_tells_the_others_which_upstream_forgets(consumers: Fixture) -> None:
    silent, alive = FakeChannel(), FakeChannel()
    consumers.register(silent, "silent")
    consumers.clock.advance(1)
    consumers.register(alive, "alive")
    consumers.events.take()
    consumers.clock.advance(SILENCE - 1)
    assert consumers.manager.scan_not_active_channel() == 0
    consumers.clock.advance(1)
    assert consumers.manager.scan_not_active_channel() == 1
    assert consumers.events.take() == [("CHANGE", GROUP, alive)]
    assert consumers.ids() == ["alive"]


def test_many_that_go_in_one_scan_are_one_change_of_their_group(consumers: Fixture) -> None:
    for number in range(50):
        consumers.register(FakeChannel(), f"silent-{number}")
    consumers.clock.advance(SILENCE)
    alive = FakeChannel()
    consumers.register(alive, "alive")
    consumers.events.take()
    consumers.clock.advance(1)
    assert consumers.manager.scan_not_active_channel() == 50
    assert [event for event in consumers.events.take() if event[0] == "CHANGE"] == [("CHANGE", GROUP, alive)]


def test_the_last_consumer_that_the_scan_removes_takes_its_group_with_it(consumers: Fixture) -> None:
    consumers.register(FakeChannel())
    consumers.events.take()
    consumers.clock.advance(SILENCE + 1)
    consumers.manager.scan_not_active_channel()
    assert consumers.events.take() == [("UNREGISTER", GROUP)]
    assert consumers.manager.group(GROUP) is None


def test_a_broadcasting_group_never_has_a_change_whatever_happens_to_its_members(consumers: Fixture) -> None:
    first, second, third = FakeChannel(), FakeChannel(), FakeChannel()
    data = consumer(GROUP, attributes=BROADCASTING)
    for number, channel in enumerate((first, second, third)):
        consumers.register(channel, f"client-{number}", data=data)
    assert consumers.manager.group(GROUP) is not None
    consumers.manager.unregister_consumer(GROUP, first)
    consumers.manager.do_channel_close_event(second)
    assert consumers.manager.group(GROUP) is not None
    consumers.clock.advance(SILENCE + 1)
    consumers.manager.scan_not_active_channel()
    assert consumers.manager.group(GROUP) is None
    assert "CHANGE" not in {event[0] for event in consumers.events.take()}


def test_a_group_s_subscriptions_have_room_up_to_the_limit_wherever_heartbeats_differ(
    consumers: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "MAX_GROUP_SUBSCRIPTION_BYTES", 10)
    channel = FakeChannel()
    first = consumer("g", tags("T", expression="xxxx", version=2), tags("U", expression="", version=1))
    consumers.manager.check_room(channel, [first], MACHINE)
    consumers.register(channel, data=first)
    second = consumer("g", tags("T", expression="", version=1), tags("U", expression="xxxx", version=2))
    consumers.manager.check_room(channel, [second], MACHINE)  # 5 of the first heartbeat, 5 of this one
    third = consumer("g", tags("T", expression="", version=1), tags("U", expression="xxx\u00e4", version=2))
    with refuses(Reason.LIMIT_EXCEEDED, match="of one consumer group: 11 is over the limit of 10"):
        consumers.manager.check_room(channel, [third], MACHINE)


def test_subscriptions_have_room_up_to_the_limit_and_give_it_back(
    consumers: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "MAX_SUBSCRIPTION_BYTES", 10)
    channel = FakeChannel()
    fits, too_large = consumer("one", tags("T", expression="x" * 9)), consumer("two", tags("U", expression=""))
    consumers.manager.check_room(channel, [fits], MACHINE)
    consumers.register(channel, data=fits)
    consumers.manager.check_room(channel, [fits], MACHINE)  # again: it counts once
    with refuses(Reason.LIMIT_EXCEEDED, match="bytes of all subscriptions: 11 is over the limit of 10"):
        consumers.manager.check_room(channel, [too_large], MACHINE)
    consumers.manager.unregister_consumer("one", channel)
    consumers.manager.check_room(channel, [too_large], MACHINE)
