"""The folder that the change log is kept in.

::

    DIR/route_pipeline.json                               says that the folder is ours, and the version of its layout
    DIR/changes/date=DATE/run=RUN/batch_id=N/*.parquet    the change log: what each batch brought
    DIR/quarantine/date=DATE/run=RUN/batch_id=N/*.parquet rows that break the contract, with the reason
    DIR/ingests/run=RUN/batch_id=N.parquet                summary of a batch; what has one is whole
    DIR/history/*.parquet                                 made by `history` from the log
    DIR/delta/                                            the change log as a Delta table, where that is asked for
    DIR/_checkpoint/RUN/                                  where Spark notes how far it has read
    DIR/_work/                                            batches under way; Spark and Arrow pass over such names

A batch appears by renaming a folder that is already complete, and is never written again: Spark repeats a batch that it
does not know to be done, and then finds it here. So every reader, Spark or not, sees each row once. DATE is the day on
which the batch was written, UTC.
"""

from __future__ import annotations

import fcntl
import json
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from groundwork.files import disk
from route_pipeline.log.day_swap import finish_replacing, missing_day

LAYOUT_VERSION = 2
"""Version of the layout above."""

COMPACTED_RUN = "compacted"
"""Name of the run that a compacted day has in place of those that wrote it."""

LASTING_RUN = "lasting"
"""The same for a day of which only what outlasted it, and the days before it, is left."""

_REWRITTEN = (f"run={COMPACTED_RUN}", f"run={LASTING_RUN}")
_MARKER = "route_pipeline.json"
_MARKER_PART = f"_{_MARKER}.part"
_PATTERN_CHARACTERS = re.compile(r"[*?\[\]{}\\]")


class StoreError(Exception):
    """The folder cannot be used as asked; the text is one line."""


@dataclass(frozen=True, slots=True)
class Run:
    """Batches that follow one another: those of one checkpoint."""

    run_id: str
    """When it began, and a random part."""
    checkpoint: Path
    """Spark's folder for it."""


