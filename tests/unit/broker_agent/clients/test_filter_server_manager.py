from __future__ import annotations

import pytest

from broker_agent.clients import filter_servers
from broker_agent.clients.filter_servers import FilterServerManager
from broker_agent.errors import Reason
from tests.support.fakes.agent_clients import FakeChannel
from tests.support.refusals import refuses
from tests.support.virtual_clock import VirtualClock


class Fixture:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.manager = FilterServerManager(self.clock)
        self.seen: list[tuple[str, ...]] = []
        self.manager.on_change(lambda: self.seen.append(self.manager.filter_servers))


@pytest.fixture
def servers() -> Fixture:
    return Fixture()


def test_addresses_are_sorted_each_once_and_changes_are_told(servers: Fixture) -> None:
    for addr in ("b:1", "a:1", "b:1"):
        servers.manager.register_filter_server(FakeChannel(), addr)
    assert servers.manager.filter_servers == ("a:1", "b:1")
    assert servers.seen == [("b:1",), ("a:1", "b:1")]


def test_a_filter_server_that_is_silent_for_more_than_30_s_leaves(servers: Fixture) -> None:
    silent, alive = FakeChannel(), FakeChannel()
    servers.manager.register_filter_server(silent, "silent:1")
    servers.manager.register_filter_server(alive, "alive:1")
    servers.clock.advance(30)
    assert servers.manager.scan_not_active_channel() == 0
    servers.manager.register_filter_server(alive, "alive:1")
    servers.clock.advance(0.001)
    assert servers.manager.scan_not_active_channel() == 1
    assert servers.manager.filter_servers == ("alive:1",)
    assert servers.seen[-1] == ("alive:1",)


def test_the_end_of_a_channel_removes_its_filter_server_down_to_an_empty_list(servers: Fixture) -> None:
    channel = FakeChannel()
    servers.manager.register_filter_server(channel, "a:1")
    assert servers.manager.do_channel_close_event(channel)
    assert not servers.manager.do_channel_close_event(channel)
    assert servers.seen == [("a:1",), ()]


def test_a_filter_server_may_change_its_address(servers: Fixture) -> None:
    channel = FakeChannel()
    servers.manager.register_filter_server(channel, "a:1")
    servers.manager.register_filter_server(channel, "b:1")
    assert servers.manager.filter_servers == ("b:1",)


def test_there_is_room_up_to_the_limit_and_not_beyond(servers: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_servers, "MAX_FILTER_SERVERS", 1)
    channel = FakeChannel()
    servers.manager.register_filter_server(channel, "a:1")
    servers.manager.register_filter_server(channel, "a:1")
    with refuses(Reason.LIMIT_EXCEEDED, match="filter servers: 2 is over the limit of 1"):
        servers.manager.register_filter_server(FakeChannel(), "b:1")
    assert servers.manager.filter_servers == ("a:1",)
