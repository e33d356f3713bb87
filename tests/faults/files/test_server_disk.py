"""A name server whose disk fails or that is killed at a step on a file: what was acknowledged is served, now and later.

A disk that is full, read-only, broken, slow or hangs: the server continues from memory, says so, and comes back.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from namesrv_api.v1 import admin_service_pb2 as admin
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv_common.grpc_errors import RichError
from nsctl.session import FOUND
from tests.faults.owned_files import CRASHED, FAILPOINTS
from tests.support import failpoints
from tests.support.metrics_page import sample_of
from tests.support.programs.nsctl_runs import rows
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.registrations import registration

TIMEOUT = 20.0
SETTING = "scanNotActiveBrokerInterval"
"""Takes effect only with another setting."""
DURABLE = ("kv_config", "intents", "settings")
"""The tables that an operator's calls change."""


class OperatedServer:
    """A name server with failpoints, started again and again on one folder. An operator counts up in each table.

    What was acknowledged must be there each time.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.data_dir = folder / "data"
        self.faults = folder / "faults"
        self._arguments = ("--data-dir", str(self.data_dir), *arguments)
        self._number = 0
        self._registrations = 0
        self.acknowledged = dict.fromkeys(DURABLE, 0)
        self.attempted = dict.fromkeys(DURABLE, 0)
        """The last number that was sent: without an answer, it may be there or not."""

    def start(self, faults: str = "") -> NamesrvProcess:
        """Starts the server. AssertionError if it ends before it serves."""
        self.faults.write_text(faults)
        return NamesrvProcess(*self._arguments, environment=failpoints.environment(self.faults))

    def register(self, client: Client) -> None:
        """Registers the broker that the intents are about, with a new topic each time, which changes its route."""
        self._registrations += 1
        request = registration(["TopicTest", f"topic-{self._registrations}"], counter=self._registrations)
        client.registration.RegisterBroker(request, timeout=TIMEOUT)

    def change(self, client: Client, table: str) -> None:
        """Writes the next number to a table. RpcError if it is not acknowledged."""
        self._number += 1
        self.attempted[table] = self._number
        number = str(self._number)
        if table == "kv_config":
            put = admin.PutKvConfigRequest(namespace="ns", key="key", value=number)
            client.admin.PutKvConfig(put, timeout=TIMEOUT)
        elif table == "intents":
            wipe = admin.WipeWritePermOfBrokerRequest(force=True, broker_name="broker-a", comment=number)
            client.admin.WipeWritePermOfBroker(wipe, timeout=TIMEOUT)
        else:
            update = admin.UpdateNamesrvConfigRequest(values={SETTING: number})
            client.admin.UpdateNamesrvConfig(update, timeout=TIMEOUT)
        self.acknowledged[table] = self._number

    def change_slowly(self, client: Client, seconds: int, operator: ThreadPoolExecutor) -> Future[None]:
        """Begins a change that the disk blocks for so long, and waits until it does."""
        self.faults.write_text(f"before fsync namesrv.db-wal = delay {seconds}\n")
        hits = self.faults.with_name(f"{self.faults.name}.hits")
        before = len(hits.read_text().splitlines())
        change = operator.submit(self.change, client, "kv_config")
        eventually(lambda: "before fsync namesrv.db-wal" in hits.read_text().splitlines()[before:])
        return change

    def held(self, client: Client) -> dict[str, int]:
        """The numbers that the server serves."""
        kv_configs = client.admin.ListKvConfigs(admin.ListKvConfigsRequest(), timeout=TIMEOUT).kv_configs
        intents = client.admin.ListIntents(admin.ListIntentsRequest(), timeout=TIMEOUT).intents
        entries = client.admin.GetNamesrvConfig(admin.GetNamesrvConfigRequest(), timeout=TIMEOUT).entries
        get = admin.GetKvConfigRequest(namespace="ns", key="key")
        values = {entry.key: entry.value for entry in entries}
        return {
            "kv_config": int(client.admin.GetKvConfig(get, timeout=TIMEOUT).value) if kv_configs else 0,
            "intents": int(intents[0].comment) if intents else 0,
            "settings": int(values[SETTING]) if self.attempted["settings"] else 0,
        }

    def check(self, client: Client) -> None:
        """What was acknowledged is served, or what was sent after it and never answered."""
        held = self.held(client)
        for table, number in held.items():
            allowed = {self.acknowledged[table], self.attempted[table]}
            if table == "settings" and not self.acknowledged[table]:
                continue  # the default is in force
            assert number in allowed, f"{table} holds {number}, not one of {allowed}"
            self.acknowledged[table] = self.attempted[table] = number

    def takes_changes(self, client: Client) -> None:
        """A change of each table is acknowledged and served."""
        for table in DURABLE:
            self.change(client, table)
        assert self.held(client) == self.acknowledged


# A disk that fails

END_SECONDS = 3.0
"""How soon a problem is over that has ended: a second, and two more on a busy machine."""
WATCHED = ("--snapshot-interval-millis", "100", "--metrics-listen", "127.0.0.1:0")
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


def has_trouble(server: OperatedServer, process: NamesrvProcess, client: Client) -> None:
    """Each durable change is refused and nothing of it is in force, and the rest continues. Everybody is told."""
    held = server.held(client)
    for table in DURABLE:
        with pytest.raises(grpc.RpcError) as caught:
            server.change(client, table)
        error = RichError.of(caught.value)
        assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "NOT_DURABLE")
        assert str(server.folder) not in error.message, "a place on the machine is no caller's business"
        assert problem_of(client), "it is shown from the first refusal on"
    assert server.held(client) == held
    server.register(client)
    assert client.route() is not None
    assert sample_of(process, "namesrv_durable_writes_refused") == 1
    found = rows("doctor", "--namesrv", process.endpoint, exit_code=FOUND)
    assert [row["what"] for row in found if row["code"] == "DATA_DIR_NOT_WRITTEN"] == [
        f"cannot write its data directory: {problem_of(client)}"
    ]
    assert len(process.events("database_refuses_writes")) == 1, "not for each change"


def recovers(server: OperatedServer, process: NamesrvProcess, client: Client) -> None:
    """The end of the trouble is seen without a change by an operator, and then changes are taken."""
    eventually(lambda: problem_of(client), lambda problem: not problem, END_SECONDS)
    assert sample_of(process, "namesrv_durable_writes_refused") == 0
    eventually(lambda: process.events("database_takes_writes"))
    server.takes_changes(client)


def problem_of(client: Client) -> str:
    return client.routes.GetNamesrvStatus(pb.GetNamesrvStatusRequest(), timeout=TIMEOUT).data_dir_problem


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_disk_that_fails_costs_changes_and_nothing_else(tmp_path: Path, fault: str) -> None:
    server = OperatedServer(tmp_path, *WATCHED)
    with server.start() as process, process.connect() as client:
        server.register(client)
        server.takes_changes(client)
        server.faults.write_text(fault)
        has_trouble(server, process, client)
        server.faults.write_text("")
        recovers(server, process, client)
        process.kill()
    with server.start() as process, process.connect() as client:
        assert server.held(client) == server.acknowledged
        server.register(client)
        server.faults.write_text(fault)
        has_trouble(server, process, client)
        process.kill()
    with server.start() as process, process.connect() as client:
        server.check(client)  # a change whose log was written and not synced may be there after the kill


@pytest.mark.parametrize("fault", SNAPSHOT_FAULTS.values(), ids=SNAPSHOT_FAULTS)
def test_a_disk_that_takes_no_snapshot_takes_changes(tmp_path: Path, fault: str) -> None:
    server = OperatedServer(tmp_path, *WATCHED)
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
        change = server.change_slowly(client, 3, operator)
        for _ in range(20):
            assert not change.done()
            server.register(client)
            assert client.route() is not None
            assert server.held(client) == held, "what is not durable yet is not seen"
            if change.done():
                break
        change.result(3 * TIMEOUT)
        assert server.held(client) == server.acknowledged


def test_a_server_ends_although_its_disk_hangs(tmp_path: Path) -> None:
    """Before, the interpreter waited at its end for the thread that writes, for as long as the disk hung."""
    server = OperatedServer(tmp_path)
    with server.start() as process, process.connect() as client, ThreadPoolExecutor(1) as operator:
        server.register(client)
        change = server.change_slowly(client, 600, operator)
        assert process.terminate(within_seconds=60) == 0
        assert isinstance(change.exception(60), grpc.RpcError)
    with server.start() as process, process.connect() as client:
        server.register(client)
        server.check(client)


# A server that is killed

RUNS = 5
"""Points at which a server is crashed, by chance. One takes two to five seconds."""
WHILE_SERVING = [
    point
    for point in FAILPOINTS
    if point.split()[-1].startswith("routes.snapshot") or (point.endswith("-wal") and " remove " not in point)
]
AT_THE_END = [
    point
    for point in FAILPOINTS
    if point.endswith((" namesrv.db", " remove namesrv.db-wal")) and "folder" not in point and " rename " not in point
]
"""Passed by a shutdown, which moves the log into the database."""

Crash = Callable[[OperatedServer, str, random.Random], None]


def crash_while_serving(server: OperatedServer, point: str, rng: random.Random) -> None:
    with server.start() as process, process.connect() as client:
        server.register(client)
        server.check(client)
        server.faults.write_text(f"{point} = crash\n")
        try:
            while True:
                server.register(client)
                server.change(client, rng.choice(DURABLE))
        except grpc.RpcError as error:
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                raise
        assert eventually(process._popen.poll) == CRASHED, point


def crash_at_the_end(server: OperatedServer, point: str, rng: random.Random) -> None:
    with server.start() as process, process.connect() as client:
        server.register(client)
        for table in rng.sample(DURABLE, len(DURABLE)):
            server.change(client, table)
        server.faults.write_text(f"{point} = crash\n")
        assert process.terminate(within_seconds=60) == CRASHED, point


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


def journal(client: Client) -> Iterator[admin.AuditEntry]:
    """All entries, newest first."""
    request = admin.ListAuditEntriesRequest()
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
    server = OperatedServer(tmp_path, "--snapshot-interval-millis", "50")
    cases: list[tuple[Crash, str]] = [(crash_while_serving, point) for point in WHILE_SERVING]
    cases += [(crash_at_the_end, point) for point in AT_THE_END]
    rng.shuffle(cases)
    for crash, point in cases[:RUNS]:
        crash(server, point, rng)
        with server.start() as process, process.connect() as client:
            check(server, client)
