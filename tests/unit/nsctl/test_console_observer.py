"""An observer: what it reads, how often, and what it keeps of a name server that does not answer."""

from __future__ import annotations

import grpc
import pytest

from nsctl.console import observer
from nsctl.console.observer import Observer
from tests.support.fakes.observed_name_server import FakeNameServer


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
    watched.seen = watched.observed()
    return watched


def topics(watched: Observer) -> set[str]:
    return set() if watched.seen.held is None else set(watched.seen.held.tables.routes)


def test_tables_are_read_after_a_change_at_most_every_two_seconds(server: FakeNameServer, clock: list[float]) -> None:
    watched = observed(Observer(server))
    server.revision = 2
    server.calls.clear()
    observed(watched)
    assert server.calls == ["GetNamesrvStatus"]
    clock[0] += observer.READ_SECONDS
    observed(watched)
    assert "GetRouteDigest" in server.calls
    assert watched.seen.held is not None
    assert watched.seen.held.status.header.revision == 2


def test_without_a_change_only_brokers_are_read_again(server: FakeNameServer, clock: list[float]) -> None:
    watched = observed(Observer(server))
    server.calls.clear()
    clock[0] += observer.RENEW_SECONDS
    observed(watched)
    assert server.calls == [*["GetNamesrvStatus"] * 2, "GetDiagnostics", "StreamRouteSnapshot"]
    assert topics(watched) == {"orders"}


def test_a_name_server_whose_times_make_no_sense_is_unreachable(server: FakeNameServer) -> None:
    server.status = {"guard_tripped": True, "guard_ends_at_millis": 1 << 62}
    watched = observed(Observer(server))
    assert watched.seen.silence is not None
    assert "out of range" in watched.seen.silence.what


def test_topics_without_a_writable_queue_are_found(server: FakeNameServer) -> None:
    server.topics = {"orders": 6, "payments": 4}
    watched = observed(Observer(server))
    assert watched.seen.unwritable == {"payments"}
    assert [one.code.name for one in watched.seen.findings] == ["TOPICS_NOT_WRITABLE"]


def test_a_name_server_that_is_gone_keeps_what_it_said_and_one_that_is_back_is_reachable(
    server: FakeNameServer,
) -> None:
    watched = observed(Observer(server))
    server.fail(grpc.StatusCode.DEADLINE_EXCEEDED, "GetNamesrvStatus")
    observed(watched)
    assert not watched.seen.reachable
    assert watched.seen.silence is not None
    assert "did not answer within 3 s" in watched.seen.silence.what
    assert topics(watched) == {"orders"}
    assert watched.seen.name == "ns-a"
    server.failures = {}
    observed(watched)
    assert watched.seen.reachable


def test_what_is_refused_is_told_and_hides_nothing_else(server: FakeNameServer) -> None:
    server.fail(grpc.StatusCode.PERMISSION_DENIED, "ListIntents", "ListAuditEntries", reason="NOT_PERMITTED")
    watched = observed(Observer(server))
    assert watched.seen.reachable
    assert watched.seen.held is not None
    assert watched.seen.held.refusal.startswith("NOT_PERMITTED")
    assert watched.seen.held.entries is None
    assert topics(watched) == {"orders"}
