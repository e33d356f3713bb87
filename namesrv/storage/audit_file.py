"""The journal as a file: one JSON line for each change, written by a thread of its own, rotated by size."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import random
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path

import structlog

from groundwork import disk
from groundwork.backoff import Backoff
from namesrv.core.changes import Change
from namesrv.core.journal_text import summary
from namesrv.limits import MAX_WAITING_AUDIT_CHANGES, MAX_WAITING_AUDIT_ROWS

AUDIT_FILE = "audit.jsonl"
"""Name of the file in the data directory. Those before it have .1, .2 and so on behind it."""

COMPLAINT_SECONDS = 60.0
"""Pause between two log lines about the same trouble."""

FIRST_RESTART_SECONDS = 1.0
LONGEST_RESTART_SECONDS = 60.0
RESTART_JITTER = (0.8, 1.2)
"""Pause before a writer thread that died is started again; it doubles as long as nothing gets written."""

_log = structlog.get_logger(__name__)


class RotatingFile:
    """A file of lines and the full ones before it. Blocks: not for the event loop.

    The rotating handler of ``logging`` prints errors instead of raising them, leaves part of a line behind on a full
    disk, and lets the file grow without end if only one is kept.
    """

    def __init__(self, path: Path, max_bytes: int, count: int) -> None:
        """Touches nothing yet.

        Args:
            path: The current file.
            max_bytes: Largest size of a file, unless it is one single piece.
            count: Files that are kept, the current one included.
        """
        self._path = path
        self._max_bytes = max_bytes
        self._count = count
        self._file: FileIO | None = None

    def append(self, lines: bytes) -> None:
        """Appends whole lines, all of them to one file.

        Raises:
            OSError: It could not; no part of them is in the file, as far as the disk lets that be undone.
        """
        file = self._file or self._open()
        size = os.fstat(file.fileno()).st_size
        if size and size + len(lines) > self._max_bytes:
            self._rotate()
            file, size = self._open(), 0
        try:
            self._write_whole(file, lines)
        except OSError:
            with suppress(OSError):
                disk.truncate(file, size)
            self.close()
            raise

    def close(self) -> None:
        """Closes the current file; the next line opens it again."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def _open(self) -> FileIO:
        file = self._file = disk.open_to_append(self._path)
        try:
            size = os.fstat(file.fileno()).st_size
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                disk.write(file, b"\n")  # a process that was killed may have left half a line
        except OSError:
            self.close()
            raise
        return file

    def _rotate(self) -> None:
        self.close()
        disk.remove(self._numbered(self._count - 1))
        for number in range(self._count - 2, -1, -1):
            with suppress(FileNotFoundError):
                disk.rename(self._numbered(number), self._numbered(number + 1))

    def _write_whole(self, file: FileIO, lines: bytes) -> None:
        """Writes all bytes. A disk that runs full takes a part first, and refuses the rest. Raises OSError."""
        while lines:
            lines = lines[disk.write(file, lines) :]

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


