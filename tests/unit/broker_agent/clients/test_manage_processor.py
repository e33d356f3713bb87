from __future__ import annotations

import pytest

from broker_agent.clients import groups
from broker_agent.clients.records import HeartbeatData
from broker_agent.errors import Reason
from tests.support.fakes.agent_clients import Agent, consumer, heartbeat, tags, told
from tests.support.refusals import refuses

GROUP = "group"


def test_a_heartbeat_registers_all_groups_and_names_those_that_changed() -> None:
    agent = Agent()
    channel = agent.open()
    assert agent.beat(channel, "client", ["p"], [consumer("a"), consumer("b")]) == ["a", "b"]
    assert agent.beat(channel, "client", ["p"], [consumer("a"), consumer("b", tags("Other"))]) == ["b"]
    assert agent.tables.producers.groups == ("p",)


def test_a_heartbeat_that_one_limit_refuses_changes_nothing_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent()
    peer, channel = agent.open(), agent.open()
    agent.beat(peer, "peer", [], [consumer("full")])
    peer.take()
    monkeypatch.setattr(groups, "MAX_CLIENTS_PER_GROUP", 1)
    with refuses(Reason.LIMIT_EXCEEDED):
        agent.beat(channel, "client", ["producers"], [consumer("new"), consumer("full")])
    assert agent.tables.producers.groups == ()
    assert agent.tables.consumers.groups == ("full",)
    assert told(peer) == []


def test_a_heartbeat_over_a_channel_that_is_not_open_changes_nothing() -> None:
    agent = Agent()
    with refuses(Reason.CHANNEL_GONE):
        agent.managers.processor.heart_beat("unknown", "127.0.0.1:1", 0.0, _data())
    assert agent.tables.producers.groups == ()


def test_a_filter_server_over_a_channel_that_is_not_open_is_not_registered() -> None:
    agent = Agent()
    with refuses(Reason.CHANNEL_GONE):
        agent.managers.processor.register_filter_server("unknown", "127.0.0.1:1", "filter:1")
    assert agent.managers.filter_servers() == ()


def test_a_client_without_a_channel_is_one_client_however_often_it_connects() -> None:
    agent = Agent()
    for port in (1, 2):
        agent.managers.processor.heart_beat(None, f"127.0.0.1:{port}", agent.clock.seconds, _data())
    members = agent.tables.producers.members("producers")
    assert [(member.client_id, member.remote_addr) for member in members] == [("client", "127.0.0.1:2")]


def test_a_client_leaves_the_group_that_it_names_or_all_of_them() -> None:
    agent = Agent()
    channel, processor = agent.open(), agent.managers.processor
    agent.beat(channel, "client", ["p1", "p2"], [consumer("c1"), consumer("c2")])
    assert processor.unregister_client(channel.channel_id, "client", "p1", None)
    assert processor.unregister_client(channel.channel_id, "client", None, "c1")
    assert (agent.tables.producers.groups, agent.tables.consumers.groups) == (("p2",), ("c2",))
    assert not processor.unregister_client(channel.channel_id, "client", "p1", "c1")
    assert processor.unregister_client(channel.channel_id, "client", None, None)
    assert agent.tables.producers.groups == agent.tables.consumers.groups == ()
    assert channel.is_active


def test_leaving_over_a_channel_that_has_ended_is_no_error() -> None:
    agent = Agent()
    assert not agent.managers.processor.unregister_client("gone", "client", "p", None)


def test_a_heartbeat_under_a_second_client_id_over_one_channel_is_no_second_member() -> None:
    agent = Agent()
    channel = agent.open()
    for client_id in ("first", "second", "first"):
        agent.beat(channel, client_id, ["producers"], [consumer(GROUP)])
        group = agent.tables.consumers.group(GROUP)
        assert group is not None
        assert group.client_ids == [client_id]
    assert [info.client_id for info in agent.tables.producers.members("producers")] == ["first"]


def _data() -> HeartbeatData:
    return heartbeat("client", ["producers"])
