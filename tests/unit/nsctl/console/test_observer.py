"""An observer: what it reads, how often, and what it keeps of a name server that does not answer."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest

from nsctl.console import observer
from nsctl.console.observer import Observer
from tests.support.fakes.observed_name_server import BROKER, FakeNameServer


@pytest.fixture
def server() -> FakeNameServer:
    return FakeNameServer()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic time, which stands unless a test moves it."""
    now = [1_000.0]
    monkeypatch.setattr("nsctl.console.observer.time.monotonic", lambda: now[0])
    return now


def observed(watched: Observer) -> Observer:
    """After one more question."""
    asyncio.run(watched.observe())
    return watched


def test_tables_are_read_after_a_change_at_most_every_two_seconds(server: FakeNameServer, clock: list[float]) -> None:
    watched = observed(Observer(server))
    server.revision = 2
    server.calls.clear()
    observed(watched)
    assert server.calls == ["GetNamesrvStatus"]
    clock[0] += observer.READ_SECONDS
    observed(watched)
    assert "GetRouteDigest" in server.calls
    assert watched.seen.tables is not None
    assert watched.seen.tables.point == ("1", 2)


def test_without_a_change_only_brokers_are_read_again(server: FakeNameServer, clock: list[float]) -> None:
    watched = observed(Observer(server))
    server.calls.clear()
    clock[0] += observer.RENEW_SECONDS
    observed(watched)
    assert server.calls == ["GetNamesrvStatus", "StreamRouteSnapshot", "GetDiagnostics", "ListAuditEntries"]
    assert watched.seen.tables is not None
    assert watched.seen.tables.topics == {"orders"}


def test_a_clock_that_is_ahead_makes_no_broker_older(server: FakeNameServer) -> None:
    server.clock_ahead = 3_600.0
    watched = observed(Observer(server))
    assert watched.seen.tables is not None
    heard_at = watched.seen.tables.lives[BROKER].last_update_timestamp_millis / 1000
    assert heard_at == pytest.approx(time.time() - 3, abs=2)


def test_a_name_server_whose_times_make_no_sense_is_unreachable(server: FakeNameServer) -> None:
    server.clock_ahead, server.heard_ago = 9e15, 1.8e16
    watched = observed(Observer(server))
    assert watched.seen.silence is not None
    assert "out of range" in watched.seen.silence.what


def test_topics_without_a_writable_queue_are_found(server: FakeNameServer) -> None:
    server.topics = {"orders": 6, "payments": 4}
    watched = observed(Observer(server))
    assert watched.seen.tables is not None
    assert watched.seen.tables.unwritable == {"payments"}
    assert [one.code.name for one in watched.seen.tables.findings] == ["TOPICS_NOT_WRITABLE"]


def test_a_name_server_that_is_gone_keeps_what_it_said_and_one_that_is_back_is_reachable(
    server: FakeNameServer,
) -> None:
    watched = observed(Observer(server))
    server.fail(grpc.StatusCode.DEADLINE_EXCEEDED, "GetNamesrvStatus")
    observed(watched)
    assert not watched.seen.reachable
    assert watched.seen.silence is not None
    assert "did not answer within 3 s" in watched.seen.silence.what
    assert watched.seen.tables is not None
    assert watched.seen.name == "ns-a"
    server.failures = {}
    observed(watched)
    assert watched.seen.reachable


def test_what_is_refused_is_told_and_hides_nothing_else(server: FakeNameServer) -> None:
    server.fail(grpc.StatusCode.PERMISSION_DENIED, "ListIntents", "ListAuditEntries", reason="NOT_PERMITTED")
    watched = observed(Observer(server))
    assert watched.seen.reachable
    assert watched.seen.refusal.startswith("NOT_PERMITTED")
    assert watched.seen.tables is not None
    assert watched.seen.tables.topics == {"orders"}
    assert watched.seen.latest == ()


def test_a_name_server_that_sends_too_much_is_unreachable(
    server: FakeNameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer, "MAX_TOPICS", 1)
    server.topics = {"orders": 6, "payments": 6}
    watched = observed(Observer(server))
    assert watched.seen.silence is not None
    assert "too much" in watched.seen.silence.what
