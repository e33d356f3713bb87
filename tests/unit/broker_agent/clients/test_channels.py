from __future__ import annotations

import pytest
from broker_agent_api.v1 import client_service_pb2 as pb

from broker_agent.clients.channels import ClientChannels, PlainClient
from broker_agent.clients.limits import MAX_PENDING_NOTICES
from broker_agent.errors import Reason
from groundwork.shares import Sharer
from tests.support.fakes.agent_clients import SILENCE, told
from tests.support.refusals import refuses
from tests.support.virtual_clock import VirtualClock

IDLE, SHUTDOWN = pb.ClientChannelClosing.REASON_IDLE, pb.ClientChannelClosing.REASON_SHUTDOWN


class Fixture:
    def __init__(self, max_channels: int = 100) -> None:
        self.clock = VirtualClock()
        self.channels = ClientChannels(self.clock, max_channels)
        self.wakes = 0
        self.channel = self.channels.open("holder", "127.0.0.1:1", self._wake)

    def _wake(self) -> None:
        self.wakes += 1


@pytest.fixture
def opened() -> Fixture:
    return Fixture()


def test_notices_that_the_client_has_not_taken_are_one_for_each_group_and_wake_the_stream_once(
    opened: Fixture,
) -> None:
    for group in ("one", "two", "one", "two", "one"):
        opened.channel.notify_consumer_ids_changed(group)
    assert opened.wakes == 1
    assert told(opened.channel) == ["one", "two"]
    opened.channel.notify_consumer_ids_changed("one")
    assert opened.wakes == 2
    assert told(opened.channel) == ["one"]


def test_notices_up_to_the_limit_wait_and_one_more_marks_a_client_that_does_not_read(opened: Fixture) -> None:
    for number in range(MAX_PENDING_NOTICES):
        opened.channel.notify_consumer_ids_changed(f"group-{number}")
    opened.channel.notify_consumer_ids_changed("group-0")
    before = opened.channel.overflown
    opened.channel.notify_consumer_ids_changed("one-more")
    assert (before, opened.channel.overflown) == (False, True)
    assert len(told(opened.channel)) == MAX_PENDING_NOTICES


def test_a_closing_channel_tells_its_reason_last_and_is_not_active(opened: Fixture) -> None:
    opened.channel.notify_consumer_ids_changed("one")
    opened.channel.close(IDLE)
    opened.channel.close(SHUTDOWN)
    assert told(opened.channel) == ["REASON_IDLE"]
    assert not opened.channel.is_active


def test_an_ended_channel_is_gone_and_wakes_nobody(opened: Fixture) -> None:
    assert opened.channels.end(opened.channel)
    assert not opened.channels.end(opened.channel)
    opened.channel.notify_consumer_ids_changed("one")
    opened.channel.close(IDLE)
    assert opened.wakes == 0
    assert not opened.channel.is_active
    assert len(opened.channels) == 0
    with refuses(Reason.CHANNEL_GONE):
        opened.channels.heard(opened.channel.channel_id)


def test_a_channel_that_is_about_to_close_takes_no_more_calls(opened: Fixture) -> None:
    opened.channel.close(IDLE)
    with refuses(Reason.CHANNEL_GONE):
        opened.channels.heard(opened.channel.channel_id)


def test_a_channel_is_idle_when_nothing_was_heard_for_more_than_120_s(opened: Fixture) -> None:
    opened.clock.advance(SILENCE)
    assert opened.channels.idle() == []
    opened.channels.heard(opened.channel.channel_id)
    opened.clock.advance(SILENCE)
    assert opened.channels.idle() == []
    opened.clock.advance(0.001)
    assert opened.channels.idle() == [opened.channel]


def test_channels_are_opened_up_to_the_limit_and_an_ended_one_makes_room() -> None:
    opened = Fixture(max_channels=2)
    opened.channels.open("second", "127.0.0.1:1", lambda: None)
    with refuses(Reason.LIMIT_EXCEEDED, match="open client channels: 3 is over the limit of 2"):
        opened.channels.open("third", "127.0.0.1:1", lambda: None)
    opened.channels.end(opened.channel)
    opened.channels.open("third", "127.0.0.1:1", lambda: None)


def test_one_address_opens_half_of_all_channels_and_another_the_rest() -> None:
    channels = ClientChannels(VirtualClock(), max_channels=4)
    one, other = Sharer("10.0.0.1"), Sharer("10.0.0.2")
    held = [channels.open("holder", "10.0.0.1:1", lambda: None, one) for _ in range(2)]
    with refuses(Reason.LIMIT_EXCEEDED, match=r"open client channels: 3 is over the limit of 2 for 10\.0\.0\.1"):
        channels.open("holder", "10.0.0.1:1", lambda: None, one)
    for _ in range(2):
        channels.open("holder", "10.0.0.2:1", lambda: None, other)
    channels.end(held[0])
    channels.open("holder", "10.0.0.1:1", lambda: None, one)


def test_at_shutdown_every_channel_is_told_and_no_more_are_opened(opened: Fixture) -> None:
    opened.channels.close_all(SHUTDOWN)
    assert told(opened.channel) == ["REASON_SHUTDOWN"]
    with refuses(Reason.SHUTTING_DOWN):
        opened.channels.open("late", "127.0.0.1:1", lambda: None)


def test_a_plain_client_is_the_same_from_every_address_and_can_be_told_nothing() -> None:
    client = PlainClient("id", "127.0.0.1:1")
    assert client == PlainClient("id", "127.0.0.1:2") != PlainClient("other", "127.0.0.1:1")
    assert not client.is_active
