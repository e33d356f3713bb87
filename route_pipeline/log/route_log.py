"""The log as it is written: what a batch is, that it is there once, and how far each name server has been read.

A commit is a batch: its files, its number and its position. The number is an application transaction of one id for all
writers, so that of two that write the same batch one is refused. The position is the rows of ``reads`` of the batch.
They name every name server, even if nothing of it was read: a start reads one small file.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, PostCommitHookProperties, Transaction
from deltalake.transaction import AddAction
from tenacity import Retrying, stop_after_attempt, wait_exponential

from route_pipeline.change_rows import BACK, CHANGES_READ, KEPT, SNAPSHOT
from route_pipeline.change_rows import HOLE as HOLE_READ
from route_pipeline.change_rows import LOST as LOST_READ
from route_pipeline.log.data_files import Add, ReadRow, write_reads
from route_pipeline.log.place import (
    PARTITIONS,
    READS,
    SCHEMA,
    TABLE,
    LogError,
    Place,
    StoreError,
    failures,
    one_line,
    sync,
)
from route_pipeline.positions import HOLE, LOST, UP, Position
from route_pipeline.schemas import READS as READS_TABLE

APP = "routes"
"""Application id of the batches' numbers."""

COMPACT_EVERY = 100
"""Batches after which a writer puts the small files of the day together: a question opens each file."""

SHORTEST_GRACE = timedelta(hours=1)
"""A batch that is being written may take so long: its files are in no commit until it ends."""

_EPOCH = datetime.fromtimestamp(0, UTC)
_ORDER = {KEPT: 0, BACK: 1, CHANGES_READ: 2, SNAPSHOT: 3, LOST_READ: 4, HOLE_READ: 5}
_STATES = {BACK: UP, CHANGES_READ: UP, SNAPSHOT: UP, LOST_READ: LOST, HOLE_READ: HOLE}
_READ_COLUMNS = ["key", "namesrv", "epoch", "revision", "changed_at", "op", "reason", "batch", "snapshot"]


class ConflictError(LogError):
    """Another writer has made the batch."""


@dataclass(frozen=True, slots=True)
class Read:
    """How far a name server has been read."""

    address: str  # where it was read last. Empty: another name server is there now
    position: Position
    known_until: datetime | None  # until when the log knows it, or None if it does not


