"""Producers; scenarios of upstream's ProducerManagerTest."""

from __future__ import annotations

import pytest

from broker_agent.clients import limits
from broker_agent.errors import Reason
from namesrv_common.server.shares import Sharer
from tests.support.fakes.agent_clients import GROUP, SILENCE, Agent
from tests.support.refusals import refuses


@pytest.fixture
def agent() -> Agent:
    return Agent()


def members(agent: Agent) -> list[str]:
    return [info.client_id for info in agent.managers.producers.members(GROUP)]


def test_scenario_69_a_producer_that_was_silent_for_more_than_120_s_is_scanned_away(agent: Agent) -> None:
    agent.beat(agent.open(), producers=[GROUP])
    agent.clock.advance(SILENCE)
    assert agent.managers.producers.scan_not_active_channel() == 0
    agent.clock.advance(0.001)
    assert agent.managers.producers.scan_not_active_channel() == 1
    assert agent.groups() == (set(), set())


def test_scenario_70_the_second_channel_of_a_client_stays_when_its_first_expires(agent: Agent) -> None:
    agent.beat(agent.open(), producers=[GROUP])
    agent.clock.advance(SILENCE)
    second = agent.open()
    agent.beat(second, producers=[GROUP])
    agent.clock.advance(1)
    agent.managers.producers.scan_not_active_channel()
    assert [info.channel for info in agent.managers.producers.members(GROUP)] == [second]


def test_scenario_71_the_end_of_a_channel_takes_its_producer_out_of_every_group(agent: Agent) -> None:
    gone, stays = agent.open(), agent.open()
    agent.beat(gone, producers=[GROUP, "alone"])
    agent.beat(stays, "stays", [GROUP])
    assert agent.managers.producers.do_channel_close_event(gone) == 2
    assert agent.managers.producers.do_channel_close_event(gone) == 0
    assert agent.groups() == ({GROUP}, set())
    assert members(agent) == ["stays"]


def test_scenario_73_a_producer_that_unregisters_is_gone_with_its_group(agent: Agent) -> None:
    channel = agent.open()
    agent.beat(channel, producers=[GROUP])
    assert agent.leave(channel, producer_group=GROUP)
    assert agent.groups() == (set(), set())
    assert not agent.leave(channel, producer_group=GROUP)


def test_a_second_client_id_over_one_channel_only_renews_the_first(agent: Agent) -> None:
    channel = agent.open()
    for client_id in ("first", "second"):
        agent.beat(channel, client_id, [GROUP])
        agent.clock.advance(SILENCE)
    assert members(agent) == ["first"]
    assert agent.managers.producers.scan_not_active_channel() == 0


def test_groups_take_bytes_up_to_the_limit_of_which_one_address_has_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_GROUP_BYTES", 4 * limits.MEMBER_BYTES)
    agent = Agent()
    flood, other = agent.open(Sharer("10.0.0.1")), agent.open(Sharer("10.0.0.2"))
    agent.beat(flood, producers=["one", "two"])
    agent.beat(flood, producers=["one", "two"])  # again: they count once
    with refuses(Reason.LIMIT_EXCEEDED, match=r"bytes of producer groups: 3072 is over the limit of 2048 for 10\.0"):
        agent.beat(flood, producers=["three"])
    agent.beat(other, producers=["three", "four"])
    with refuses(Reason.LIMIT_EXCEEDED, match="bytes of producer groups: 5120 is over the limit of 4096 for all"):
        agent.beat(agent.open(), producers=["five"])
    agent.managers.producers.do_channel_close_event(flood)
    agent.beat(flood, producers=["three", "four"])
    assert agent.managers.producers.membership_count == 4


def test_a_group_has_clients_up_to_the_limit(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CLIENTS_PER_GROUP", 1)
    channel = agent.open()
    agent.beat(channel, producers=[GROUP])
    agent.beat(channel, producers=[GROUP])
    with refuses(Reason.LIMIT_EXCEEDED, match="clients of one producer group: 2 is over the limit of 1"):
        agent.beat(agent.open(), producers=["other", GROUP])
    assert agent.groups() == ({GROUP}, set())
