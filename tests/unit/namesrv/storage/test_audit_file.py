"""The journal as a file: whole lines whatever the disk does, counted gaps, and nobody who waits for it."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from namesrv.core.changes import Cause, ChangeLog, KvPut, QueuesRemoved, Row
from namesrv.core.model import BrokerKey, RemovalReason
from namesrv.storage.audit_file import AUDIT_FILE, COMPLAINT_SECONDS, AuditFile, RotatingFile
from tests.support.programs.processes import eventually
from tests.support.virtual_clock import VirtualClock

WAIT_SECONDS = 20.0
"""For what other threads do; never waited for in full."""
EPOCH = "000000000000001-00000000"


class Disk(RotatingFile):
    """Writes for real, but only while it is let, and fails if told to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, 1_000_000, 2)
        self.lets = threading.Event()
        self.lets.set()
        self.busy = threading.Event()
        self.problem: Exception | None = None

    def append(self, lines: bytes) -> None:
        self.busy.set()
        assert self.lets.wait(WAIT_SECONDS)
        if self.problem is not None:
            raise self.problem
        super().append(lines)


class Journal:
    """A change log with an audit file."""

    def __init__(self, disk: Disk, max_waiting: int = 10, max_waiting_rows: int = 1_000) -> None:
        self.clock = VirtualClock()
        self.log = ChangeLog(max_changes=1)
        self.file = AuditFile(disk, EPOCH, self.clock.monotonic, max_waiting, max_waiting_rows)
        self.log.listen(self.file.on_change)

    def append(self, row: Row | None = None, times: int = 1) -> None:
        for _ in range(times):
            self.log.append(1_700_000_000_001, Cause("PutKvConfig", "c", "why"), (row or KvPut("ns", "k", None),))

    def run(self, steps: Callable[[], Awaitable[None]]) -> None:
        """Runs steps while the thread has an owner, and closes as a shutdown does."""

        async def owned() -> None:
            owner = asyncio.create_task(self.file.keep_writing(self._no_pause))
            try:
                await steps()
            finally:
                owner.cancel()
                await asyncio.wait([owner])
                await self.file.close(WAIT_SECONDS)

        asyncio.run(owned())

    @staticmethod
    async def _no_pause(_seconds: float) -> None:
        await asyncio.sleep(0)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / AUDIT_FILE)
    yield made
    made.lets.set()  # or the thread would outlive a test that failed


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def revisions(folder: Path) -> list[int | tuple[int, int]]:
    """What the file has: revisions, and the first and last of those that it counts as left out."""
    told: list[int | tuple[int, int]] = []
    for line in lines(folder / AUDIT_FILE):
        if "left_out" in line:
            assert line["left_out"] == line["last_revision"] - line["first_revision"] + 1
            told.append((line["first_revision"], line["last_revision"]))
        else:
            told.append(line["revision"])
    return told


async def until(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, WAIT_SECONDS)


async def until_true(probe: Callable[[], bool]) -> None:
    await asyncio.to_thread(eventually, probe)


def test_a_line_says_all_that_is_known_of_a_change(disk: Disk, tmp_path: Path) -> None:
    journal = Journal(disk)

    async def steps() -> None:
        journal.append(KvPut("ns", "größer", "value"))

    journal.run(steps)
    assert lines(tmp_path / AUDIT_FILE) == [
        {
            "epoch": EPOCH,
            "revision": 1,
            "applied_at": "2023-11-14T22:13:20.001Z",
            "caller": "c",
            "cause": "PutKvConfig",
            "comment": "why",
            "summary": "KV configuration: 'ns' 'größer' put: 'va'... (5 characters)",
        }
    ]


def test_what_waits_at_a_shutdown_is_written_first(disk: Disk, tmp_path: Path) -> None:
    journal = Journal(disk)

    async def steps() -> None:
        disk.lets.clear()
        journal.append()
        await until(disk.busy)
        journal.append(times=10)
        disk.lets.set()

    journal.run(steps)
    assert revisions(tmp_path) == list(range(1, 12))


def test_changes_before_the_thread_runs_are_written_too(disk: Disk, tmp_path: Path) -> None:
    journal = Journal(disk)
    journal.append(times=3)
    asyncio.run(journal.file.close(WAIT_SECONDS))
    assert revisions(tmp_path) == [1, 2, 3]


def test_nobody_waits_for_a_disk_that_hangs_and_the_gap_is_counted_when_it_goes_on(disk: Disk, tmp_path: Path) -> None:
    journal = Journal(disk)

    async def steps() -> None:
        disk.lets.clear()
        journal.append()
        await until(disk.busy)
        with capture_logs() as logs:
            journal.append(times=15)  # 10 fit
            journal.clock.advance(COMPLAINT_SECONDS)
            journal.append()
        assert [(log["event"], log["revision"], log["changes"]) for log in logs] == [
            ("audit_changes_left_out", 12, 1),
            ("audit_changes_left_out", 17, 5),
        ]
        disk.lets.set()
        await until_true(lambda: (tmp_path / AUDIT_FILE).exists() and len(revisions(tmp_path)) == 11)
        journal.append()

    journal.run(steps)
    assert revisions(tmp_path) == [*range(1, 12), (12, 17), 18]


