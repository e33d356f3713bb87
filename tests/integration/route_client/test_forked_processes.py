"""Clients in programs that start processes by fork, spawn or forkserver: a route or an error, no hang and no crash."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.integration.route_client import forking_program
from tests.support.programs.processes import NamesrvProcess
from tests.support.registrations import identity, registration

PARENT = "parent: broker-a"
CHILD = "child: broker-a"
WITHOUT_GRPC = "child: gRPC does not work"
REFUSED = ["inherited: refused"] * 8


@pytest.fixture(scope="module")
def namesrv() -> Iterator[NamesrvProcess]:
    """A name server that knows the topic."""
    with NamesrvProcess() as process:
        with process.connect() as client:
            client.registration.RegisterBroker(registration([forking_program.TOPIC], identity()), timeout=20)
        yield process


def run(namesrv: NamesrvProcess, method: str, parent_has: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", forking_program.__name__, str(namesrv.endpoint), method, parent_has]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=True, env={**os.environ, **environment}
    )


@pytest.mark.parametrize(
    ("method", "parent_has", "lines"),
    [
        ("fork", "never", [CHILD, "ended: 0 0"]),
        ("fork", "closed", [PARENT, WITHOUT_GRPC, "ended: 0 0"]),
        ("fork", "open", [PARENT, *REFUSED, WITHOUT_GRPC, "ended: 0 0", PARENT]),
        ("spawn", "open", [PARENT, CHILD, "ended: 0", PARENT]),
        ("forkserver", "open", [PARENT, CHILD, "ended: 0", PARENT]),
    ],
)
def test_a_process_gets_routes_or_a_clear_error_by_how_it_was_started(
    namesrv: NamesrvProcess, method: str, parent_has: str, lines: list[str]
) -> None:
    program = run(namesrv, method, parent_has)
    assert program.stdout.splitlines() == lines, program.stderr


def test_a_fork_under_grpcs_own_fork_handlers_is_logged_as_a_danger(namesrv: NamesrvProcess) -> None:
    text = "gRPC's fork handlers may crash the child: import route_client before grpc, and leave"
    assert text in run(namesrv, "fork", "closed", GRPC_ENABLE_FORK_SUPPORT="1").stderr
