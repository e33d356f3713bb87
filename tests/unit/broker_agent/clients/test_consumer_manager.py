"""Consumers and what they read; scenarios of upstream's ConsumerManagerTest."""

from __future__ import annotations

import pytest
from broker_agent_api.v1 import client_service_pb2 as pb

from broker_agent.clients import limits
from broker_agent.errors import Reason
from namesrv_common.server.shares import Sharer
from tests.support.fakes.agent_clients import GROUP, SILENCE, Agent, consumer, tags, told
from tests.support.refusals import refuses


@pytest.fixture
def agent() -> Agent:
    return Agent()


def subscriptions(agent: Agent) -> dict[str, str]:
    info = agent.managers.consumers.group(GROUP)
    assert info is not None
    return {topic: data.expression for topic, data in info.subscriptions.items()}


def test_joining_tells_all_members_and_registers_the_subscriptions(agent: Agent) -> None:
    first, second = agent.open(), agent.open()
    assert agent.beat(first, "first", consumers=[consumer()]) == [GROUP]
    assert told(first) == [GROUP]
    assert agent.beat(second, "second", consumers=[consumer()]) == [GROUP]
    assert told(first) == told(second) == [GROUP]
    assert agent.ids() == ["first", "second"]
    assert subscriptions(agent) == {"TopicTest": "*"}
    assert agent.beat(second, "second", consumers=[consumer()]) == []
    assert told(first) == []


@pytest.mark.parametrize(("now", "changed"), [("A B", True), ("", True), ("B", True), ("A", False)])
def test_a_topic_that_comes_or_goes_is_a_change(agent: Agent, now: str, changed: bool) -> None:
    channel = agent.open()
    agent.beat(channel, consumers=[consumer(GROUP, tags("A"))])
    data = consumer()
    del data.subscriptions[:]
    data.subscriptions.extend(tags(topic) for topic in now.split())
    assert bool(agent.beat(channel, consumers=[data])) is changed
    assert list(subscriptions(agent)) == now.split()


def test_a_newer_version_of_a_subscription_replaces_the_older_one_without_a_change(agent: Agent) -> None:
    channel = agent.open()
    agent.beat(channel, consumers=[consumer(GROUP, tags("A", 5, "old"))])
    for version, expression, kept in ((4, "older", "old"), (5, "same", "old"), (6, "newer", "newer")):
        assert agent.beat(channel, consumers=[consumer(GROUP, tags("A", version, expression))]) == []
        assert subscriptions(agent) == {"A": kept}


def test_another_client_id_over_one_channel_takes_the_place_of_the_first_and_the_others_are_told(agent: Agent) -> None:
    peer, channel = agent.open(), agent.open()
    agent.beat(peer, "peer", consumers=[consumer()])
    agent.beat(channel, "first", consumers=[consumer()])
    peer.take()
    assert agent.beat(channel, "second", consumers=[consumer()]) == [GROUP]
    assert agent.ids() == ["peer", "second"]
    assert told(peer) == [GROUP]


def test_a_client_with_two_channels_is_listed_once_and_leaves_with_the_second(agent: Agent) -> None:
    old, new = agent.open(), agent.open()
    for channel in (old, new):
        agent.beat(channel, consumers=[consumer()])
    assert agent.ids() == ["client"]
    agent.managers.on_channel_close(old)
    assert agent.ids() == ["client"]
    agent.managers.on_channel_close(new)
    assert agent.managers.consumers.group(GROUP) is None


def test_unregistering_tells_the_remaining_and_the_last_one_takes_the_group_with_it(agent: Agent) -> None:
    stays, leaves = agent.open(), agent.open()
    for channel in (stays, leaves):
        agent.beat(channel, channel.channel_id, consumers=[consumer()])
    stays.take()
    assert agent.leave(leaves, consumer_group=GROUP)
    assert told(stays) == [GROUP]
    assert not agent.leave(leaves, consumer_group=GROUP)
    assert told(stays) == []
    assert agent.leave(stays, consumer_group=GROUP)
    assert agent.groups() == (set(), set())


def test_many_that_go_in_one_scan_are_one_notice_of_their_group(agent: Agent) -> None:
    for number in range(50):
        agent.beat(agent.open(), f"silent-{number}", consumers=[consumer()])
    agent.clock.advance(SILENCE)
    alive = agent.open()
    agent.beat(alive, "alive", consumers=[consumer()])
    alive.take()
    agent.clock.advance(1)
    assert agent.managers.consumers.scan_not_active_channel() == 50
    assert told(alive) == [GROUP]
    assert agent.ids() == ["alive"]


def test_scenario_75_a_broadcasting_group_comes_and_goes_without_a_notice(agent: Agent) -> None:
    data = consumer(message_model=pb.MESSAGE_MODEL_BROADCASTING)
    channels = [agent.open() for _ in range(3)]
    for channel in channels:
        agent.beat(channel, channel.channel_id, consumers=[data])
    assert len(agent.ids()) == 3
    agent.leave(channels[0], consumer_group=GROUP)
    agent.managers.consumers.do_channel_close_event(channels[1])
    agent.clock.advance(SILENCE + 1)
    agent.managers.consumers.scan_not_active_channel()
    assert agent.managers.consumers.group(GROUP) is None
    assert [told(channel) for channel in channels] == [[], [], []]


def test_scenario_76_an_expired_consumer_is_scanned_away_with_its_group(agent: Agent) -> None:
    agent.beat(agent.open(), consumers=[consumer()])
    agent.clock.advance(SILENCE + 1)
    assert agent.managers.consumers.scan_not_active_channel() == 1
    assert agent.managers.consumers.group(GROUP) is None


def test_subscriptions_take_bytes_of_the_address_that_sent_them_last(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 2 * limits.MEMBER_BYTES + 2 * limits.SUBSCRIPTION_BYTES + 20
    monkeypatch.setattr(limits, "MAX_GROUP_BYTES", 2 * most)
    agent = Agent()
    flood, other = agent.open(Sharer("10.0.0.1")), agent.open(Sharer("10.0.0.2"))
    large, larger = tags("T", 1, "x" * 9), tags("T", 2, "x" * 10)
    agent.beat(flood, consumers=[consumer("one", large), consumer("two", large)])
    agent.beat(flood, consumers=[consumer("one", large), consumer("two", large)])  # again: they count once
    with refuses(Reason.LIMIT_EXCEEDED, match=rf"bytes of consumer groups: {most + 1} is over the limit of {most} for"):
        agent.beat(flood, consumers=[consumer("one", larger)])
    agent.beat(other, consumers=[consumer("one", larger)])
    agent.beat(flood, consumers=[consumer("two", larger)])
    for channel in (flood, other):
        agent.managers.on_channel_close(channel)
    for address in ("10.0.0.1", "10.0.0.2"):  # each has its whole half again
        groups = [consumer(f"{address} {number}", larger) for number in (1, 2)]
        groups[0].subscriptions[0].expression = "x" * 8
        agent.beat(agent.open(Sharer(address)), consumers=groups)
