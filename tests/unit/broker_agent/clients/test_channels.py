from __future__ import annotations

import pytest
from broker_agent_api.v1 import client_service_pb2 as pb

from broker_agent.clients import channels
from broker_agent.errors import Reason
from namesrv_common.server.shares import Sharer
from tests.support.fakes.agent_clients import SILENCE, Agent, told
from tests.support.refusals import refuses

IDLE, SHUTDOWN = pb.ClientChannelClosing.REASON_IDLE, pb.ClientChannelClosing.REASON_SHUTDOWN


@pytest.fixture
def agent() -> Agent:
    return Agent()


def test_notices_that_the_client_has_not_taken_are_one_for_each_group(agent: Agent) -> None:
    channel = agent.open()
    for group in ("one", "two", "one", "two", "one"):
        channel.notify_consumer_ids_changed(group)
    assert channel.pending.is_set()
    assert told(channel) == ["one", "two"]
    assert not channel.pending.is_set()
    channel.notify_consumer_ids_changed("one")
    assert told(channel) == ["one"]


def test_notices_up_to_the_limit_wait_and_one_more_cuts_a_client_that_does_not_read(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "MAX_PENDING_NOTICES", 2)
    channel = agent.open()
    for group in ("one", "two", "one"):
        channel.notify_consumer_ids_changed(group)
    assert not channel.ending.is_set()
    channel.notify_consumer_ids_changed("three")
    assert channel.ending.is_set()
    with refuses(Reason.SLOW_READER):
        channel.take()


def test_a_closing_channel_tells_its_reason_and_takes_no_more_calls(agent: Agent) -> None:
    channel = agent.open()
    channel.notify_consumer_ids_changed("one")
    channel.close(IDLE)
    channel.close(SHUTDOWN)
    assert told(channel) == ["REASON_IDLE"]
    assert channel.ending.is_set()
    with refuses(Reason.CHANNEL_GONE):
        agent.beat(channel)


def test_a_channel_is_idle_when_nothing_was_heard_for_more_than_120_s(agent: Agent) -> None:
    channel, open_channels = agent.open(), agent.managers.channels
    agent.clock.advance(SILENCE)
    assert open_channels.idle() == []
    agent.beat(channel)
    agent.clock.advance(SILENCE)
    assert open_channels.idle() == []
    agent.clock.advance(0.001)
    assert open_channels.idle() == [channel]


def test_channels_are_opened_up_to_the_limit_of_which_one_address_has_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "MAX_CHANNELS", 4)
    agent, one, other = Agent(), Sharer("10.0.0.1"), Sharer("10.0.0.2")
    first, _second = agent.open(one), agent.open(one)
    with refuses(Reason.LIMIT_EXCEEDED, match=r"open client channels: 3 is over the limit of 2 for 10\.0\.0\.1"):
        agent.open(one)
    _third, _fourth = agent.open(other), agent.open(other)
    with refuses(Reason.LIMIT_EXCEEDED, match="open client channels: 5 is over the limit of 4"):
        agent.open()
    assert agent.managers.channels.end(first)
    assert not agent.managers.channels.end(first)
    agent.open(one)


def test_at_shutdown_every_channel_is_told_and_no_more_are_opened(agent: Agent) -> None:
    channel = agent.open()
    agent.managers.channels.close_all(SHUTDOWN)
    assert told(channel) == ["REASON_SHUTDOWN"]
    with refuses(Reason.SHUTTING_DOWN):
        agent.open()
