"""What people see of a read-only copy: nsctl says whom it follows, and that it has lost its leader."""

from __future__ import annotations

from typer.testing import CliRunner

from nsctl.cli import app
from tests.integration.fleet.replicas import NEVER_SCANS, health, replica_of, status
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.registrations import register_group


def nsctl(*arguments: str) -> str:
    return CliRunner(env={"COLUMNS": "400"}).invoke(app, [*arguments]).output


def test_nsctl_says_whom_a_copy_follows_and_that_it_has_lost_its_leader() -> None:
    with NamesrvProcess(*NEVER_SCANS) as leader, replica_of(leader) as replica, replica.connect() as client:
        with leader.connect() as to_leader:
            register_group(to_leader, "T1")
        eventually(lambda: status(client).header.revision)
        namesrv = ("--namesrv", str(replica.endpoint))
        assert f"ready, copy of {leader.endpoint}" in nsctl("status", "-o", "json", *namesrv)
        assert "T1" in nsctl("topics", *namesrv)
        assert "read-only copy" in nsctl("drain", "broker-10911", *namesrv)
        leader.kill()
        eventually(lambda: not status(client).replica.leader_connected)
        assert f"copy of {leader.endpoint}, " in nsctl("status", "-o", "json", *namesrv)
        assert f"is a copy of {leader.endpoint}, which it has lost: UNAVAILABLE" in nsctl(
            "doctor", "-o", "json", *namesrv
        )


def test_a_copy_is_not_ready_while_its_leader_warms_up() -> None:
    cold = (*NEVER_SCANS, "--warm-up-millis", "60000")
    with NamesrvProcess(*cold) as leader, replica_of(leader) as replica, replica.connect() as client:
        eventually(lambda: status(client).replica.copies)
        assert (status(client).warm, health(client)) == (False, "NOT_SERVING")
        namesrv = ("--namesrv", str(replica.endpoint))
        assert f"warming, copy of {leader.endpoint}" in nsctl("status", "-o", "json", *namesrv)
        assert f"wait until its brokers are back at its leader {leader.endpoint}" in nsctl("doctor", *namesrv)


def test_a_copy_that_keeps_its_tables_while_a_new_leader_warms_up_says_so() -> None:
    with NamesrvProcess(*NEVER_SCANS) as leader, leader.connect() as to_leader:
        register_group(to_leader, "T1")
        with replica_of(leader) as replica, replica.connect() as client:
            eventually(lambda: status(client).header.revision)
            namesrv = ("--namesrv", str(replica.endpoint))
            leader.kill()
            cold = (*NEVER_SCANS, "--warm-up-millis", "60000")
            with NamesrvProcess(*cold, port=leader.endpoint.port):
                eventually(lambda: status(client).replica, lambda seen: seen.leader_connected and bool(seen.problem))
                assert status(client).replica.problem == "the leader is warming up"
                shown = nsctl("status", "-o", "json", *namesrv)
                assert f"copy of {leader.endpoint}, " in shown
                assert " s old: the leader is warming up" in shown
                assert "WARMING" in nsctl("doctor", *namesrv)
