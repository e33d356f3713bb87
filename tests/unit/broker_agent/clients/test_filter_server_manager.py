from __future__ import annotations

import pytest

from broker_agent.clients import limits
from broker_agent.errors import Reason
from tests.support.fakes.agent_clients import Agent
from tests.support.refusals import refuses


class Fixture(Agent):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, ...]] = []
        self.managers.on_filter_servers_change = lambda: self.seen.append(self.managers.filter_servers.addresses)


@pytest.fixture
def servers() -> Fixture:
    return Fixture()


def test_addresses_are_sorted_each_once_and_changes_are_told(servers: Fixture) -> None:
    channel = servers.open()
    for addr in ("b:1", "a:1", "b:1"):
        servers.serve_filters(servers.open(), addr)
    servers.serve_filters(channel, "c:1")
    servers.serve_filters(channel, "d:1")
    assert servers.seen == [("b:1",), ("a:1", "b:1"), ("a:1", "b:1", "c:1"), ("a:1", "b:1", "d:1")]


def test_a_filter_server_that_is_silent_for_more_than_30_s_leaves(servers: Fixture) -> None:
    for addr in ("silent:1", "alive:1"):
        servers.serve_filters(None, addr)
    servers.pass_time(30)
    assert servers.seen[-1:] == [("alive:1", "silent:1")]
    servers.serve_filters(None, "alive:1")
    servers.pass_time(10)
    assert servers.seen[-1:] == [("alive:1",)]


def test_filter_servers_are_taken_up_to_the_limit(servers: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_FILTER_SERVERS", 1)
    servers.serve_filters(None, "a:1")
    servers.serve_filters(None, "a:1")
    with refuses(Reason.LIMIT_EXCEEDED, match="filter servers: 2 is over the limit of 1"):
        servers.serve_filters(None, "b:1")
    assert servers.seen == [("a:1",)]
