"""What the doctor says of a real name server in each state, and its exit code."""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError, RichError
from nsctl.cli import app
from nsctl.commands.doctor import check_silence
from nsctl.commands.findings import Code
from nsctl.session import FOUND, REFUSED, UNREACHABLE, WARNED
from tests.support.programs.agents import Agent
from tests.support.programs.doctor import examined
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.programs.rocketmq import RemotingClient, broker_fields, topic_config
from tests.support.programs.rocketmq import register as register_as_rocketmq
from tests.support.registrations import register
from tests.support.secured.certificates import DAY, Authority
from tests.support.secured.fleet import Place


def codes(endpoint: object, *flags: str) -> list[str]:
    return [row["code"] for row in examined(endpoint, *flags)[1]]


def test_there_is_nothing_to_say_of_a_healthy_broker_of_rocketmq_itself() -> None:
    with (
        NamesrvProcess("--remoting-listen", "127.0.0.1:0") as namesrv,
        RemotingClient(str(namesrv.wait_for("namesrv_started")["remoting"])) as broker,
    ):
        own = topic_config("rmq_sys_SYNC_BROKER_MEMBER_broker-a", queues=1, perm=1)
        register_as_rocketmq(broker, ["TopicTest", own])
        assert examined(namesrv.endpoint) == (0, [])


def test_a_broker_that_was_lost_is_told_with_the_reason_until_it_is_back() -> None:
    with NamesrvProcess() as namesrv:
        with Agent(str(namesrv.endpoint)) as agent:
            eventually(lambda: agent.events("registered"))
            assert examined(namesrv.endpoint) == (0, [])
            agent.kill()
            code, rows = eventually(lambda: examined(namesrv.endpoint), lambda found: bool(found[1]))
        lost = rows[0]
        assert (code, lost["code"], lost["severity"]) == (WARNED, "BROKER_LOST", "warning")
        assert lost["what"].startswith("broker-a (127.0.0.1:10911, id 0) of DefaultCluster left at 2")
        assert lost["what"].endswith(": CHANNEL_CLOSED")
        assert lost["runbook"] == "docs/runbook.md#broker_lost"
        with Agent(str(namesrv.endpoint)) as agent:
            eventually(lambda: agent.events("registered"))
            assert codes(namesrv.endpoint) == ["BROKER_CAME_BACK"]
            assert examined(namesrv.endpoint)[0] == 0


def test_intents_in_force_are_told_with_who_when_and_why(tmp_path: Path) -> None:
    with NamesrvProcess("--data-dir", str(tmp_path)) as namesrv, namesrv.connect() as client:
        register(client, "TopicTest")
        CliRunner().invoke(
            app, ["delete-topic", "TopicTest", "--force", "--hold", "--why", "x1", "-n", str(namesrv.endpoint)]
        )
        told = [row for row in examined(namesrv.endpoint)[1] if row["code"] == "INTENT_IN_FORCE"]
        assert [row["severity"] for row in told] == ["info"]
        assert told[0]["what"].startswith("topic TopicTest is held back since 2")
        assert told[0]["what"].endswith("(x1)")
        assert " by 127.0.0.1, " in told[0]["what"]
        assert told[0]["do"] == "`nsctl release-topic TopicTest` lifts it"


def test_a_planned_drain_is_no_warning_until_it_leaves_a_topic_unwritable(tmp_path: Path) -> None:
    own = ["broker-a", "DefaultCluster", "BenchmarkTest", "%RETRY%g", "SCHEDULE_TOPIC_XXXX"]
    with (
        NamesrvProcess("--remoting-listen", "127.0.0.1:0", "--data-dir", str(tmp_path)) as namesrv,
        RemotingClient(str(namesrv.wait_for("namesrv_started")["remoting"])) as broker,
    ):

        def told(wanted: int) -> list[str]:
            exit_code, rows = examined(namesrv.endpoint)
            assert exit_code == wanted, rows
            return [row["what"] for row in rows]

        register_as_rocketmq(broker, own)
        drain = ["drain", "broker-a", "--why", "new disks", "--namesrv", str(namesrv.endpoint)]
        preview = json.loads(CliRunner().invoke(app, [*drain, "--dry-run", "-o", "json"]).stdout)
        assert preview[0]["blast_radius"]["topics_losing_last_writable_queue"] == 0
        assert CliRunner().invoke(app, drain).exit_code == 0
        [intent] = told(0)
        assert intent.startswith("planned: broker-a is drained since 2")
        assert intent.endswith(", with no end (new disks)")
        register_as_rocketmq(broker, [*own, "orders"], counter=2)
        assert [what for what in told(WARNED) if what != intent] == [
            "1 topic has no writable queue during a drain (broker-a with no end): orders"
        ]
        assert CliRunner().invoke(app, [*drain, "--for", "1h"]).exit_code == 0
        assert [what.count(" until 2") for what in told(WARNED)] == [1, 1]


def test_a_planned_stop_and_drain_in_a_fleet_of_two_are_no_warning(tmp_path: Path) -> None:
    with (
        NamesrvProcess("--remoting-listen", "127.0.0.1:0", "--data-dir", str(tmp_path)) as namesrv,
        RemotingClient(str(namesrv.wait_for("namesrv_started")["remoting"])) as stopped,
        RemotingClient(str(namesrv.wait_for("namesrv_started")["remoting"])) as stays,
    ):
        brokers = [broker_fields(f"broker-{name}", f"10.0.0.{number}:10911") for number, name in enumerate("ab", 1)]
        register_as_rocketmq(stopped, ["orders"], brokers[0])
        register_as_rocketmq(stays, ["orders"], brokers[1])
        drain = ["drain", "broker-a", "--for", "1h", "--namesrv", str(namesrv.endpoint)]
        assert CliRunner().invoke(app, drain).exit_code == 0
        assert examined(namesrv.endpoint)[0] == 0
        assert stopped.ask(104, brokers[0]).code == 0
        assert examined(namesrv.endpoint)[0] == 0