class RouteStore:
    """A folder with a change log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changes = folder / "changes"
        self.quarantine = folder / "quarantine"
        self.ingests = folder / "ingests"
        self.history = folder / "history"
        self.delta = folder / "delta"
        self.work = folder / "_work"
        self._checkpoints = folder / "_checkpoint"

    @classmethod
    def create(cls, folder: Path) -> RouteStore:
        """Opens a folder to write to: it is ours, empty, or not there yet.

        Raises:
            StoreError: It holds something else, or cannot be written to.
        """
        _check_name(folder)
        store = cls(folder.absolute())
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(path.name != _MARKER_PART for path in folder.iterdir()):
                store._check_marker()
            else:
                store._write_marker()
        except OSError as error:
            raise StoreError(f"{folder} cannot be written to: {error.strerror}") from error
        return store

    @classmethod
    def open(cls, folder: Path) -> RouteStore:
        """Opens a folder to read from.

        Raises:
            StoreError: It is not there, or holds something else.
        """
        _check_name(folder)
        if not folder.is_dir():
            raise StoreError(f"{folder} is not a folder")
        store = cls(folder.absolute())
        try:
            store._check_marker()
        except OSError as error:
            raise StoreError(f"{folder} cannot be read: {error.strerror}") from error
        return store

    def check_not_empty(self) -> None:
        """Checks that there is something to read.

        Raises:
            StoreError: There is no ingest yet, or a day is not at its place.
        """
        if not any(self.ingests.glob("run=*/batch_id=*.parquet")):
            raise StoreError(f"{self.folder} has no ingest yet")
        if day := missing_day(self.changes, self.work):
            raise StoreError(f"{self.changes / day} is being compacted, or that was killed: compact or ingest ends it")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Holds the folder for this process as the only writer.

        Raises:
            StoreError: Another process writes to it, or it cannot be written to.
        """
        with self._open_lock() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreError(f"another ingest or compaction is writing to {self.folder}") from None
            self._clean_up()
            yield

    def run(self, *, new: bool = False) -> Run:
        """The run to go on with: the latest, or a new one, which begins with a snapshot.

        Args:
            new: Whether to begin a new one although there is one.
        """
        known = sorted(folder.name for folder in self._checkpoints.glob("*"))
        if known and not new:
            return Run(known[-1], self._checkpoints / known[-1])
        run_id = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(4)}"
        return Run(run_id, self._checkpoints / run_id)

    def batch(self, run: Run, batch_id: int, at: datetime) -> Batch | None:
        """A batch to write, or None if it is there already.

        Args:
            run: What it is of.
            batch_id: Its number within the run.
            at: The time, with its time zone.
        """
        if self._summary(run, batch_id).exists():
            return None
        (self.ingests / f"run={run.run_id}").mkdir(parents=True, exist_ok=True)
        part = f"run={run.run_id}/batch_id={batch_id}"
        written = next(self.changes.glob(f"date=*/{part}"), None)
        date = written.parent.parent.name if written else f"date={at.astimezone(UTC):%Y-%m-%d}"
        work = self.work / f"{run.run_id}-{batch_id}"
        if written is None:
            for left in (work, *self.quarantine.glob(f"date=*/{part}")):
                shutil.rmtree(left, ignore_errors=True)
        return Batch(
            staged=work,
            is_staged=written is not None,
            changes=self.changes / date / part,
            quarantine=self.quarantine / date / part,
            summary=self._summary(run, batch_id),
        )

    def is_whole(self, day: Path) -> bool:
        """Whether every batch of a day has its summary; one that a crash cut short is still to be ended by its run."""
        return all(map(self._is_whole, day.glob("run=*/batch_id=*")))

    def whole_batches(self) -> list[Path]:
        """The folders of the log that will not change: of batches with a summary, and of compacted days."""
        return sorted(filter(self._is_whole, self.changes.glob("date=*/run=*/batch_id=*")))

    def _is_whole(self, batch: Path) -> bool:
        run = batch.parent.name
        return run in _REWRITTEN or (self.ingests / run / f"{batch.name}.parquet").exists()

    def _summary(self, run: Run, batch_id: int) -> Path:
        return self.ingests / f"run={run.run_id}" / f"batch_id={batch_id}.parquet"

    def _clean_up(self) -> None:
        """Ends what a killed compaction left half done. Once the lock is ours, batches under way have no writer."""
        self.changes.mkdir(exist_ok=True)
        finish_replacing(self.changes, self.work)
        # Spark refuses a checkpoint whose first offsets it could not write, as on a full disk. It has no batch.
        begun = {offsets.parent.parent for offsets in self._checkpoints.glob("*/offsets/[0-9]*")}
        for left in (*self.work.iterdir(), *set(self._checkpoints.glob("*")) - begun):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)

    def _open_lock(self) -> IO[str]:
        try:
            self.work.mkdir(exist_ok=True)
            return (self.work / "lock").open("w")
        except OSError as error:
            raise StoreError(f"{self.folder} cannot be written to: {error.strerror}") from error

    def _write_marker(self) -> None:
        part = self.folder / _MARKER_PART
        with disk.open_new(part) as stream:
            disk.write(stream, part, f"{json.dumps({'layout_version': LAYOUT_VERSION})}\n".encode())
            disk.sync(stream, part)
        disk.rename(part, self.folder / _MARKER)

    def _check_marker(self) -> None:
        marker = self.folder / _MARKER
        try:
            version = json.loads(marker.read_text(encoding="utf-8"))["layout_version"]
        except FileNotFoundError:
            raise StoreError(f"{self.folder} holds something else: it has no {_MARKER}") from None
        except (ValueError, KeyError, TypeError):
            raise StoreError(f"{marker} is damaged") from None
        if version != LAYOUT_VERSION:
            raise StoreError(f"{self.folder} has layout version {version}; this program knows {LAYOUT_VERSION}")


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that is not whole yet."""

    staged: Path
    """Where Spark writes it; below it one folder for good rows and one for those that break the contract."""
    is_staged: bool
    """True if its rows are at their place already and only the summary is missing: a crash was in between."""
    changes: Path
    """Where its rows go."""
    quarantine: Path
    """Where its rows go that break the contract."""
    summary: Path
    """The file that makes it whole."""

    def publish(self, good: str, bad: str) -> None:
        """Moves the rows to their place, the bad ones first, because the good ones make the batch exist.

        Args:
            good: Name of the folder of good rows below ``staged``.
            bad: Name of the folder of the others.

        Raises:
            StoreError: They could not be moved.
        """
        try:
            for name, target in ((bad, self.quarantine), (good, self.changes)):
                if (self.staged / name).exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    disk.rename(self.staged / name, target)
        except OSError as error:
            raise StoreError(f"batch {self.changes} cannot be moved to its place: {error.strerror}") from error
        shutil.rmtree(self.staged, ignore_errors=True)


def _check_name(folder: Path) -> None:
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", str(folder)):
        raise StoreError(f"{folder} is a URL; name a folder that this machine and all of Spark's can reach")
    if _PATTERN_CHARACTERS.search(str(folder)):
        raise StoreError(f"{folder} has one of * ? [ ] {{ }} \\ in its name, which Spark takes for a pattern")
