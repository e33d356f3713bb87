"""What people see of a read-only copy: nsctl says whom it follows, and that it has lost its leader."""

from __future__ import annotations

from typer.testing import CliRunner

from nsctl.cli import app
from tests.integration.fleet.replicas import NEVER_SCANS, replica_of, status
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
        assert f"ready, copy of {leader.endpoint}" in nsctl("status", *namesrv)
        assert "T1" in nsctl("topics", *namesrv)
        assert "read-only copy" in nsctl("drain", "broker-10911", *namesrv)
        leader.kill()
        eventually(lambda: not status(client).replica.leader_connected)
        assert f"copy of {leader.endpoint}, " in nsctl("status", *namesrv)
        assert f"is a copy of {leader.endpoint}, which it has lost: UNAVAILABLE" in nsctl(
            "doctor", "-o", "json", *namesrv
        )