def test_a_gap_at_the_end_is_counted_at_the_shutdown(disk: Disk, tmp_path: Path) -> None:
    journal = Journal(disk)

    async def steps() -> None:
        disk.lets.clear()
        journal.append()
        await until(disk.busy)
        journal.append(times=13)
        disk.lets.set()

    journal.run(steps)
    assert revisions(tmp_path) == [*range(1, 12), (12, 14)]


def test_wide_changes_count_by_their_rows_and_one_alone_is_always_taken(disk: Disk, tmp_path: Path) -> None:
    journal = Journal(disk, max_waiting_rows=100)
    wide = QueuesRemoved(BrokerKey("c", "b"), {f"T{number}" for number in range(60)}, RemovalReason.GROUP_GONE)
    widest = wide._replace(topics={f"T{number}" for number in range(1_000)})

    async def steps() -> None:
        journal.append(widest)
        await until_true(lambda: journal.file._written_revision == 1)
        disk.busy.clear()
        disk.lets.clear()
        journal.append()
        await until(disk.busy)
        journal.append(wide, times=2)
        journal.append()
        disk.lets.set()

    journal.run(steps)
    assert revisions(tmp_path) == [1, 2, 3, (4, 4), 5]


def test_changes_that_wait_do_not_keep_those_after_them_in_memory(disk: Disk) -> None:
    journal = Journal(disk, max_waiting=1)

    async def steps() -> None:
        disk.lets.clear()
        journal.append()
        await until(disk.busy)
        journal.append(times=2)
        row = KvPut("ns", "k", "v")
        cause = _WatchedText("left out")
        gone = weakref.ref(cause)
        journal.log.append(1, Cause("x", cause), (row,))
        del cause
        journal.append(times=2)  # the change log itself keeps the last one only
        gc.collect()
        assert gone() is None
        disk.lets.set()

    journal.run(steps)


class _WatchedText(str):
    """A text that tells when nobody holds it any more."""

    __slots__ = ("__weakref__",)


def test_a_disk_that_refuses_is_logged_once_in_a_while_and_counted(disk: Disk, tmp_path: Path) -> None:
    journal = Journal(disk)

    async def steps() -> None:
        journal.append()
        await until_true(lambda: journal.file._written_revision == 1)
        disk.problem = OSError(28, "No space left on device")
        with capture_logs() as logs:
            journal.append(times=5)
            await until_true(lambda: journal.file._refused._count == 4)
            journal.clock.advance(COMPLAINT_SECONDS)
            journal.append()
            await until_true(lambda: journal.file._refused._count == 0)
        expected = {"event": "audit_file_not_written", "problem": "No space left on device", "log_level": "warning"}
        assert logs == [{**expected, "changes": 1, "revision": 2}, {**expected, "changes": 5, "revision": 7}]
        disk.problem = None
        journal.append()

    journal.run(steps)
    assert revisions(tmp_path) == [1, (2, 7), 8]


def test_a_thread_that_dies_is_noticed_and_started_again(disk: Disk, tmp_path: Path) -> None:
    journal = Journal(disk)

    async def steps() -> None:
        disk.problem = RuntimeError("a defect")
        with capture_logs() as logs:
            journal.append()
            await until_true(lambda: len(logs) == 1)
        assert (logs[0]["event"], logs[0]["revision"]) == ("audit_writer_died", 1)
        assert logs[0]["exc_info"] is disk.problem
        disk.problem = None
        journal.append()
        await until_true(lambda: journal.file._written_revision == 2)

    journal.run(steps)
    assert revisions(tmp_path) == [(1, 1), 2]


def test_a_thread_that_dies_again_and_again_is_started_less_and_less_often(disk: Disk) -> None:
    journal = Journal(disk)
    pauses: list[float] = []

    async def die() -> None:
        disk.problem = RuntimeError("a defect")
        enough = asyncio.Event()

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 9:
                enough.set()
                await asyncio.Event().wait()

        owner = asyncio.create_task(journal.file.keep_writing(sleep))
        with capture_logs():
            journal.append(times=9)
            async with asyncio.timeout(WAIT_SECONDS):
                await enough.wait()
        owner.cancel()
        await asyncio.wait([owner])
        disk.problem = None
        await journal.file.close(WAIT_SECONDS)

    asyncio.run(die())
    for pause, middle in zip(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60], strict=True):
        assert 0.8 * middle <= pause <= 1.2 * middle


def test_a_disk_that_hangs_at_a_shutdown_does_not_hold_it_up(disk: Disk, tmp_path: Path) -> None:
    journal = Journal(disk)

    async def steps() -> None:
        disk.lets.clear()
        journal.append()
        await journal.file.close(0.0)

    with capture_logs() as logs:
        asyncio.run(steps())
    assert [log["event"] for log in logs] == ["audit_file_not_drained"]
    disk.lets.set()
    for thread in threading.enumerate():
        if thread.name == "audit-file":
            assert thread.daemon
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()
    assert revisions(tmp_path) == [1]
