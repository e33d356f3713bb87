"""``nsctl history``: what it asks and shows, how it follows journals, and how log shippers run it across restarts."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from namesrv_api.v1 import admin_service_pb2
from typer.core import TyperCommand

from nsctl.commands import show
from nsctl.commands.doctor import doctor
from nsctl.commands.show import Wanted, follow_journals
from nsctl.output import Row
from nsctl.session import REFUSED, UNREACHABLE, Fleet, Session
from tests.support.fakes.observed_name_server import FakeNameServer, entry
from tests.support.programs.agents import held_port
from tests.support.programs.processes import BIN, NamesrvProcess, Process, ended


def follower_of(namesrv: object) -> Process:
    """A running ``nsctl history --follow``."""
    # A shell has its background jobs ignore SIGINT, and the program would inherit that from the tests.
    interruptible = ["env", "--default-signal=INT", str(BIN / "nsctl")]
    return Process([*interruptible, "history", "--follow", "--json", "--namesrv", str(namesrv)], pipes=True)


def put(namesrv: NamesrvProcess, *keys: str) -> None:
    with namesrv.connect() as client:
        for key in keys:
            client.admin.PutKvConfig(
                admin_service_pb2.PutKvConfigRequest(namespace="ns", key=key, value="v"), timeout=client.TIMEOUT
            )


@pytest.mark.timeout(120)
def test_lines_come_at_once_and_go_on_after_restarts_without_gap(tmp_path: Path) -> None:
    with held_port() as place:
        flags = ("--data-dir", str(tmp_path))
        with NamesrvProcess(*flags, port=place.port) as namesrv, follower_of(namesrv.endpoint) as follower:
            _, output = follower.pipes
            put(namesrv, "a")
            lines = [output.readline()]
            put(namesrv, "b")  # whether it was seen before the end or not, it is shown
            assert namesrv.terminate() == 0
            follower.wait_for_text("\n")
            with NamesrvProcess(*flags, port=place.port) as again:
                put(again, "c")
                lines += [output.readline(), output.readline()]
                entries = [json.loads(line) for line in lines]
                assert [entry["summary"].split("'")[3] for entry in entries] == ["a", "b", "c"]
                epochs = [entry["epoch"] for entry in entries]
                assert epochs[0] == epochs[1] < epochs[2]
                follower.signal(signal.SIGINT)
                assert (follower.wait(), output.read()) == (0, "")
                shown = ended([str(BIN / "nsctl"), "history", "-o", "json", "-n", str(place)]).stdout
                assert [entry["epoch"] for entry in json.loads(shown)] == epochs[::-1]
    refused, back = follower.raw.splitlines()
    assert f"{place}: cannot be reached" in refused
    assert f"{place} answers again" in back


NOW_MILLIS = 1_000_000_000
"""By the name server's clock, which is far behind ours."""


class Journalist(FakeNameServer):
    """A name server with a journal, and what is wrong with it."""

    def __init__(self, endpoint: str = "127.0.0.1:9876") -> None:
        super().__init__(endpoint=endpoint)
        self.epoch, self.revision = "1-a", 0
        self.now_millis = NOW_MILLIS
        self.journal: list[admin_service_pb2.AuditEntry] = []
        """Oldest first."""
        self.asked: list[admin_service_pb2.ListAuditEntriesRequest] = []

    def change(self, *, broker: str = "b", cause: str = "RegisterBroker", at: float | None = None) -> None:
        self.revision += 1
        about = {"epoch": self.epoch, "revision": self.revision, "cause": cause}
        self.journal.append(entry(broker, len(self.journal) if at is None else at, **about))

    def restart(self, epoch: str, *, forgets: bool = False) -> None:
        self.epoch, self.revision = epoch, 0
        if forgets:
            self.journal.clear()

    def answer(self, name: str, request: Any) -> Any:
        if name == "ListAuditEntries":
            self.asked.append(request)
            after = (request.after_epoch, request.after_revision)
            self.entries = [
                one
                for one in reversed(self.journal)
                if (not request.HasField("after_epoch") or (one.epoch, one.revision) > after)
                and request.broker_name in ("", one.summary)
            ]
        return super().answer(name, request)


def session_of(*servers: Journalist) -> Session:
    session = Session(TyperCommand("history"))
    session.servers = Fleet(servers)
    return session


def follow(session: Session, wanted: Wanted, *meanwhile: Callable[[], object]) -> list[list[tuple[str, int]]]:
    """What each look shows; between two of them something happens, and the last one is interrupted."""
    looks: list[list[tuple[str, int]]] = []
    steps = iter(meanwhile)

    def sleep(_seconds: float) -> None:
        if (step := next(steps, None)) is None:
            raise KeyboardInterrupt
        step()

    def show(rows: Sequence[Row]) -> None:
        looks.append([(row["epoch"], row["revision"]) for row in rows])

    follow_journals(session, wanted, show, sleep)
    return looks


