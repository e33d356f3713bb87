"""A name server that crashes at a failpoint keeps what it acknowledged, over the wire, in its next life."""

from __future__ import annotations

import os
import random
from pathlib import Path

import grpc
import pytest

from tests.faults.files.failpoints import CRASHED, LIST
from tests.faults.fleet.operated_server import DURABLE, OperatedServer
from tests.support.programs.processes import eventually

RUNS = int(os.environ.get("FAULTS_SERVER_CRASHES", "5"))
"""Points at which a server is crashed, by chance; with a hundred or more, each. One takes two to five seconds."""
MOST_CALLS = 60
OTHERS = ("epoch", "routes.snapshot", "audit.jsonl")
ARGUMENTS = ("--snapshot-interval-millis", "50", "--audit-file-max-bytes", "600")


def server_points() -> list[str]:
    """Where a server crashes that finds nothing broken."""
    names = (*DURABLE, *OTHERS)
    points = LIST.read_text().splitlines()
    return [point for point in points if point.split()[-1].startswith(names) and ".broken" not in point]


def crash_while_starting(server: OperatedServer, point: str) -> None:
    with pytest.raises(AssertionError, match=f"ended with {CRASHED} before namesrv_started"):
        server.start(f"{point} = crash\n")


def crash_while_serving(server: OperatedServer, point: str, rng: random.Random) -> None:
    with server.start() as process, process.connect() as client:
        server.register(client)
        server.check(client)
        for number in range(MOST_CALLS):
            if number == 2:  # a file that is new has no copy to write
                server.faults.write_text(f"{point} = crash\n")
            try:
                server.register(client)
                for file in rng.sample(sorted(DURABLE), len(DURABLE)):
                    server.change(client, file)
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.UNAVAILABLE:
                    break
                raise
        assert eventually(process._popen.poll) == CRASHED, point


@pytest.mark.timeout(60 + 10 * RUNS)
def test_what_a_server_acknowledged_is_there_after_a_crash_at_any_failpoint(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    server = OperatedServer(tmp_path, *ARGUMENTS)
    with server.start() as process, process.connect() as client:
        server.register(client)
        for file in DURABLE:
            server.change(client, file)
    points = server_points()
    rng.shuffle(points)
    for point in points[:RUNS]:
        if " epoch" in point:
            crash_while_starting(server, point)
        else:
            crash_while_serving(server, point, rng)
        with server.start() as process, process.connect() as client:
            server.register(client)
            server.check(client)
        assert not list(server.data_dir.glob("*.broken")), "a crash leaves old or new, and nothing to put aside"
