"""A name server that is killed keeps what it acknowledged, over the wire, in its next life."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from namesrv_api.v1 import admin_service_pb2 as pb

from tests.faults.fleet.operated_server import DURABLE, TIMEOUT, OperatedServer
from tests.faults.owned_files import CRASHED, FAILPOINTS
from tests.support.programs.processes import Client, eventually

RUNS = int(os.environ.get("FAULTS_SERVER_CRASHES", "5"))
"""Points at which a server is crashed, by chance. One takes two to five seconds."""
SNAPSHOTS = ("--snapshot-interval-millis", "50")
POINTS = FAILPOINTS.read_text().splitlines()
WHILE_SERVING = [
    point
    for point in POINTS
    if point.split()[-1].startswith("routes.snapshot") or (point.endswith("-wal") and " remove " not in point)
]
AT_THE_END = [
    point
    for point in POINTS
    if point.endswith((" namesrv.db", " remove namesrv.db-wal")) and "folder" not in point and " rename " not in point
]
"""Passed by a shutdown, which moves the log into the database."""

Crash = Callable[[OperatedServer, str, random.Random], None]


def crash_while_serving(server: OperatedServer, point: str, rng: random.Random) -> None:
    with server.start() as process, process.connect() as client:
        server.register(client)
        server.check(client)
        server.faults.write_text(f"{point} = crash\n")

        def change() -> None:
            server.register(client)
            server.change(client, rng.choice(DURABLE))

        call_until_it_ends(change)
        assert eventually(process._popen.poll) == CRASHED, point


def crash_at_the_end(server: OperatedServer, point: str, rng: random.Random) -> None:
    with server.start() as process, process.connect() as client:
        server.register(client)
        for table in rng.sample(DURABLE, len(DURABLE)):
            server.change(client, table)
        server.faults.write_text(f"{point} = crash\n")
        assert process.terminate(within_seconds=60) == CRASHED, point


def call_until_it_ends(call: Callable[[], object]) -> None:
    """Calls again and again, until the server has ended."""
    try:
        while True:
            call()
    except grpc.RpcError as error:
        if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            raise


def check(server: OperatedServer, client: Client) -> None:
    """What was acknowledged is served, no file is left over, and the journal has no gap."""
    server.check(client)
    last = ("", 0)
    for entry in reversed(list(journal(client))):
        follows = (last[0], last[1] + 1) if entry.epoch == last[0] else (max(entry.epoch, last[0]), 1)
        last = (entry.epoch, entry.revision)
        assert last == follows
    left = {path.name for path in server.data_dir.iterdir()}
    files = {"namesrv.db", "namesrv.db-wal", "namesrv.db-shm", "lock", "kvConfig.json"}
    assert left <= files | {"routes.snapshot", "routes.snapshot.tmp"}


def journal(client: Client) -> Iterator[pb.AuditEntry]:
    """All entries, newest first."""
    request = pb.ListAuditEntriesRequest()
    while True:
        page = client.admin.ListAuditEntries(request, timeout=TIMEOUT)
        yield from page.entries
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


@pytest.mark.timeout(60 + 10 * RUNS)
def test_what_a_server_acknowledged_is_there_after_a_crash_anywhere(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    server = OperatedServer(tmp_path, *SNAPSHOTS)
    cases: list[tuple[Crash, str]] = [(crash_while_serving, point) for point in WHILE_SERVING]
    cases += [(crash_at_the_end, point) for point in AT_THE_END]
    rng.shuffle(cases)
    for crash, point in cases[:RUNS]:
        crash(server, point, rng)
        with server.start() as process, process.connect() as client:
            check(server, client)