class AuditFile:
    """Takes changes without ever waiting; a thread writes them.

    Changes are left out when too many wait or the disk refuses them. That is logged now and then, and a line in the
    file has their number as soon as writing goes on.
    """

    def __init__(
        self,
        file: RotatingFile,
        epoch: str,
        monotonic: Callable[[], float] = time.monotonic,
        max_waiting: int = MAX_WAITING_AUDIT_CHANGES,
        max_waiting_rows: int = MAX_WAITING_AUDIT_ROWS,
    ) -> None:
        """Starts no thread yet. Must be the listener of a change log from its first change on.

        Args:
            max_waiting: Changes that may wait for the thread.
            max_waiting_rows: Rows that they may have together.
        """
        self._file = file
        self._epoch = epoch
        self._max_waiting = max_waiting
        self._max_waiting_rows = max_waiting_rows
        self._waiting: queue.SimpleQueue[Change | None] = queue.SimpleQueue()
        """Changes in their order; None: the end. Putting into it takes no lock, so the event loop never waits."""
        self._thread: asyncio.Future[None] | None = None
        """Done when the latest writer thread has ended, with the error that ended it."""
        self._full = _Complaint("audit_changes_left_out", monotonic)
        self._refused = _Complaint("audit_file_not_written", monotonic)
        # Each number is written by one side only, the event loop or the writer thread, so they need no lock.
        self._rows_put = 0
        self._rows_taken = 0
        self._last_revision = 0
        """The last of all changes that came."""
        self._written_revision = 0
        """Up to this one, all are in the file or counted there."""

    def on_change(self, change: Change) -> None:
        """Queues a change to be written, or leaves it out if too much waits already. The listener of the change log."""
        self._last_revision = change.revision
        rows_waiting = self._rows_put - self._rows_taken
        weight = change.weight
        full = self._waiting.qsize() >= self._max_waiting
        if full or (rows_waiting and rows_waiting + weight > self._max_waiting_rows):
            self._full.log(revision=change.revision, waiting=self._waiting.qsize(), waiting_rows=rows_waiting)
            return
        self._rows_put += weight
        # Without its link: otherwise a waiting change would keep all that come after it in memory.
        self._waiting.put(replace(change, next=None))

    async def keep_writing(
        self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, rng: random.Random | None = None
    ) -> None:
        """Owns the writer thread: starts it, and starts it again if it dies. Runs until cancelled.

        The thread goes on after that, until ``close``.
        """
        chance = rng or random.SystemRandom()
        backoff = Backoff(FIRST_RESTART_SECONDS, LONGEST_RESTART_SECONDS, RESTART_JITTER, rng=chance)
        failures = 0
        while True:
            written_before = self._written_revision
            thread = self._start_thread()
            await asyncio.wait([thread])
            if (error := thread.exception()) is None:
                return
            _log.error("audit_writer_died", revision=self._written_revision + 1, exc_info=error)
            failures = 1 if self._written_revision > written_before else failures + 1
            await sleep(backoff.after(failures))

    async def close(self, deadline_seconds: float) -> None:
        """Writes what waits and ends the thread.

        There must be no more changes, and keep_writing must be cancelled before.
        """
        self._waiting.put(None)
        thread = self._thread if self._thread and not self._thread.done() else self._start_thread()
        done, _ = await asyncio.wait([thread], timeout=deadline_seconds)
        if not done:
            thread.cancel()  # or the thread, should it end after all, would look for an event loop that has gone
            _log.warning("audit_file_not_drained", waiting=self._waiting.qsize())
        elif error := thread.exception():
            _log.error("audit_writer_died", revision=self._written_revision + 1, exc_info=error)

    def _start_thread(self) -> asyncio.Future[None]:
        ended: Future[None] = Future()
        ended.set_running_or_notify_cancel()
        # A daemon: a disk that hangs must not hold up the end of the process.
        threading.Thread(target=self._run, args=(ended,), name="audit-file", daemon=True).start()
        self._thread = asyncio.wrap_future(ended)
        return self._thread

    def _run(self, ended: Future[None]) -> None:
        try:
            self._write_until_end()
        except Exception as error:  # noqa: BLE001 - the boundary of a thread: its owner gets it
            ended.set_exception(error)
        else:
            ended.set_result(None)

    def _write_until_end(self) -> None:
        while (change := self._waiting.get()) is not None:
            self._rows_taken += change.weight
            self._write(change.revision, [*self._gap_before(change.revision), self._line_of(change)])
        if gap := self._gap_before(self._last_revision + 1):
            self._write(self._last_revision, gap)
        self._file.close()

    def _write(self, revision: int, lines: list[dict[str, str | int]]) -> None:
        try:
            self._file.append("".join(f"{json.dumps(line)}\n" for line in lines).encode())
        except OSError as error:
            self._refused.log(problem=error.strerror, revision=revision)
            return
        self._written_revision = revision

    def _gap_before(self, revision: int) -> list[dict[str, str | int]]:
        """A line with the number of changes that are missing before a revision, if there are any.

        Revisions have no gaps.
        """
        first, last = self._written_revision + 1, revision - 1
        if first > last:
            return []
        return [{"epoch": self._epoch, "left_out": last - first + 1, "first_revision": first, "last_revision": last}]

    def _line_of(self, change: Change) -> dict[str, str | int]:
        applied_at = datetime.fromtimestamp(change.applied_at_millis / 1000, UTC)
        return {
            "epoch": self._epoch,
            "revision": change.revision,
            "applied_at": applied_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "caller": change.cause.caller,
            "cause": change.cause.call,
            "comment": change.cause.comment,
            "summary": summary(change),
        }


class _Complaint:
    """Logs a problem when it begins, and then once in a while. For one thread."""

    def __init__(self, event: str, monotonic: Callable[[], float]) -> None:
        self._event = event
        self._monotonic = monotonic
        self._silent_until: float | None = None
        self._count = 0

    def log(self, **details: object) -> None:
        """The problem has occurred once more."""
        self._count += 1
        now = self._monotonic()
        if self._silent_until is None or now >= self._silent_until:
            _log.warning(self._event, changes=self._count, **details)
            self._silent_until = now + COMPLAINT_SECONDS
            self._count = 0
