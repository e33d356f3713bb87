"""What the doctor says of a real name server in each state, and its exit code."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import grpc
from typer.testing import CliRunner

from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError, RichError
from nsctl.cli import app
from nsctl.commands.doctor import check_silence
from nsctl.commands.findings import Code
from nsctl.session import FOUND, WARNED
from tests.support.programs.doctor import examined
from tests.support.programs.processes import NamesrvProcess
from tests.support.programs.rocketmq import RemotingClient, broker_fields, topic_config
from tests.support.programs.rocketmq import register as register_as_rocketmq


def test_there_is_nothing_to_say_of_a_healthy_broker_of_rocketmq_itself() -> None:
    with (
        NamesrvProcess("--remoting-listen", "127.0.0.1:0") as namesrv,
        RemotingClient(str(namesrv.wait_for("namesrv_started")["remoting"])) as broker,
    ):
        own = topic_config("rmq_sys_SYNC_BROKER_MEMBER_broker-a", queues=1, perm=1)
        register_as_rocketmq(broker, ["TopicTest", own])
        assert examined(namesrv.endpoint) == (0, [])


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


def test_a_plain_name_server_that_hangs_is_not_called_with_tls() -> None:
    with NamesrvProcess() as namesrv:
        namesrv.signal(signal.SIGSTOP)
        code, [row] = examined(namesrv.endpoint, "--timeout", "1")
        namesrv.signal(signal.SIGCONT)
        assert (code, row["code"], row["what"]) == (FOUND, "UNREACHABLE", "did not answer within 1 s")
        assert CliRunner().invoke(app, ["status", "--namesrv", str(namesrv.endpoint)]).exit_code == 0
        assert not namesrv.events("client_speaks_tls")


def test_a_name_server_that_hangs_is_told_from_one_that_cannot_be_reached() -> None:
    nobody = Endpoint("127.0.0.1", 1)
    hangs = CallError(nobody, RichError(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))
    finding = check_silence(hangs, None, 5.0)
    assert (finding.code, finding.what) == (Code.UNREACHABLE, "did not answer within 5 s")
    assert "hangs" in finding.do
    refused = CallError(nobody, RichError(grpc.StatusCode.UNAVAILABLE, "connection refused"))
    assert check_silence(refused, None, 5.0).what == "cannot be reached: UNAVAILABLE: connection refused"
