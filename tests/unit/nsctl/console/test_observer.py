"""How one name server is observed, on a virtual clock."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from unittest import mock

import grpc
import pytest

from nsctl.console import observer
from nsctl.console.observer import POLL_SECONDS, READ_SECONDS, RENEW_SECONDS, Observer
from tests.support.fakes.observed_name_server import BROKER, START_MILLIS, FakeNameServer, live
from tests.support.timing import console_timing
from tests.support.virtual_clock import VirtualClock

OFTEN = ["GetNamesrvStatus", "GetDiagnostics"]
"""Calls of each observation."""
EVERY_CALL = (*OFTEN, "StreamRouteSnapshot", "GetRouteDigest", "ListIntents", "ListAuditEntries")


class Watched:
    def __init__(self) -> None:
        self.server, self.time, self.news = FakeNameServer(), VirtualClock(0.0), 0
        self.observer = Observer(self.server, self._tell, console_timing(self.time))

    def _tell(self) -> None:
        self.news += 1

    def observe(self, after_seconds: float = 0) -> list[str]:
        """The calls of one observation."""
        self.time.advance(after_seconds)
        self.server.calls.clear()
        asyncio.run(self.observer.observe())
        return list(self.server.calls)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_the_tables_are_read_at_first_then_after_a_change_and_now_and_then(watched: Watched) -> None:
    assert set(watched.observe()) == set(EVERY_CALL)
    assert watched.observe(POLL_SECONDS) == OFTEN
    watched.server.revision += 1
    assert watched.observe(READ_SECONDS - POLL_SECONDS - 0.001) == OFTEN
    assert set(watched.observe(0.001)) == set(EVERY_CALL)
    assert set(watched.observe(RENEW_SECONDS)) == set(EVERY_CALL) - {"GetRouteDigest"}


def test_viewers_are_told_of_what_changed_only(watched: Watched) -> None:
    watched.observe()
    assert watched.news == 1
    watched.observe(POLL_SECONDS)
    assert watched.news == 1
    watched.server.revision += 1
    watched.observe(POLL_SECONDS)
    assert watched.news == 2


def test_what_was_seen_is_kept_while_it_cannot_be_reached(watched: Watched) -> None:
    watched.observe()
    watched.server.fail(grpc.StatusCode.UNAVAILABLE, *EVERY_CALL)
    watched.observe()
    seen = watched.observer.seen
    assert (seen.reachable, seen.problem, watched.news) == (False, "UNAVAILABLE: no answer", 2)
    assert seen.tables is not None
    assert set(seen.tables.lives) == {BROKER}
    watched.server.failures.clear()
    watched.observe()
    assert watched.observer.seen.reachable
    assert watched.news == 3


def test_what_it_refuses_to_tell_does_not_hide_the_rest(watched: Watched) -> None:
    watched.server.fail(
        grpc.StatusCode.PERMISSION_DENIED, "ListIntents", "ListAuditEntries", reason="DENIED", message="not you"
    )
    watched.observe()
    seen = watched.observer.seen
    assert (seen.reachable, seen.refusal) == (True, "DENIED: not you")
    assert seen.tables is not None
    assert set(seen.tables.lives) == {BROKER}


def test_a_journal_that_the_disk_does_not_give_leaves_the_name_server_reachable(watched: Watched) -> None:
    watched.server.fail(grpc.StatusCode.UNAVAILABLE, "ListAuditEntries", reason="NOT_DURABLE", message="disk I/O error")
    watched.observe()
    seen = watched.observer.seen
    assert (seen.reachable, seen.refusal) == (True, "NOT_DURABLE: disk I/O error")
    assert seen.tables is not None


def test_a_failure_in_the_middle_of_a_reading_changes_nothing_that_is_shown(watched: Watched) -> None:
    watched.observe()
    before = watched.observer.seen.tables
    watched.server.lives = [live(), live(BROKER._replace(id=1, addr="10.0.0.2:10911"))]
    watched.server.revision += 1
    watched.server.fail(grpc.StatusCode.DEADLINE_EXCEEDED, "GetRouteDigest")
    watched.observe(READ_SECONDS)
    assert watched.observer.seen.tables is before
    assert not watched.observer.seen.reachable


def test_a_name_server_that_sends_too_many_brokers_keeps_what_was_shown_before(watched: Watched) -> None:
    watched.observe()
    before = watched.observer.seen.tables
    watched.server.lives = [live(), live(BROKER._replace(id=1, addr="10.0.0.2:10911"))]
    with mock.patch.object(observer, "MAX_BROKERS", 1):
        watched.observe(RENEW_SECONDS)
    seen = watched.observer.seen
    assert seen.tables is before
    assert seen.problem == "INTERNAL: 2 live brokers so far, over the limit of 1"


def test_when_a_broker_was_heard_of_is_told_by_our_clock(watched: Watched) -> None:
    watched.time.seconds = 3_600  # ours is an hour ahead of the name server's
    watched.server.lives = [live(heard_at=START_MILLIS - 5_000)]
    watched.observe()
    assert watched.observer.seen.tables is not None
    assert watched.time.wall_millis() - watched.observer.seen.tables.heard_at(BROKER) == 5_000


def test_it_is_asked_less_often_while_it_fails_and_at_once_as_often_when_it_answers() -> None:
    class Ended(Exception):
        pass

    server, time = FakeNameServer(), VirtualClock(0.0)
    server.fail(grpc.StatusCode.UNAVAILABLE, *EVERY_CALL)

    async def sleep(seconds: float) -> None:
        await time.sleep(seconds)
        if len(time.pauses) == 5:
            server.failures.clear()
        if len(time.pauses) == 7:
            raise Ended

    timing = replace(console_timing(time), sleep=sleep)
    with pytest.raises(Ended):
        asyncio.run(Observer(server, lambda: None, timing).run())
    assert time.pauses == [1, 2, 4, 5, 5, POLL_SECONDS, POLL_SECONDS]