def test_rocketmqs_port_is_named_as_such() -> None:
    with NamesrvProcess("--remoting-listen", "127.0.0.1:0") as namesrv:
        code, [row] = examined(namesrv.wait_for("namesrv_started")["remoting"])
        assert (code, row["code"]) == (FOUND, "WRONG_PORT")


def test_a_plain_name_server_that_hangs_is_not_called_with_tls() -> None:
    with NamesrvProcess() as namesrv:
        namesrv.signal(signal.SIGSTOP)
        code, [row] = examined(namesrv.endpoint, "--timeout", "1")
        namesrv.signal(signal.SIGCONT)
        assert (code, row["code"], row["what"]) == (FOUND, "UNREACHABLE", "did not answer within 1 s")
        assert CliRunner().invoke(app, ["status", "--namesrv", str(namesrv.endpoint)]).exit_code == 0
        assert not namesrv.events("client_speaks_tls")


def test_a_data_directory_that_cannot_be_written_is_a_problem_until_it_can(tmp_path: Path) -> None:
    obstacle = tmp_path / "routes.snapshot.tmp"
    flags = ("--data-dir", str(tmp_path), "--snapshot-interval-millis", "50", "--warm-up-millis", "0")
    with NamesrvProcess(*flags, "--metrics-listen", "127.0.0.1:0") as namesrv, namesrv.connect() as client:
        obstacle.mkdir()
        register(client, "TopicTest")
        found = eventually(lambda: codes(namesrv.endpoint), lambda told: "DATA_DIR_NOT_WRITTEN" in told)
        assert found[0] == "DATA_DIR_NOT_WRITTEN", "the worst comes first"
        obstacle.rmdir()
        eventually(lambda: codes(namesrv.endpoint), lambda told: "DATA_DIR_NOT_WRITTEN" not in told)


def test_a_database_that_takes_no_change_is_told_until_it_does_and_refusals_are_no_silence(tmp_path: Path) -> None:
    with NamesrvProcess("--data-dir", str(tmp_path)) as namesrv:
        put = ["kv", "put", "a", "b", "c", "--timeout", "60", "--namesrv", str(namesrv.endpoint)]
        with closing(sqlite3.connect(tmp_path / "namesrv.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # for longer than a commit waits
            refused = CliRunner().invoke(app, put)
            assert (refused.exit_code, "NOT_DURABLE" in refused.output) == (REFUSED, True), refused.output
            told = [row["what"] for row in examined(namesrv.endpoint)[1] if row["code"] == "DATA_DIR_NOT_WRITTEN"]
            assert told == ["cannot write its data directory: database is locked"]
        eventually(lambda: codes(namesrv.endpoint), lambda told: "DATA_DIR_NOT_WRITTEN" not in told)
        assert CliRunner().invoke(app, put).exit_code == 0
    assert CliRunner().invoke(app, put).exit_code == UNREACHABLE


@pytest.mark.parametrize(
    ("kind", "server", "shown", "code", "what"),
    [
        ("TLS", {"ends": -DAY, "begins": -2 * DAY}, "TLS", "CERTIFICATE_ENDED", "its certificate has ended"),
        ("TLS", {"names": ["elsewhere"]}, "TLS", "TLS_REFUSED", "its certificate is for other names"),
        ("TLS", {}, "other authority", "TLS_REFUSED", "its certificate is of an authority that"),
        ("TLS", {}, "plain", "TLS_REFUSED", "it speaks TLS, and was called in plain text"),
        ("no TLS", {}, "TLS", "TLS_REFUSED", "it speaks no TLS, and was called with it"),
        ("mTLS", {}, "TLS", "TLS_REFUSED", "it asks for a certificate, and none was shown"),
    ],
)
def test_each_mistake_with_tls_is_told_with_what_to_look_at(
    tmp_path: Path, kind: str, server: dict[str, Any], shown: str, code: str, what: str
) -> None:
    place = Place.make(tmp_path)
    names = server.pop("names", None)
    ips = [] if names else ["127.0.0.1"]
    place.server = place.authority.sign("server", names or ["localhost"], ips=ips, file_name="server", **server)
    authority = Authority(tmp_path / "other").path if shown == "other authority" else place.authority.path
    flags = () if shown == "plain" else ("--tls-ca", str(authority))
    with NamesrvProcess(*place.flags(kind, with_permits=False)) as namesrv:
        exit_code, [row] = examined(namesrv.endpoint, *flags)
        assert (exit_code, row["code"]) == (FOUND, code)
        assert row["what"].startswith(what)
        status = CliRunner().invoke(app, ["status", "--namesrv", str(namesrv.endpoint), *flags])
        assert (status.exit_code, f"{namesrv.endpoint}: {what}" in status.output) == (UNREACHABLE, True), status.output


def test_a_name_server_that_hangs_is_told_from_one_that_cannot_be_reached() -> None:
    nobody = Endpoint("127.0.0.1", 1)
    hangs = CallError(nobody, RichError(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))
    finding = check_silence(hangs, None, 5.0)
    assert (finding.code, finding.what) == (Code.UNREACHABLE, "did not answer within 5 s")
    assert "hangs" in finding.do
    refused = CallError(nobody, RichError(grpc.StatusCode.UNAVAILABLE, "connection refused"))
    assert check_silence(refused, None, 5.0).what == "cannot be reached: UNAVAILABLE: connection refused"
