"""ResolvedName: every address behind a name, looked up again; what fails leaves the last addresses in force."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from broker_agent.namesrv_list import (
    RESOLVE_JITTER,
    RESOLVE_PERIOD_SECONDS,
    ResolvedName,
    addresses_of,
)
from namesrv_common.endpoints import Endpoint
from tests.support.fakes.name_system import NameSystem, endpoints
from tests.support.timing import agent_timing
from tests.support.virtual_clock import VirtualClock

LONGEST_PERIOD = RESOLVE_PERIOD_SECONDS * (1 + RESOLVE_JITTER)


class Watched:
    """A name that is looked up on virtual time; what it was after each change."""

    def __init__(self, system: NameSystem) -> None:
        self.time = VirtualClock()
        self.changes: list[tuple[Endpoint, ...]] = []
        self.name = ResolvedName(
            Endpoint("ns", 9876), self._changed, agent_timing(self.time), system.resolve, self.time.wait
        )

    def _changed(self) -> None:
        self.changes.append(self.name.addresses)

    def lookup_again(self, times: int = 1) -> None:
        self.time.run(times * LONGEST_PERIOD)


@pytest.fixture
def system() -> NameSystem:
    return NameSystem(ns="10.0.0.1 10.0.0.2")


@pytest.fixture
def watched(system: NameSystem) -> Iterator[Watched]:
    watching = Watched(system)
    watching.name.start()
    watching.time.settle(1)
    yield watching
    watching.name.stop()
    watching.name.join(10)


def test_the_name_is_looked_up_again_each_period_with_jitter(watched: Watched, system: NameSystem) -> None:
    watched.time.run(100 * RESOLVE_PERIOD_SECONDS)
    assert 95 <= len(system.asked) <= 106
    assert len(watched.changes) == 1


def test_an_address_goes_once_two_lookups_in_a_row_lacked_it(watched: Watched, system: NameSystem) -> None:
    system.set("ns", "10.0.0.2")
    watched.time.run(RESOLVE_PERIOD_SECONDS * (1 + RESOLVE_JITTER))
    assert watched.name.addresses == endpoints("10.0.0.1:9876 10.0.0.2:9876")
    watched.lookup_again(2)
    assert watched.name.addresses == endpoints("10.0.0.2:9876")


def test_a_dns_that_answers_with_one_address_in_turn_changes_nothing(watched: Watched, system: NameSystem) -> None:
    for turn in range(20):
        asked = len(system.asked)
        system.set("ns", f"10.0.0.{1 + turn % 2}")
        while len(system.asked) == asked:
            watched.time.run(1.0)
    assert len(watched.changes) == 1


def test_a_lookup_that_fails_keeps_the_addresses_and_is_logged_once(system: NameSystem) -> None:
    watched = Watched(system)
    with capture_logs() as logs:
        watched.name.start()
        watched.time.settle(1)
        system.set("ns", "")
        watched.lookup_again(20)
        assert watched.name.addresses == endpoints("10.0.0.1:9876 10.0.0.2:9876")
        system.set("ns", "10.0.0.1 10.0.0.2")
        watched.lookup_again(20)
        watched.name.stop()
        watched.name.join(10)
    assert [entry["event"] for entry in logs] == [
        "namesrv_name_resolved",
        "namesrv_name_not_resolved",
        "namesrv_name_resolved_again",
    ]
    assert logs[1]["kept"] == ["10.0.0.1:9876", "10.0.0.2:9876"]
    assert len(watched.changes) == 1


def test_a_name_that_nobody_knows_yet_is_asked_for_more_often_and_taken_when_known(system: NameSystem) -> None:
    system.set("ns", "")
    watched = Watched(system)
    watched.name.start()
    watched.time.run(10.0)
    assert watched.name.addresses == ()
    assert 4 <= len(system.asked) <= 6
    system.set("ns", "10.0.0.7")
    watched.lookup_again()
    assert watched.changes == [endpoints("10.0.0.7:9876")]
    watched.name.stop()
    watched.name.join(10)


def test_an_answer_without_addresses_is_a_failure(watched: Watched, system: NameSystem) -> None:
    system.without_addresses.add("ns")
    watched.lookup_again(5)
    assert watched.name.addresses == endpoints("10.0.0.1:9876 10.0.0.2:9876")


def test_scenario_66_the_addresses_of_localhost_include_127_0_0_1() -> None:
    assert Endpoint("127.0.0.1", 6789) in addresses_of(Endpoint("localhost", 6789))


def test_of_a_name_with_both_kinds_of_addresses_those_of_ipv4_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(*_: object, **__: object) -> list[object]:
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::2", 1, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.9", 1)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.10", 1)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    assert addresses_of(Endpoint("ns", 1)) == endpoints("10.0.0.10:1 10.0.0.9:1")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both()[:1])
    assert addresses_of(Endpoint("ns", 1)) == endpoints("[fd00::2]:1")


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 64])
def test_a_name_without_an_address_is_an_os_error(host: str) -> None:
    with pytest.raises(OSError, match=r".+"):
        addresses_of(Endpoint(host, 1))
