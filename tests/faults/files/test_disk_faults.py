"""A disk that is full, read-only, broken, slow or hangs: the server continues from memory, says so, and comes back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv_common.grpc_errors import RichError
from tests.faults.fleet.operated_server import DURABLE, TIMEOUT, OperatedServer
from tests.support.metrics_page import sample_of
from tests.support.programs.nsctl_runs import examined
from tests.support.programs.processes import Client, NamesrvProcess, eventually

END_SECONDS = 3.0
"""How soon a problem is over that has ended: a second, and two more on a busy machine."""
FAULTS = {
    "full": "* write * = ENOSPC",
    "full in the middle of a write": "half write * = ENOSPC",
    "read-only": "before * = EROFS",
    "broken in fsync": "* fsync * = EIO",
    "broken after the fsync of the log": "after fsync namesrv.db-wal = EIO",
}
SNAPSHOT_FAULTS = {
    "broken in fsync of the folder": "* fsync-folder-of routes.snapshot = EIO",
    "broken before renaming": "before rename routes.snapshot = EIO",
    "broken after renaming": "after rename routes.snapshot = EIO",
}


class Watched(OperatedServer):
    """A server on a disk that is about to fail, as operators and machines see it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "--snapshot-interval-millis", "100", "--metrics-listen", "127.0.0.1:0")

    def has_trouble(self, process: NamesrvProcess, client: Client) -> None:
        """Each durable change is refused and nothing of it is in force, and the rest continues. Everybody is told."""
        held = self.held(client)
        for table in DURABLE:
            with pytest.raises(grpc.RpcError) as caught:
                self.change(client, table)
            error = RichError.of(caught.value)
            assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "NOT_DURABLE")
            assert str(self.folder) not in error.message, "a place on the machine is no caller's business"
            assert problem_of(client), "it is shown from the first refusal on"
        assert self.held(client) == held
        self.register(client)
        assert client.route() is not None
        assert sample_of(process, "namesrv_durable_writes_refused") == 1
        told = [row["what"] for row in examined(process.endpoint)[1] if row["code"] == "DATA_DIR_NOT_WRITTEN"]
        assert told == [f"cannot write its data directory: {problem_of(client)}"]
        assert len(process.events("database_refuses_writes")) == 1, "not for each change"

    def recovers(self, process: NamesrvProcess, client: Client) -> None:
        """The end of the trouble is seen without a change by an operator, and then changes are taken."""
        eventually(lambda: problem_of(client), lambda problem: not problem, END_SECONDS)
        assert sample_of(process, "namesrv_durable_writes_refused") == 0
        assert "DATA_DIR_NOT_WRITTEN" not in [row["code"] for row in examined(process.endpoint)[1]]
        eventually(lambda: process.events("database_takes_writes"))
        self.takes_changes(client)

    def takes_changes(self, client: Client) -> None:
        for table in DURABLE:
            self.change(client, table)
        assert self.held(client) == self.acknowledged


def problem_of(client: Client) -> str:
    return client.routes.GetNamesrvStatus(pb.GetNamesrvStatusRequest(), timeout=TIMEOUT).data_dir_problem


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_disk_that_fails_costs_changes_and_nothing_else(tmp_path: Path, fault: str) -> None:
    server = Watched(tmp_path)
    with server.start() as process, process.connect() as client:
        server.register(client)
        server.takes_changes(client)
        server.faults.write_text(fault)
        server.has_trouble(process, client)
        server.faults.write_text("")
        server.recovers(process, client)
        process.kill()
    with server.start() as process, process.connect() as client:
        assert server.held(client) == server.acknowledged
        server.register(client)
        server.faults.write_text(fault)
        server.has_trouble(process, client)
        process.kill()
    with server.start() as process, process.connect() as client:
        server.check(client)  # a change whose log was written and not synced may be there after the kill


@pytest.mark.parametrize("fault", SNAPSHOT_FAULTS.values(), ids=SNAPSHOT_FAULTS)
def test_a_disk_that_takes_no_snapshot_takes_changes(tmp_path: Path, fault: str) -> None:
    server = Watched(tmp_path)
    with server.start(fault) as process, process.connect() as client:
        server.register(client)
        eventually(lambda: problem_of(client))
        eventually(lambda: process.events("snapshot_not_written"))
        server.takes_changes(client)
        server.faults.write_text("")
        eventually(lambda: problem_of(client), lambda problem: not problem, END_SECONDS)


def test_while_a_slow_disk_writes_lookups_and_registrations_are_answered(tmp_path: Path) -> None:
    server = OperatedServer(tmp_path)
    with server.start() as process, process.connect() as client, ThreadPoolExecutor(1) as operator:
        server.register(client)
        server.change(client, "kv_config")
        held = server.held(client)
        server.faults.write_text("before fsync namesrv.db-wal = delay 3\n")
        before = len(server.hits())
        change = operator.submit(server.change, client, "kv_config")
        eventually(lambda: "before fsync namesrv.db-wal" in server.hits()[before:])
        for _ in range(20):
            assert not change.done()
            server.register(client)
            assert client.route() is not None
            assert server.held(client) == held, "what is not durable yet is not seen"
            if change.done():
                break
        change.result(60)
        assert server.held(client) == server.acknowledged


def test_a_server_ends_although_its_disk_hangs(tmp_path: Path) -> None:
    """Before, the interpreter waited at its end for the thread that writes, for as long as the disk hung."""
    server = OperatedServer(tmp_path)
    with server.start() as process, process.connect() as client, ThreadPoolExecutor(1) as operator:
        server.register(client)
        server.faults.write_text("before fsync namesrv.db-wal = delay 600\n")
        before = len(server.hits())
        change = operator.submit(server.change, client, "kv_config")
        eventually(lambda: "before fsync namesrv.db-wal" in server.hits()[before:])
        assert process.terminate(within_seconds=60) == 0
        assert isinstance(change.exception(60), grpc.RpcError)
    with server.start() as process, process.connect() as client:
        server.register(client)
        server.check(client)
