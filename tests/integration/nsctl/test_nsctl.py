"""The command line against real name servers: whom it asks, what it shows, changes and finds, and its exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from namesrv_api.v1.registration_service_pb2_grpc import RegistrationServiceStub
from typer.testing import CliRunner, Result

from nsctl.cli import app
from nsctl.session import FOUND, REFUSED, UNREACHABLE, USAGE, WARNED
from tests.support.programs import nsctl_runs
from tests.support.programs.processes import NamesrvProcess
from tests.support.registrations import register, registration

NOBODY = "127.0.0.1:1"


class OperatedFleet:
    """Two name servers and a command line for them."""

    def __init__(self, first: NamesrvProcess, second: NamesrvProcess) -> None:
        self.endpoints = f"{first.endpoint};{second.endpoint}"
        self.first, self.second = str(first.endpoint), str(second.endpoint)

    def run(self, *arguments: str, exit_code: int = 0, namesrv: str | None = None) -> str:
        return nsctl_runs.run(*arguments, "--namesrv", namesrv or self.endpoints, exit_code=exit_code).output

    def rows(self, *arguments: str, exit_code: int = 0, namesrv: str | None = None) -> list[dict[str, Any]]:
        return nsctl_runs.rows(*arguments, "--namesrv", namesrv or self.endpoints, exit_code=exit_code)


@pytest.fixture
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatedFleet]:
    with (
        NamesrvProcess("--name", "ns-a", "--data-dir", str(tmp_path_factory.mktemp("a"))) as first,
        NamesrvProcess("--name", "ns-b", "--data-dir", str(tmp_path_factory.mktemp("b"))) as second,
    ):
        for namesrv in (first, second):
            with namesrv.connect() as client:
                register(client, "TopicTest")
        yield OperatedFleet(first, second)


def test_every_command_that_shows_something_shows_it_to_people_and_to_programs(fleet: OperatedFleet) -> None:
    (route,) = fleet.rows("route", "TopicTest")
    assert (route["broker_name"], route["permission"]) == ("broker-a", "RW-")
    assert "broker-a" in fleet.run("route", "TopicTest")
    assert [row["state"] for row in fleet.rows("status")] == ["ready", "ready"]
    assert fleet.rows("cluster")[0]["broker_addrs"] == [{"broker_id": 0, "broker_addr": "127.0.0.1:10911"}]
    assert "0: 127.0.0.1:10911" in fleet.run("cluster")
    assert fleet.rows("brokers")[0]["last_update_timestamp"].endswith("Z")
    assert {"topic": "TopicTest", "kind": "normal"} in fleet.rows("topics")
    assert fleet.rows("topics", "Nothing") == []
    assert fleet.rows("watchers") == []
    assert [row["name_server"] for row in fleet.rows("explain", "TopicTest")] == ["ns-a", "ns-b"]
    assert {row["cause"] for row in fleet.rows("history", "--topic", "TopicTest")} == {"RegisterBroker"}


def test_a_name_server_that_is_not_there_is_told_and_the_others_are_shown(fleet: OperatedFleet) -> None:
    namesrv = f"{NOBODY};{fleet.first}"
    assert [
        row["name_server"] for row in fleet.rows("explain", "TopicTest", exit_code=UNREACHABLE, namesrv=namesrv)
    ] == ["ns-a"]
    assert fleet.rows("route", "TopicTest", namesrv=namesrv)
    assert "unreachable" in fleet.run("status", exit_code=UNREACHABLE, namesrv=namesrv)
    assert f"{NOBODY}: UNAVAILABLE" in fleet.run("route", "TopicTest", exit_code=UNREACHABLE, namesrv=NOBODY)


def test_a_topic_that_is_absent_is_deleted_and_explained_in_one_line(fleet: OperatedFleet) -> None:
    with grpc.insecure_channel(fleet.first) as connection:
        RegistrationServiceStub(connection).RegisterBroker(registration(("TopicTest", "A"), counter=2), timeout=10)
    assert [row["result"] for row in fleet.rows("delete-topic", "A", "--force")] == ["done", "not there"]
    assert fleet.run("explain", "nope", exit_code=REFUSED) == "nsctl: no broker ever reported nope\n"


def test_what_is_not_there_is_said_with_the_reason_of_the_name_server(fleet: OperatedFleet) -> None:
    assert "TOPIC_NOT_FOUND" in fleet.run("route", "Nothing", exit_code=REFUSED)
    assert "BROKER_NOT_REGISTERED" in fleet.run("drain", "nobody", exit_code=REFUSED)


def test_a_decision_about_a_name_that_nobody_has_registered_is_done_with_a_warning(fleet: OperatedFleet) -> None:
    cluster = ("--cluster", "DefaultCluster")
    said = "nobody has registered broker group soon of cluster DefaultCluster here"
    for command in (
        ("drain", "soon", "--dry-run", *cluster),
        ("drain", "soon", *cluster),
        ("restore", "soon", *cluster),
    ):
        assert fleet.run(*command).count(said) == 2, "at each name server"
    assert "warning" not in fleet.run("drain", "broker-a", "--dry-run", *cluster)
    fleet.run("drain", "soon", *cluster)
    assert [row["awaits_registration"] for row in fleet.rows("intents")] == [True, True]
    said = "nobody has registered broker group soon here; the change takes effect when somebody does"
    assert fleet.run("restore", "soon").count(said) == 2
    assert "nobody has registered topic Soon here" in fleet.run("delete-topic", "Soon", "--hold")
    assert "nobody has registered topic Soon in cluster c here" in fleet.run(
        "delete-topic", "Soon", "--hold", "--cluster", "c"
    )
    fleet.run("release-topic", "Soon")
    fleet.run("release-topic", "Soon", "--cluster", "c")
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
    done = fleet.rows("drain", "broker-a", "--why", "new disks", "--force")
    assert [row["result"] for row in done] == ["done", "done"]
    assert [(row["kind"], row["comment"]) for row in fleet.rows("intents")] == [("WIPE_WRITE_PERM", "new disks")] * 2
    assert fleet.rows("route", "TopicTest")[0]["permission"] == "R--"
    assert "TOPICS_DRAINED" in fleet.run("doctor", exit_code=WARNED)
    fleet.run("restore", "broker-a")
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
    fleet.run("restore", "broker-a", namesrv=fleet.first)
    with NamesrvProcess() as empty:
        output = fleet.run("diff", exit_code=FOUND, namesrv=f"{fleet.first};{empty.endpoint}")
    assert "brokers that differ" in output
    assert "not there" in output
    with grpc.insecure_channel(fleet.first) as connection:
        RegistrationServiceStub(connection).RegisterBroker(registration(("TopicTest", "A"), counter=2), timeout=10)
    broker, topic = fleet.rows("diff", exit_code=FOUND)
    assert (broker["part"], broker["broker"]) == ("broker", "broker-a")
    assert [topic[key] for key in ("topic", "broker", fleet.second)] == ["A", "broker-a", "not there"]


def test_a_broker_has_a_page_and_a_list_has_filters(fleet: OperatedFleet) -> None:
    parts = fleet.rows("broker", "broker-a")
    assert next(row["part"] for row in parts) == "broker"
    assert {row["topic"] for row in parts if row["part"] == "topic"} == {"TopicTest"}
    assert "no live broker is called nobody" in fleet.run("broker", "nobody", exit_code=REFUSED)
    for filters, count in (((), 1), (("oker-a",), 1), (("b-b",), 0), (("--no-channel",), 1), (("--unconfirmed",), 0)):
        assert len(fleet.rows("brokers", *filters)) == count, filters
    assert fleet.rows("brokers", "--silent", "2h", "--cluster", "DefaultCluster") == []


def test_history_takes_a_broker_a_time_and_causes(fleet: OperatedFleet) -> None:
    fleet.run("drain", "broker-a", "--why", "new disks", "--for", "2h", "--force")
    assert {row["cause"] for row in fleet.rows("history", "broker-a", "--since", "2h")} == {
        "RegisterBroker",
        "WipeWritePermOfBroker",
    }
    found = fleet.rows("history", "broker-a", "--cause", "register_broker")
    assert [row["cause"] for row in found] == ["RegisterBroker"] * 2
    assert fleet.rows("history", "--cause", "CHANNEL_CLOSED") == []
    assert "is no duration such as" in fleet.run("history", "--since", "soon", exit_code=USAGE)


def test_kv_and_settings_are_read_and_changed_at_all(fleet: OperatedFleet) -> None:
    fleet.run("kv", "put", "ORDER_TOPIC_CONFIG", "TopicTest", "broker-a:4")
    assert [row["value"] for row in fleet.rows("kv", "get", "ORDER_TOPIC_CONFIG", "TopicTest")] == ["broker-a:4"] * 2
    assert fleet.rows("kv", "list", "ORDER_TOPIC_CONFIG")[0]["key"] == "TopicTest"
    assert [row["removed"] for row in fleet.rows("kv", "delete", "ORDER_TOPIC_CONFIG", "TopicTest")] == [True, True]
    assert [row["value"] for row in fleet.rows("config", "set", "scanNotActiveBrokerInterval=30000")] == ["30000"] * 2
    assert [row["value"] for row in fleet.rows("config", "show", "scanNotActiveBrokerInterval")] == ["30000"] * 2
    assert "CONFIG_KEY_DENIED" in fleet.run("config", "set", "listen=0.0.0.0:1", exit_code=REFUSED)
    assert "is not SETTING=VALUE" in fleet.run("config", "set", "scanNotActiveBrokerInterval", exit_code=USAGE)


def test_kv_put_and_delete_change_only_what_is_as_expected(fleet: OperatedFleet) -> None:
    def refused(*command: str) -> list[str]:
        return [row["result"] for row in fleet.rows("kv", *command, exit_code=REFUSED)]

    fleet.run("kv", "put", "n", "k", "1", "--if-absent")
    assert refused("put", "n", "k", "2", "--if-absent") == ["failed: CONFLICT"] * 2
    assert refused("put", "n", "k", "2", "--if-value", "") == ["failed: CONFLICT"] * 2
    fleet.run("kv", "put", "n", "k", "2", "--if-value", "1")
    assert refused("delete", "n", "k", "--if-value", "1") == ["failed: CONFLICT"] * 2
    fleet.run("kv", "delete", "n", "k", "--if-value", "2")
    fleet.run("kv", "put", "n", "k", "1", "--if-value", "1", "--if-absent", exit_code=USAGE)


def test_a_watch_shows_the_route_and_its_changes(fleet: OperatedFleet) -> None:
    output = fleet.run("watch", "TopicTest", "Nothing*", "--limit", "1")
    assert "TopicTest at revision" in output
    assert "127.0.0.1:10911" in output


OTHER = "127.0.0.1:2"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"NAMESRV_ADDR": "127.0.0.1:3"})


@pytest.mark.parametrize("arguments", [("route", "T"), ("kv", "list"), ("status",), ("intents",)])
def test_the_option_before_the_command_names_the_name_servers(arguments: tuple[str, ...]) -> None:
    for option in ("--namesrv", "-n"):
        result = run(option, NOBODY, *arguments)
        assert result.exit_code == UNREACHABLE
        assert result.stderr.startswith(f"nsctl: {NOBODY}: UNAVAILABLE")


def test_the_option_after_the_command_wins() -> None:
    assert run("--namesrv", NOBODY, "route", "T", "--namesrv", OTHER).stderr.startswith(f"nsctl: {OTHER}: ")


def test_a_context_may_be_named_before_the_command() -> None:
    result = run("--context", "none", "status")
    assert result.exit_code == USAGE
    assert "contexts.toml" in result.stderr


def test_commands_that_ask_agents_say_that_they_ask_no_name_servers() -> None:
    result = run("--namesrv", NOBODY, "agent", "status", OTHER)
    assert (result.exit_code, result.stderr) == (
        USAGE,
        "nsctl: --namesrv is for name servers, and this command asks agents: name them as AGENT\n",
    )
