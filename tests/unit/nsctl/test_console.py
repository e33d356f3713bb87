"""The console: what its views show of fleets in several states, that its commands exist, and what an observer reads."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
import typer
from namesrv_api.v1 import route_data_pb2

from nsctl.cli import app
from nsctl.console import app as console
from nsctl.console import rows
from nsctl.console.app import Observer
from nsctl.console.rows import Observation
from nsctl.findings import Code, Finding
from nsctl.held import BrokerKey
from tests.support.fakes.observed_name_server import BROKER, NOW, FakeNameServer, drain, entry, live, seen

SLAVE = BROKER._replace(id=1, addr="10.0.0.2:10911")
LOST = route_data_pb2.REMOVAL_REASON_CHANNEL_CLOSED
GONE = Finding(Code.UNREACHABLE, "did not answer within 3 s", "see whether its process hangs")


def unreachable(view: Observation) -> Observation:
    return replace(view, silence=GONE)


def words(*views: Observation, now: float = NOW) -> list[tuple[str, str]]:
    """Of the first group."""
    return [(word.text, word.command) for word in rows.group_rows(views, now)[0]["words"]]


def found(*views: Observation, differing: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    return [(one["code"], one["tone"]) for one in rows.findings(views, differing)]


@pytest.mark.parametrize(
    ("views", "word", "command"),
    [
        ([seen(live(heard_at=NOW - 61))], "silent", "nsctl drain --cluster=east broker-a"),
        ([seen(live(unconfirmed=True))], "unconfirmed", "nsctl brokers --unconfirmed"),
        (
            [seen(live(unconfirmed=True), guard_tripped=True)],
            "unconfirmed",
            "nsctl guard drop --cluster=east broker-a",
        ),
        ([seen(live(), intents=(drain(),))], "drained", "nsctl undrain --cluster=east broker-a"),
        (
            [seen(live(), intents=(drain(),)), seen(live(), name="ns-b")],
            "drained at ns-a only",
            "nsctl undrain --cluster=east broker-a",
        ),
        ([seen(live(SLAVE))], "no master", "nsctl broker --cluster=east broker-a"),
        ([seen(live()), seen(name="ns-b")], "not at ns-b", "nsctl diff"),
        ([unreachable(seen(live())), seen(live(), name="ns-b")], "live", ""),
        ([seen(live(unconfirmed=True)), seen(live(), name="ns-b")], "live", ""),
    ],
)
def test_a_group_says_how_it_is_and_which_command_helps(views: list[Observation], word: str, command: str) -> None:
    assert words(*views) == [(word, command)]


def test_groups_with_something_to_do_come_first() -> None:
    other = BrokerKey("west", "broker-b", 1, "10.0.0.9:10911")
    assert [row["key"].broker for row in rows.group_rows([seen(live(), live(other))], NOW)] == ["broker-b", "broker-a"]


def test_findings_are_the_doctors_and_each_is_told_once() -> None:
    loss = entry(
        "broker-b (10.0.0.9:10911, id 0) of east lost its channel", removal_reason=LOST, removed_broker_count=1
    )
    views = [seen(live(SLAVE), entries=(loss,), topics=(), name=name) for name in ("ns-a", "ns-b")]
    assert found(*views) == [("GROUP_WITHOUT_MASTER", "bad"), ("BROKER_LOST", "warn")]
    assert found(seen(live(), warm=False)) == [("WARMING", "warn")]
    assert found(unreachable(seen(live()))) == [("UNREACHABLE", "bad")]
    assert found(seen(live()), differing=("kv",)) == [("NAME_SERVERS_DISAGREE", "bad")]
    held = [
        seen(live(), name=name, guard_tripped=True, guarded_broker_count=4, guard_ends_at_millis=1_700_000_000_000 + at)
        for at, name in enumerate(("ns-a", "ns-b"))
    ]
    (finding,) = rows.findings(held)
    assert (finding["code"], finding["about"]) == ("GUARD_HOLDS_BROKERS", "ns-a, ns-b")


@pytest.mark.parametrize(
    ("views", "text", "tone"),
    [
        ([seen(live())], "1 name server, 1 broker: all is well", "good"),
        ([seen()], "1 name server, 0 brokers: 1 problem", "bad"),
        ([seen(live(), warm=False)], "1 name server, 1 broker: 1 warning", "warn"),
        ([unreachable(seen(live()))], "No name server answers. What is shown is what they said last.", "bad"),
    ],
)
def test_the_summary_is_one_sentence(views: list[Observation], text: str, tone: str) -> None:
    brokers = len(rows.broker_rows(views, NOW))
    assert rows.summary(rows.findings(views), views, brokers)[:2] == (text, tone)


def test_a_difference_is_shown_when_it_has_lasted_with_its_beginning() -> None:
    compared = rows.Differences()
    differing = [seen(live()), seen(live(), digest=b"other", name="ns-b", intents=(drain(),))]
    compared.note(differing, NOW)
    compared.note(differing, NOW + 4)
    assert compared.settled(NOW + 4) == {}
    (broker, since), (intent, _) = compared.settled(NOW + 5).values()
    assert (broker.subject, since) == (BROKER, NOW)
    assert intent.said == ("not there", "in force")
    compared.note([differing[0], unreachable(differing[1])], NOW + 6)
    assert compared.settled(NOW + 20) == {}, "one that does not answer is not compared"


def test_topics_are_searched_and_those_of_applications_come_first() -> None:
    views = [seen(live(), topics=("%RETRY%orders", "orders", "payments")), seen(topics=("orders",), name="ns-b")]

    def names(contains: str, only: str = "") -> list[str]:
        return [row["name"] for row in rows.topic_rows(views, contains, only)]

    assert names("orders") == ["orders", "%RETRY%orders"]
    assert names("", "differing") == ["payments", "%RETRY%orders"]
    assert names("", "unwritable") == []
    (payments,) = rows.topic_rows(views, "pay", "")
    assert [word.text for word in payments["words"]] == ["not at ns-b"]


def test_journals_are_one_and_what_two_say_is_told_once() -> None:
    first, later = entry("a", caller="ipv4:10.0.0.1:40000"), entry("a", NOW + 1.5, caller="ipv4:10.0.0.1:50000")
    told = rows.as_one([("ns-a", first), ("ns-b", later), ("ns-a", entry("b", NOW + 9)), ("ns-a", entry("a", NOW - 9))])
    assert [(row["entry"].summary, row["at"]) for row in told] == [
        ("b", ["ns-a"]),
        ("a", ["ns-b", "ns-a"]),
        ("a", ["ns-a"]),
    ]
    assert told[1]["caller"] == "10.0.0.1"


HOSTILE = ("x; rm -rf ~", "--force", "$(reboot)", "a'b", "%RETRY%a|b", "-x")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_stays_one_word_of_a_command_and_is_no_option(name: str) -> None:
    key = BrokerKey(name, name, 0, "10.0.0.1:10911")
    views = [seen(live(key, unconfirmed=True), guard_tripped=True, intents=(drain(key),))]
    commands = [word.command for word in rows.group_rows(views, NOW)[0]["words"]]
    assert len(commands) == 2
    for command in [*commands, rows.command("explain", "--", name), rows.of_group("drain --dry-run", key)]:
        assert parsed(command)["name"] == name


def parsed(command: str) -> dict[str, Any]:
    """The parameters of a command as nsctl reads them; fails if it would refuse them."""
    program, *arguments = shlex.split(command)
    assert program == "nsctl"
    found: Any = typer.main.get_command(app)
    while hasattr(found, "commands"):
        found = found.commands[arguments.pop(0)]
    given: dict[str, Any] = found.make_context("nsctl", arguments).params
    return given | {"name": given.get("broker") or given.get("topic") or given.get("name")}


@pytest.mark.parametrize("code", list(Code))
def test_the_command_of_each_finding_is_one_of_nsctl(code: Code) -> None:
    assert parsed(rows.finding_row(Finding(code, "", ""))["more"]) is not None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic time, which stands unless a test moves it."""
    now = [1_000.0]
    monkeypatch.setattr("nsctl.console.app.time.monotonic", lambda: now[0])
    return now


def observed(watched: Observer) -> Observer:
    """After one more question."""
    watched.seen = watched.observed()
    return watched


def topics(watched: Observer) -> set[str]:
    return set() if watched.seen.held is None else set(watched.seen.held.tables.routes)


def test_tables_are_read_after_a_change_at_most_every_two_seconds(clock: list[float]) -> None:
    server = FakeNameServer()
    watched = observed(Observer(server))
    server.revision = 2
    server.calls.clear()
    observed(watched)
    assert server.calls == ["GetNamesrvStatus"]
    clock[0] += console.READ_SECONDS
    observed(watched)
    assert "GetRouteDigest" in server.calls
    assert watched.seen.held is not None
    assert watched.seen.held.status.header.revision == 2


def test_without_a_change_only_brokers_are_read_again(clock: list[float]) -> None:
    server = FakeNameServer()
    watched = observed(Observer(server))
    server.calls.clear()
    clock[0] += console.RENEW_SECONDS
    observed(watched)
    assert server.calls == [*["GetNamesrvStatus"] * 2, "GetDiagnostics", "StreamRouteSnapshot"]
    assert topics(watched) == {"orders"}
