"""The command line against real name servers: whom it asks, what it shows, changes and finds, and its exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from nsctl import session
from nsctl.cli import app
from nsctl.session import FOUND, REFUSED, UNREACHABLE, USAGE, WARNED
from tests.support.fleet_states import two_name_servers
from tests.support.programs import nsctl_runs
from tests.support.programs.agents import joined
from tests.support.programs.processes import NamesrvProcess
from tests.support.registrations import identity, register, registration

NOBODY = "127.0.0.1:1"


class OperatedFleet:
    """Name servers and a command line for them."""

    def __init__(self, *servers: NamesrvProcess) -> None:
        self.servers, self.endpoints = servers, joined(*servers)
        self.first, self.second = str(servers[0].endpoint), str(servers[-1].endpoint)

    def register(self, at: int, *topics: str, counter: int = 1) -> None:
        with self.servers[at].connect() as client:
            register(client, *topics, counter=counter)

    def run(self, *arguments: str, exit_code: int = 0, namesrv: str | None = None) -> str:
        return nsctl_runs.run(*arguments, "--namesrv", namesrv or self.endpoints, exit_code=exit_code).output

    def rows(self, *arguments: str, exit_code: int = 0, namesrv: str | None = None) -> list[dict[str, Any]]:
        return nsctl_runs.rows(*arguments, "--namesrv", namesrv or self.endpoints, exit_code=exit_code)

    def column(self, name: str, *arguments: str) -> list[Any]:
        return [row[name] for row in self.rows(*arguments)]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[OperatedFleet]:
    with two_name_servers(tmp_path) as servers:
        operated = OperatedFleet(*servers)
        for at in (0, 1):
            operated.register(at, "TopicTest")
        yield operated


def test_every_command_that_shows_something_shows_it_to_people_and_to_programs(fleet: OperatedFleet) -> None:
    (route,) = fleet.rows("route", "TopicTest")
    assert (route["broker_name"], route["permission"]) == ("broker-a", "RW-")
    assert "broker-a" in fleet.run("route", "TopicTest")
    assert [row["state"] for row in fleet.rows("status")] == ["ready", "ready"]
    assert fleet.rows("clusters")[0]["broker_addrs"] == [{"broker_id": 0, "broker_addr": "127.0.0.1:10911"}]
    assert "0: 127.0.0.1:10911" in fleet.run("clusters")
    assert fleet.rows("brokers")[0]["last_update_timestamp"].endswith("Z")
    assert {"topic": "TopicTest", "kind": "normal"} in fleet.rows("topics")
    assert fleet.rows("topics", "Nothing") == []
    assert fleet.rows("watchers") == []
    assert [row["name_server"] for row in fleet.rows("explain", "TopicTest")] == ["ns-a", "ns-b"]
    assert {row["cause"] for row in fleet.rows("history", "--topic", "TopicTest")} == {"RegisterBroker"}
    output = fleet.run("watch", "TopicTest", "Nothing*", "--limit", "1")
    assert "TopicTest at revision" in output
    assert "127.0.0.1:10911" in output


def test_a_name_server_that_is_not_there_is_told_and_the_others_are_shown(fleet: OperatedFleet) -> None:
    namesrv = f"{NOBODY};{fleet.first}"
    assert [
        row["name_server"] for row in fleet.rows("explain", "TopicTest", exit_code=UNREACHABLE, namesrv=namesrv)
    ] == ["ns-a"]
    assert fleet.rows("route", "TopicTest", namesrv=namesrv)
    assert "unreachable" in fleet.run("status", exit_code=UNREACHABLE, namesrv=namesrv)
    assert f"{NOBODY}: cannot be reached" in fleet.run("route", "TopicTest", exit_code=UNREACHABLE, namesrv=NOBODY)


def test_a_command_that_shows_is_repeated_until_it_is_interrupted(
    fleet: OperatedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = iter([lambda: fleet.register(0, "TopicTest", "Later", counter=2)])

    def sleep(seconds: float) -> None:
        assert seconds == 2
        if (step := next(steps, None)) is None:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr(session, "time", Mock(sleep=sleep))
    output = fleet.run("explain", "Later", "--watch", "2", namesrv=fleet.first)  # with the exit code of the last time
    assert ("no broker ever reported Later" in output, "broker-a" in output) == (True, True)


def test_what_is_not_there_is_said_and_a_topic_is_deleted_where_it_is(fleet: OperatedFleet) -> None:
    fleet.register(0, "TopicTest", "A", counter=2)
    assert [row["result"] for row in fleet.rows("delete-topic", "A", "--force")] == ["done", "not there"]
    assert fleet.run("explain", "nope", exit_code=REFUSED) == "nsctl: no broker ever reported nope\n"
    assert "TOPIC_NOT_FOUND" in fleet.run("route", "Nothing", exit_code=REFUSED)
    assert "BROKER_NOT_REGISTERED" in fleet.run("drain", "nobody", exit_code=REFUSED)


def test_a_decision_about_what_nobody_has_registered_is_done_with_a_warning(fleet: OperatedFleet) -> None:
    drain, cluster = ("drain", "soon"), ("--cluster", "DefaultCluster")
    said = "nobody has registered broker group soon of cluster DefaultCluster here"
    for dry_run in (("--dry-run",), ()):
        assert fleet.run(*drain, *cluster, *dry_run).count(said) == 2, "at each name server"
    assert "warning" not in fleet.run("drain", "broker-a", *cluster, "--dry-run")
    assert fleet.column("awaits_registration", "intents") == [True, True]
    said = "nobody has registered broker group soon here; the change takes effect when somebody does"
    assert fleet.run("undrain", "soon").count(said) == 2
    held = ("Soon", "--cluster", "c")
    assert "nobody has registered topic Soon of cluster c here" in fleet.run("delete-topic", *held, "--hold")
    fleet.run("unhold-topic", *held)
    assert fleet.rows("intents") == []


def test_a_drain_is_previewed_done_at_all_seen_and_restored(fleet: OperatedFleet) -> None:
    preview = fleet.rows("drain", "broker-a", "--dry-run")
    assert [(row["result"], row["blast_radius"]["topics_losing_last_writable_queue"]) for row in preview] == [
        ("would need --force", 1)
    ] * 2
    refused = fleet.run("drain", "broker-a", exit_code=REFUSED)
    assert refused.count("TOPICS_IN_USE: 1 application topic would lose queues that producers need: TopicTest") == 2
    assert refused.count("repeat with --force") == 1
    assert fleet.rows("intents") == []
    done = fleet.rows("drain", "broker-a", "--reason", "new disks", "--for", "2h", "--force")
    assert [row["result"] for row in done] == ["done", "done"]
    assert [(row["kind"], row["comment"]) for row in fleet.rows("intents")] == [("WIPE_WRITE_PERM", "new disks")] * 2
    assert fleet.rows("route", "TopicTest")[0]["permission"] == "R--"
    assert "TOPICS_DRAINED" in fleet.run("doctor", exit_code=WARNED)
    history = ("history", "broker-a", "--since", "2h")
    assert set(fleet.column("cause", *history)) == {"RegisterBroker", "WipeWritePermOfBroker"}
    assert fleet.column("cause", *history, "--cause", "register_broker") == ["RegisterBroker"] * 2
    assert "is no duration such as" in fleet.run("history", "--since", "soon", exit_code=USAGE)
    assert "leave --watch away" in fleet.run("history", "--follow", "--watch", "2", exit_code=USAGE)
    fleet.run("undrain", "broker-a")
    assert fleet.rows("route", "TopicTest")[0]["permission"] == "RW-"


def test_name_servers_that_disagree_are_found_by_broker_by_intent_and_by_topic(fleet: OperatedFleet) -> None:
    assert "no difference between 2 name servers" in fleet.run("diff")
    assert fleet.rows("diff") == []
    fleet.run("drain", "broker-a", "--force", namesrv=fleet.first)
    (row,) = fleet.rows("diff", exit_code=FOUND)
    assert [row[key] for key in ("part", "intent", "broker", fleet.first, fleet.second)] == [
        *("intent", "drain", "broker-a", "in force", "not there")
    ]
    assert "NAME_SERVERS_DISAGREE" in {row["code"] for row in fleet.rows("doctor", exit_code=FOUND)}
    fleet.run("undrain", "broker-a", namesrv=fleet.first)
    with NamesrvProcess() as empty:
        output = fleet.run("diff", exit_code=FOUND, namesrv=f"{fleet.first};{empty.endpoint}")
    assert "brokers that differ" in output
    assert "not there" in output
    fleet.register(0, "TopicTest", "A", counter=2)
    broker, topic = fleet.rows("diff", exit_code=FOUND)
    assert (broker["part"], broker["broker"]) == ("broker", "broker-a")
    assert broker["since"] == fleet.rows("history", "broker-a", "--limit", "1")[0]["applied_at"]
    assert [topic[key] for key in ("topic", "broker", fleet.second)] == ["A", "broker-a", "not there"]


def test_a_broker_has_a_page_and_a_list_has_filters(fleet: OperatedFleet) -> None:
    parts = fleet.rows("broker", "broker-a")
    assert next(row["part"] for row in parts) == "broker"
    assert {row["topic"] for row in parts if row["part"] == "topic"} == {"TopicTest"}
    assert "no live broker is called nobody" in fleet.run("broker", "nobody", exit_code=REFUSED)
    for filters, count in (((), 1), (("oker-a",), 1), (("b-b",), 0), (("--no-channel",), 1), (("--cluster", "x"), 0)):
        assert len(fleet.rows("brokers", *filters)) == count, filters
    assert fleet.rows("brokers", "--silent", "2h") == fleet.rows("brokers", "--unconfirmed") == []


def test_kv_and_settings_are_read_and_changed_at_all(fleet: OperatedFleet) -> None:
    fleet.run("kv", "put", "ORDER_TOPIC_CONFIG", "TopicTest", "broker-a:4")
    assert [row["value"] for row in fleet.rows("kv", "get", "ORDER_TOPIC_CONFIG", "TopicTest")] == ["broker-a:4"] * 2
    assert fleet.rows("kv", "list", "ORDER_TOPIC_CONFIG")[0]["key"] == "TopicTest"
    assert [row["removed"] for row in fleet.rows("kv", "delete", "ORDER_TOPIC_CONFIG", "TopicTest")] == [True, True]
    assert [row["value"] for row in fleet.rows("settings", "set", "scanNotActiveBrokerInterval=30000")] == ["30000"] * 2
    assert [row["value"] for row in fleet.rows("settings", "show", "scanNotActiveBrokerInterval")] == ["30000"] * 2
    assert "CONFIG_KEY_DENIED" in fleet.run("settings", "set", "listen=0.0.0.0:1", exit_code=REFUSED)
    assert "is not SETTING=VALUE" in fleet.run("settings", "set", "scanNotActiveBrokerInterval", exit_code=USAGE)


def test_kv_put_and_delete_change_only_what_is_as_expected(fleet: OperatedFleet) -> None:
    def refused(*command: str) -> list[str]:
        return [row["result"] for row in fleet.rows("kv", *command, exit_code=REFUSED)]

    fleet.run("kv", "put", "n", "k", "1", "--if-absent")
    assert refused("put", "n", "k", "2", "--if-absent") == ["failed: CONFLICT"] * 2
    assert refused("put", "n", "k", "2", "--expect", "") == ["failed: CONFLICT"] * 2
    fleet.run("kv", "put", "n", "k", "2", "--expect", "1")
    assert refused("delete", "n", "k", "--expect", "1") == ["failed: CONFLICT"] * 2
    fleet.run("kv", "delete", "n", "k", "--expect", "2")
    fleet.run("kv", "put", "n", "k", "1", "--expect", "1", "--if-absent", exit_code=USAGE)


OTHER = "127.0.0.1:2"


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (("-n", NOBODY, "kv", "list"), UNREACHABLE, f"nsctl: {NOBODY}: cannot be reached: UNAVAILABLE"),
        (("--namesrv", NOBODY, "route", "T", "--namesrv", OTHER), UNREACHABLE, f"nsctl: {OTHER}: "),
        (("--context", "none", "status"), USAGE, "contexts.toml"),
        (
            ("--namesrv", NOBODY, "agent", "status", OTHER),
            USAGE,
            "--namesrv is for name servers, and this command asks",
        ),
    ],
)
def test_options_before_the_command_count_unless_it_has_its_own(
    arguments: tuple[str, ...], exit_code: int, said: str
) -> None:
    result = CliRunner().invoke(app, list(arguments), env={"NAMESRV_ADDR": "127.0.0.1:3"})
    assert (result.exit_code, said in result.stderr) == (exit_code, True), result.stderr


# Several broker groups, named by a pattern.

GROUPS = {
    ("east", "broker-a1"): ["%RETRY%g", "broker-a1", "orders", "payments"],
    ("east", "broker-a2"): ["BenchmarkTest", "orders", "payments"],
    ("west", "broker-b1"): ["orders"],
}


@pytest.fixture
def grouped(tmp_path: Path) -> Iterator[OperatedFleet]:
    with NamesrvProcess("--data-dir", str(tmp_path)) as process, process.connect() as client:
        for port, ((cluster, name), topics) in enumerate(GROUPS.items(), 10911):
            broker = identity(f"127.0.0.1:{port}", name=name, cluster=cluster)
            client.registration.RegisterBroker(registration(tuple(topics), broker), timeout=client.TIMEOUT)
        yield OperatedFleet(process)


def test_a_dry_run_lists_matches_and_topics_of_applications_first(grouped: OperatedFleet) -> None:
    dry_run = ("drain", "east/*", "--dry-run")
    assert grouped.column("broker", *dry_run) == ["broker-a1", "broker-a2"]
    assert grouped.column("topics", *dry_run) == [
        ["orders", "payments", "%RETRY%g", "broker-a1"],
        ["orders", "payments", "BenchmarkTest"],
    ]
    assert grouped.column("result", *dry_run) == ["would need --force"] * 2
    assert "TOPICS_IN_USE: 1 topic would lose the last writable queue: payments" in grouped.run(*dry_run)
    assert grouped.column("result", "drain", "east/*1", "--dry-run") == ["would be done"]
    assert grouped.rows("intents") == []


def test_a_pattern_drains_all_or_none_and_restores_what_is_drained(grouped: OperatedFleet) -> None:
    refused = grouped.run("drain", "east/*", "-o", "json", exit_code=REFUSED)
    assert all(line.startswith("nsctl: ") for line in refused.splitlines()), "there are no rows"
    assert "nothing has changed" in refused
    assert grouped.rows("intents") == []
    done = grouped.rows("drain", "broker-a*", "--force", "--reason", "move")
    assert [(row["cluster"], row["broker"], row["result"]) for row in done] == [
        ("east", "broker-a1", "done"),
        ("east", "broker-a2", "done"),
    ]
    assert grouped.column("broker_name", "intents") == ["broker-a1", "broker-a2"]
    undrain = ("undrain", "*/broker-*")
    assert grouped.column("broker", *undrain, "--dry-run") == ["broker-a1", "broker-a2"], "broker-b1 is not drained"
    done = grouped.rows(*undrain, exit_code=UNREACHABLE, namesrv=f"{grouped.first};{NOBODY}")
    assert [row["broker"] for row in done] == ["broker-a1", "broker-a2", "broker-a1"], "one that is away is asked once"
    assert grouped.rows("intents") == []
    assert "no drained broker group matches */broker-*" in grouped.run(*undrain, exit_code=REFUSED)


def test_a_route_is_explained_for_the_groups_of_a_pattern(grouped: OperatedFleet) -> None:
    for pattern, names in (("east/*", ["a1", "a2"]), ("*1", ["a1", "b1"]), ("west/broker-b1", ["b1"])):
        assert grouped.column("broker_name", "explain", "orders", pattern) == [f"broker-{name}" for name in names]
    assert "no broker group of orders matches north/*" in grouped.run("explain", "orders", "north/*", exit_code=REFUSED)


def test_a_cluster_can_stand_before_a_name_or_in_the_option(grouped: OperatedFleet) -> None:
    assert grouped.column("result", "drain", "west/broker-b1", "--dry-run") == ["would be done"]
    assert grouped.column("broker", "drain", "*", "--cluster", "west", "--dry-run") == ["broker-b1"]
    for wrong in (("east/*", "--cluster", "east"), ("east//*",), ("east/b\tr*",)):
        grouped.run("drain", *wrong, exit_code=USAGE)
    assert "no broker group matches north/*" in grouped.run("drain", "north/*", exit_code=REFUSED)
    assert "no live broker" in grouped.run("broker", "broker-b1", "--cluster", "east", exit_code=REFUSED)