@pytest.mark.parametrize(
    ("now_millis", "asked_from"),
    [(NOW_MILLIS, NOW_MILLIS - 1_000), (2**63 - 1, 2**63 - 1), (-(2**63), 0), (1, 0)],
)
def test_how_far_back_goes_by_a_name_servers_clock_whatever_it_says(
    now_millis: int, asked_from: int, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Journalist()
    server.now_millis = now_millis
    show.history(session_of(server), since=1)
    show.history(session_of(server))
    doctor(session_of(server))
    assert server.asked[0].from_millis == asked_from
    assert not server.asked[1].HasField("from_millis")
    assert "CLOCK_SKEW" in capsys.readouterr().out


def test_a_table_begins_with_the_newest_and_lines_of_json_with_the_oldest(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = Journalist("127.0.0.1:1"), Journalist("127.0.0.1:2")
    for at in (1_000, 1_000, 500):  # two within a millisecond, then the clock stepped back
        first.change(at=at)
    second.change(broker="line\nbreak\u2028\x1b[2J", at=2_000)
    session = session_of(first, second)
    show.history(session, json_lines=True)
    lines = capsys.readouterr().out.splitlines()
    assert not any("\x1b" in line for line in lines)
    shown = [json.loads(line) for line in lines]
    assert [(one["endpoint"], one["revision"]) for one in shown] == [
        *(("127.0.0.1:1", 1), ("127.0.0.1:1", 2), ("127.0.0.1:1", 3)),
        ("127.0.0.1:2", 1),
    ]
    assert shown[3]["summary"] == "line\nbreak\u2028\x1b[2J"
    assert shown[0]["epoch"] == "1-a"
    session.form = "json"
    show.history(session)
    assert json.loads(capsys.readouterr().out) == shown[::-1]


def test_followed_entries_are_shown_once_also_across_a_restart() -> None:
    server = Journalist()
    for _ in range(3):
        server.change()

    def restarted() -> None:
        server.change()  # just before it ended
        server.restart("2-b")
        server.change()

    looks = follow(session_of(server), Wanted(limit=2), server.change, lambda: None, restarted)
    assert looks == [[("1-a", 2), ("1-a", 3)], [("1-a", 4)], [], [("1-a", 5), ("2-b", 1)]]
    assert len(server.asked) == 3, "where the revision is the same, there is nothing to ask for"


def test_an_epoch_before_the_last_one_is_followed_from_its_begin() -> None:
    server = Journalist()
    server.restart("5-a")
    server.change()

    def restarted_with_an_earlier_clock() -> None:
        server.restart("4-b", forgets=True)
        server.change()
        server.change()

    looks = follow(session_of(server), Wanted(), restarted_with_an_earlier_clock, server.change)
    assert looks == [[("5-a", 1)], [("4-b", 1), ("4-b", 2)], [("4-b", 3)]]


def test_filters_of_followed_entries_do_not_make_it_ask_for_old_ones_again() -> None:
    server = Journalist()
    server.change(broker="other")

    def many() -> None:
        server.change(broker="other", cause="channel end")
        for _ in range(3):
            server.change(broker="mine", cause="channel end")
        server.change(broker="mine")

    wanted = Wanted(broker="mine", causes=frozenset({"channelend"}), since=60, limit=2)
    looks = follow(session_of(server), wanted, many, server.change)
    assert looks == [[], [("1-a", 3), ("1-a", 4), ("1-a", 5)], []], "new ones are not bounded by the limit"
    assert [(request.after_revision, request.HasField("from_millis")) for request in server.asked] == [
        *((0, True), (1, False), (6, False))
    ]


def test_a_look_with_too_many_entries_shows_the_newest_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(show, "MOST_NEW_ENTRIES", 2)
    server = Journalist()

    def many() -> None:
        for _ in range(3):
            server.change()

    looks = follow(session_of(server), Wanted(), many)
    assert looks == [[], [("1-a", 2), ("1-a", 3)]]
    assert "127.0.0.1:9876: more than 2 new entries: the oldest are left out" in capsys.readouterr().err


def test_a_name_server_that_is_away_is_told_of_once_and_missed_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    server, other = Journalist("127.0.0.1:1"), Journalist("127.0.0.1:2")
    server.change()

    def away() -> None:
        server.fail(grpc.StatusCode.UNAVAILABLE, "GetNamesrvStatus")
        server.change()
        other.change()

    def back() -> None:
        server.failures = {}

    session = session_of(server, other)
    looks = follow(session, Wanted(), away, lambda: None, back)
    assert looks == [[("1-a", 1)], [("1-a", 1)], [], [("1-a", 2)]]
    assert capsys.readouterr().err.splitlines() == [
        "nsctl: 127.0.0.1:1: cannot be reached: UNAVAILABLE: tried: no answer: start it, or take it off the list",
        "nsctl: 127.0.0.1:1 answers again",
    ]
    assert session.exit_code == 0
    session = session_of(server, other)
    follow(session, Wanted(), away)
    assert session.exit_code == UNREACHABLE


def test_following_ends_at_once_where_nobody_answers_at_first() -> None:
    server = Journalist()
    server.fail(grpc.StatusCode.UNIMPLEMENTED, "GetNamesrvStatus")
    session = session_of(server)
    assert follow(session, Wanted()) == [[]]
    assert session.exit_code == REFUSED