class RouteLog:
    """A log that is written to, by one writer at a time."""

    def __init__(
        self, place: Place, *, run: str | None = None, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """Opens the log, and makes it if there is none. ``run`` names this writer in its commits. Raises LogError."""
        self.place = place
        self.now = now
        self._run = run or f"{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(4)}"
        self.table = place.open_or_create()
        self.batch = -1
        """Number of the last batch, or -1."""
        self.reads: dict[str, Read] = {}
        """How far each name server has been read, by its name; by its address, if it never answered."""
        self._committed = 0  # version of the last commit of this writer
        self._load()

    def catch_up(self) -> None:
        """Continues after the batches of another writer. Raises LogError."""
        with failures(f"{self.place.url} cannot be read"):
            self.table.update_incremental()
            number = self.table.transaction_version(APP)
        if (-1 if number is None else number) != self.batch:
            self._load()

    def append(
        self,
        files: Iterable[Add],
        reads: Iterable[ReadRow],
        transactions: Mapping[str, int] | None = None,
        quiet: Mapping[str, int] | None = None,
    ) -> int:
        """Commits the next batch. After any error the table is opened anew, and asked whether the batch is there.

        Args:
            files: The batch's files.
            reads: What the reader says of its reads; the rows become a file of the same commit.
            transactions: Application transactions of the commit besides the log's own.
            quiet: Name servers that had nothing new, with the time at which they said so, microseconds.

        Returns the batch's number. Raises ConflictError if another writer has made a batch since the position was read,
        and StoreError if the batch is not there.
        """
        number, at, listed = self.batch + 1, self.now(), list(reads)
        self._check_snapshots(listed)
        if self._committed:
            self._find_commit(self._committed, self._committed)
        before = self.table.version()
        rows = [*listed, *self._kept(listed, quiet or {}, at)]
        new = [*files, write_reads(self.place, rows, number, at)]
        numbers = {APP: number, **(transactions or {})}
        commit = CommitProperties(
            custom_metadata={"run": self._run, "batch": str(number)},
            app_transactions=[Transaction(app, value) for app, value in numbers.items()],
            max_commit_retries=15,
        )
        hooks = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
        try:
            self.table.create_write_transaction(
                [AddAction(**file) for file in new],
                "append",
                SCHEMA,
                partition_by=PARTITIONS,
                commit_properties=commit,
                post_commithook_properties=hooks,
            )
        except Exception as error:  # noqa: BLE001 - delta-rs raises OSError, DeltaError, ValueError and more
            if not self._is_mine(number, error):
                raise StoreError(f"batch {number} is not in {self.place.url}: {one_line(error)}") from None
        else:
            # The call leaves the table as it was: the next commit would take this one for another writer's.
            with failures(f"{self.place.url} cannot be read"):
                self.table.update_incremental()
        self._sync_commit()
        if self.place.local is None:
            self._committed = self._find_commit(before + 1, self.table.version())
        self.batch = number
        self.reads = self._reads_of([row | {"batch": number} for row in rows])
        return number

    def compact(self) -> None:
        """Puts the small files of this day together. The old ones stay for readers, until :meth:`maintain`."""
        with failures(f"{self.place.url} cannot be compacted"):
            self._rewrite(lambda: self.table.optimize.compact([("day", "=", f"{self.now():%Y-%m-%d}")]))

    def maintain(self, keep_days: int | None, grace: timedelta) -> tuple[int, int, int]:
        """Puts small files together, drops days that are too old, and deletes files that nobody needs.

        Files that were replaced stay for ``grace``, for readers under way. Returns how many files were there, are there
        now, and were deleted.
        """
        if grace < SHORTEST_GRACE:
            raise LogError("files of a batch that is being written would be deleted: --grace-hours is at least 1")
        before = len(self._paths())
        with failures(f"{self.place.url} cannot be maintained"):
            if keep_days is not None:
                oldest = (self.now() - timedelta(days=keep_days)).date()
                self._check_known_since(str(oldest))
                self.table.delete(f"day < DATE '{oldest}'")
            self._rewrite(self.table.optimize.compact)
            hours = int(grace.total_seconds() // 3600)
            deleted = self.table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
            self.table.create_checkpoint()
            self._sync_commit()
        return before, len(self._paths()), len(deleted)

    def _load(self) -> None:
        self.table = self.place.open()
        number = self.table.transaction_version(APP)
        self.batch = -1 if number is None else number
        self.reads = {}
        if number is None:
            return
        of_batch = (pc.field("max.batch") >= number) & (pc.field("min.batch") <= number)
        rows = [row for row in self._read_rows(of_batch) if row["batch"] == number]
        if not rows:
            raise LogError(f"{self.place.url} has no position of its batch {number}: it was changed by something else")
        self.reads = self._reads_of(rows)

    def _read_rows(self, of_files: pc.Expression) -> list[ReadRow]:
        """The rows of ``reads`` in the files whose statistics meet a condition."""
        adds = pa.table(self.table.get_add_actions(flatten=True))
        paths = adds.filter((pc.field("partition.kind") == READS) & of_files)["path"].to_pylist()
        tables = (pq.read_table(pa.BufferReader(self.place.read(path)), columns=_READ_COLUMNS) for path in paths)
        return [row for table in tables for row in table.to_pylist()]

    def _is_mine(self, number: int, error: Exception) -> bool:
        """Whether a commit that failed is there after all. Raises ConflictError if another writer's is."""
        try:
            table = Retrying(stop=stop_after_attempt(3), wait=wait_exponential(0.5), reraise=True)(self.place.open)
        except LogError:
            text = f"nobody knows whether batch {number} is in {self.place.url}: {one_line(error)}"
            raise StoreError(text) from None
        found = table.transaction_version(APP)
        if found is None or found < number:
            self.table = table
            return False
        entry: dict[str, Any] = next((one for one in table.history(100) if one.get("batch") == str(number)), {})
        if entry.get("run") == self._run:
            self.table = table
            return True
        raise ConflictError(
            f"another program, {entry.get('run', 'unknown')}, writes to {self.place.url}: this one ends"
        )

    def _find_commit(self, first: int, last: int) -> int:
        """The version of this writer's commit in a bucket. Raises ConflictError if another commit has replaced it.

        delta-rs relies on stores that refuse to overwrite. In others, two writers of one moment lose a batch.
        """
        for version in range(first, last + 1):
            if self._run in self.place.read(f"_delta_log/{version:020}.json").decode():
                return version
        raise ConflictError(
            f"another program has overwritten a commit of this one in {self.place.url}: "
            "the bucket must refuse that (If-None-Match)"
        )

    def _check_snapshots(self, reads: list[ReadRow]) -> None:
        """A stream that was planned without the log, as Spark's, must not repeat numbers of snapshots."""
        for row in reads:
            known = self.reads.get(row["namesrv"])
            if known is not None and row["op"] == SNAPSHOT and row["snapshot"] <= known.position.snapshot:
                raise ConflictError(
                    f"{self.place.url} has a later snapshot of {row['namesrv']} than this stream: "
                    "start it with a new checkpoint"
                )

    def _kept(self, reads: list[ReadRow], quiet: Mapping[str, int], at: datetime) -> list[ReadRow]:
        """Rows for the name servers that the batch does not read, so that it has the whole position."""
        read_now = {row["namesrv"] for row in reads if row["op"] in (SNAPSHOT, CHANGES_READ)}
        addresses = {row["key"]: row["namesrv"] for row in reads}
        rows = []
        for name, read in self.reads.items():
            moved = addresses.get(read.address, name) != name
            if name in read_now or (moved and read.known_until is None):
                continue
            until = read.known_until or at
            if name in quiet and read.position.state == UP:
                until = max(until, _EPOCH + timedelta(microseconds=quiet[name]))
            kept = {
                "namesrv": name,
                "epoch": read.position.epoch,
                "revision": read.position.revision,
                "changed_at": until,
                "ingested_at": at,
                "table_name": READS_TABLE,
                "op": KEPT,
                "from_snapshot": False,
                "key": "" if moved else read.address,
                "reason": read.position.state,
                "snapshot": read.position.snapshot,
            }
            rows.append(kept)
        return rows

    def _reads_of(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, Read]:
        """How far each name server has been read, by the rows of a batch."""
        found: dict[str, Read] = {}
        for row in sorted(rows, key=lambda row: _ORDER[row["op"]]):
            name, op, before = row["namesrv"], row["op"], found.get(row["namesrv"], self.reads.get(row["namesrv"]))
            known_until = None if before is None else before.known_until
            if op in (SNAPSHOT, CHANGES_READ) or (op == KEPT and row["snapshot"]):
                known_until = row["changed_at"]
            position = Position(
                "" if name == row["key"] else name,
                row["epoch"],
                row["revision"],
                row["reason"] if op == KEPT else _STATES[op],
                row["snapshot"],
            )
            found[name] = Read(row["key"], position, known_until)
        return found

    def _rewrite(self, rewrite: Callable[[], object]) -> None:
        """Replaces files by others, which are durable on a disk like those of a batch."""
        before = self._paths()
        rewrite()
        if self.place.local is not None:
            sync(*(Path(self.place.table, path) for path in self._paths() - before))
        self._sync_commit()

    def _paths(self) -> set[str]:
        return set(self.place.files(self.table))

    def _sync_commit(self) -> None:
        """Has the disk hold the last commit: delta-rs does not, and a machine that stops could leave it empty."""
        if self.place.local is None:
            return
        folder = self.place.local / TABLE / "_delta_log"
        commit = folder / f"{self.table.version():020}.json"
        sync(*(path for path in (commit, folder) if path.exists()))

    def _check_known_since(self, day: str) -> None:
        rows = self._read_rows(pc.field("partition.day") >= pa.scalar(datetime.fromisoformat(day).date()))
        late = {row["namesrv"] for row in rows if row["op"] == SNAPSHOT}
        early = sorted(name for name, read in self.reads.items() if read.position.snapshot and name not in late)
        if early:
            raise LogError(
                f"{', '.join(early)}: no snapshot since {day}, so nothing would be known: ingest --restart takes one"
            )
