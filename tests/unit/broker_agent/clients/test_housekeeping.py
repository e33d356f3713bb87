"""Heartbeats, ends of channels and silence, in all tables at once."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from broker_agent.clients import limits
from broker_agent.errors import Reason
from tests.support.fakes.agent_clients import GROUP, Agent, consumer, tags, told
from tests.support.refusals import refuses


@pytest.fixture
def agent() -> Agent:
    return Agent()


def test_a_heartbeat_registers_all_groups_and_names_those_that_changed(agent: Agent) -> None:
    channel = agent.open()
    assert agent.beat(channel, "client", ["p"], [consumer("a"), consumer("b")]) == ["a", "b"]
    assert agent.beat(channel, "client", ["p"], [consumer("a"), consumer("b", tags("Other"))]) == ["b"]
    assert agent.groups() == ({"p"}, {"a", "b"})


def test_a_heartbeat_that_one_limit_refuses_changes_nothing_at_all(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, channel = agent.open(), agent.open()
    agent.beat(peer, "peer", [], [consumer("full")])
    peer.take()
    monkeypatch.setattr(limits, "MAX_CLIENTS_PER_GROUP", 1)
    with refuses(Reason.LIMIT_EXCEEDED):
        agent.beat(channel, "client", ["producers"], [consumer("new"), consumer("full")])
    assert agent.groups() == (set(), {"full"})
    assert told(peer) == []


def test_a_client_leaves_the_group_that_it_names_or_all_of_them(agent: Agent) -> None:
    channel = agent.open()
    agent.beat(channel, "client", ["p1", "p2"], [consumer("c1"), consumer("c2")])
    assert agent.leave(channel, producer_group="p1")
    assert agent.leave(channel, consumer_group="c1")
    assert agent.groups() == ({"p2"}, {"c2"})
    assert agent.leave(channel)
    assert agent.groups() == (set(), set())
    assert channel.is_active
    agent.managers.on_channel_close(channel)
    assert not agent.leave(channel)  # no error: its end has removed everything


def test_the_end_of_a_channel_removes_its_client_everywhere_and_tells_the_others(agent: Agent) -> None:
    gone, peer = agent.open(), agent.open()
    agent.beat(gone, "gone", ["producers"], [consumer(), consumer("alone")])
    agent.beat(peer, "peer", [], [consumer()])
    agent.serve_filters(gone, "filter:1")
    peer.take()
    agent.managers.on_channel_close(gone)
    assert agent.groups() == (set(), {GROUP})
    assert agent.managers.filter_servers.addresses == ()
    assert agent.ids() == ["peer"]
    assert told(peer) == [GROUP]
    with refuses(Reason.CHANNEL_GONE):
        agent.beat(gone, "gone", ["producers"])


def test_a_silent_client_is_told_that_its_channel_is_idle_and_leaves_after_120_s(agent: Agent) -> None:
    silent, peer, unused = agent.open(), agent.open(), agent.open()
    agent.beat(silent, "silent", ["producers"], [consumer()])
    for _ in range(12):
        agent.beat(peer, "peer", [], [consumer()])
        agent.pass_time(10)
    assert agent.ids() == ["peer", "silent"]
    for channel in (silent, peer):
        channel.take()
    agent.beat(peer, "peer", [], [consumer()])
    agent.pass_time(10)
    assert agent.groups() == (set(), {GROUP})
    assert agent.ids() == ["peer"]
    assert told(silent) == told(unused) == ["REASON_IDLE"]
    assert told(peer) == [GROUP]
    assert len(agent.managers.channels) == 1


@pytest.mark.parametrize("jump", [-1e6, 0.0, 1e6])
def test_a_client_without_a_channel_leaves_by_its_timeout_only_whatever_the_wall_clock_does(
    agent: Agent, jump: float
) -> None:
    agent.beat(None, "plain", ["producers"], [consumer()])
    agent.beat(None, "plain", ["producers"], [consumer()])
    agent.clock.wall_ahead += jump
    agent.pass_time(120)
    assert agent.ids() == ["plain"]
    agent.pass_time(10)
    assert agent.groups() == (set(), set())


def test_a_group_that_a_living_client_names_no_more_is_left_and_its_channel_stays(agent: Agent) -> None:
    channel = agent.open()
    agent.beat(channel, "client", [], [consumer(), consumer("dropped")])
    for _ in range(13):
        agent.beat(channel, "client", [], [consumer()])
        agent.pass_time(10)
    assert agent.groups() == (set(), {GROUP})
    assert channel.is_active


def test_after_a_stall_of_the_agent_itself_clients_have_a_minute_to_be_heard(agent: Agent) -> None:
    heard, silent = agent.open(), agent.open()
    for channel, group in ((heard, "heard"), (silent, "silent")):
        agent.beat(channel, group, [group])
    agent.pass_time(10)
    agent.clock.advance(3_600)
    agent.pass_time(10)
    assert agent.groups()[0] == {"heard", "silent"}
    agent.beat(heard, "heard", ["heard"])
    agent.pass_time(50)
    assert agent.groups()[0] == {"heard", "silent"}
    agent.pass_time(10)
    assert agent.groups()[0] == {"heard"}


def test_a_scan_comes_every_10_s_also_after_a_defect(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    scans: list[float] = []

    async def sleep(seconds: float) -> None:
        if len(scans) == 3:
            raise asyncio.CancelledError
        await agent.clock.sleep(seconds)

    def scan() -> None:
        scans.append(agent.clock.seconds)
        agent.managers._scan_due += 10
        if len(scans) == 1:
            raise RuntimeError("a defect")

    start = agent.clock.seconds
    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(agent.managers, "scan", scan)
    with structlog.testing.capture_logs() as logs, pytest.raises(asyncio.CancelledError):
        asyncio.run(agent.managers.scan_periodically())
    assert scans == [start + 10, start + 20, start + 30]
    assert [line["event"] for line in logs] == ["client_scan_failed"]
