"""The journal: a table with one row for each change of the routes. In a data directory it survives restarts.

Changes wait in memory for the disk, within bounds, so a registration never waits. Changes over these bounds are left
out, and a row says how many. The oldest rows go once the table is over its bounds. Reads include waiting changes.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import structlog
from tenacity import AsyncRetrying, retry_if_exception

from namesrv.core.changes import Change
from namesrv.core.errors import Reason, Refused, not_durable, overloaded
from namesrv.core.journal import JournalEntry, JournalPosition, JournalQuery, entry_of, touched_names
from namesrv.limits import (
    MAX_JOURNAL_ENTRIES,
    MAX_WAITING_JOURNAL_CHANGES,
    MAX_WAITING_JOURNAL_READS,
    MAX_WAITING_JOURNAL_ROWS,
)
from namesrv.storage.database import JOURNAL_SCHEMA, Database, MemoryDatabase
from namesrv_common.backoff import Backoff

GATHER_SECONDS = 0.1
"""How long changes are gathered for one commit: a disk takes one in milliseconds, a name server makes thousands."""

MAX_BATCH_ROWS = 20_000
"""Rows of changes in one commit, each topic counted: an operator's change waits for as long as this takes to write."""

MAX_TOPICS_OF_ENTRY = 1_000
"""Topics that an entry is found by. One that touches more is found by every topic: it may be about that one."""

FIRST_RETRY_SECONDS = 0.5
LONGEST_RETRY_SECONDS = 10.0

TRIM_STEP = 1_000
"""Entries that are looked at in one step to find how many have to go."""

_BEGINNING, _END = JournalPosition("", -1), JournalPosition("~", 0)
_SEARCH = """
SELECT epoch, revision, applied_at_millis, caller, cause, comment, summary, removed_broker_count, removal_reason
FROM journal
WHERE (epoch, revision) < (:before_epoch, :before_revision) AND (epoch, revision) > (:after_epoch, :after_revision)
    AND (:topic IS NULL OR topics IS NULL OR instr(topics, char(10) || :topic || char(10)))
    AND (:broker_name IS NULL OR brokers = '' OR instr(brokers, char(10) || :broker_name || char(10)))
    AND (:from_millis IS NULL OR applied_at_millis >= :from_millis)
    AND (:to_millis IS NULL OR applied_at_millis < :to_millis)
ORDER BY epoch DESC, revision DESC LIMIT :limit
"""
# A batch whose writing was cancelled may be there already.
_INSERT = "INSERT OR IGNORE INTO journal VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"

_log = structlog.get_logger(__name__)


class _Gap(NamedTuple):
    """Changes that were left out, because too many waited."""

    first_revision: int
    revision: int
    """The last of them."""
    applied_at_millis: int
    """When the last of them was made."""
    weight: int = 1


class _Size(NamedTuple):
    """What the table holds."""

    entries: int
    bytes: int


_Row = tuple[str, int, int, str, str, str, str, int, int, str, str | None, int]
"""A row of the table: an entry, the names of brokers and topics that it is found by, and its bytes of text."""


class Journal:
    """The journal of one name server. All but the work on the table runs on the event loop."""

    def __init__(
        self,
        database: Database | MemoryDatabase,
        epoch: str,
        max_bytes: int,
        *,
        max_entries: int = MAX_JOURNAL_ENTRIES,
        max_waiting: int = MAX_WAITING_JOURNAL_CHANGES,
        max_waiting_rows: int = MAX_WAITING_JOURNAL_ROWS,
    ) -> None:
        """Starts nothing yet. Must be the listener of a change log from its first change on.

        Args:
            max_bytes: Bytes of text that the table may hold; the oldest entries go first.
            max_entries: Entries that it may hold.
            max_waiting: Changes that may wait for the disk.
            max_waiting_rows: Rows that they may have together.
        """
        self._database = database
        self._epoch = epoch
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._max_waiting = max_waiting
        self._max_waiting_rows = max_waiting_rows
        self._waiting: deque[Change | _Gap] = deque()
        self._waiting_rows = 0
        """Rows of those that wait, the batch that is being written included."""
        self._batch: list[Change | _Gap] = []
        """What is being written."""
        self._has_waiting = asyncio.Event()
        self._size: _Size | None = None
        """What the table holds; None before the first commit, and after one whose outcome is not known."""
        self._reads = 0
        self.left_out = 0
        """Changes that were left out since the start."""

    def on_change(self, change: Change) -> None:
        """Has a change wait to be written, or leaves it out. The listener of the change log."""
        weight = change.weight
        full = len(self._waiting) + len(self._batch) >= self._max_waiting
        if full or (self._waiting_rows and self._waiting_rows + weight > self._max_waiting_rows):
            self._leave_out(change)
        else:
            # Without its link: otherwise a waiting change would keep all that come after it in memory.
            self._wait(replace(change, next=None), weight)

    def _leave_out(self, change: Change) -> None:
        self.left_out += 1
        if self._waiting and isinstance(last := self._waiting[-1], _Gap):
            self._waiting[-1] = _Gap(last.first_revision, change.revision, change.applied_at_millis)
            return
        _log.warning("journal_leaves_out_changes", revision=change.revision, waiting=len(self._waiting))
        self._wait(_Gap(change.revision, change.revision, change.applied_at_millis), 1)

    def _wait(self, change: Change | _Gap, weight: int) -> None:
        self._waiting.append(change)
        self._waiting_rows += weight
        self._has_waiting.set()

    async def keep_writing(
        self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, rng: random.Random | None = None
    ) -> None:
        """Writes what waits, again and again. Runs until cancelled."""
        again = AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, Refused) and error.reason == Reason.NOT_DURABLE),
            wait=Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, rng=rng or random.SystemRandom()),
            sleep=sleep,
        )
        while True:
            await self._has_waiting.wait()
            await sleep(GATHER_SECONDS)
            await again(self._write_batch)

    async def write_last(self) -> None:
        """Writes all that waits. There must be no more changes, nor keep_writing. Raises NOT_DURABLE."""
        while self._waiting or self._batch:
            await self._write_batch()

    async def read(self, query: JournalQuery) -> list[JournalEntry]:
        """The newest entries that a query asks for, those that wait for the disk included.

        An entry of very many topics is found by each topic, also by one that it does not touch. An entry about changes
        that were left out is found by each topic and each broker.

        Raises:
            OVERLOADED: Too many reads wait already.
            NOT_DURABLE: The table cannot be read.
        """
        if self._reads >= MAX_WAITING_JOURNAL_READS:
            raise overloaded(f"{self._reads} reads of the journal wait for the disk already")
        self._reads += 1
        try:
            return await self._database.read(partial(self._select, query, (*self._batch, *self._waiting)))
        except sqlite3.Error as error:
            _log.error("journal_not_read", problem=str(error))
            raise not_durable(str(error), "the journal cannot be read from the disk") from error
        finally:
            self._reads -= 1

    async def _write_batch(self) -> None:
        rows = sum(change.weight for change in self._batch)  # of a batch whose writing was cancelled
        while self._waiting and (not rows or rows + self._waiting[0].weight <= MAX_BATCH_ROWS):
            rows += self._waiting[0].weight
            self._batch.append(self._waiting.popleft())
        size, self._size = self._size, None  # stays unknown where the writing is refused or cancelled
        try:
            self._size = await self._database.write(partial(self._append, tuple(self._batch), size))
        except Refused:
            self._take_back()
            raise
        self._batch = []
        self._waiting_rows -= rows
        if not self._waiting:
            self._has_waiting.clear()

    def _take_back(self) -> None:
        """Returns a batch that the disk refused to the queue. One entry covers a gap that has grown since."""
        if self._waiting and isinstance(after := self._waiting[0], _Gap) and isinstance(last := self._batch[-1], _Gap):
            self._waiting[0] = after._replace(first_revision=last.first_revision)
            self._waiting_rows -= self._batch.pop().weight
        self._waiting.extendleft(reversed(self._batch))
        self._batch = []

    def _append(self, batch: Sequence[Change | _Gap], size: _Size | None, connection: sqlite3.Connection) -> _Size:
        """Adds rows, and removes the oldest ones over the bounds. Runs in the committing thread."""
        rows = [self._row(change) for change in batch]
        connection.executemany(_INSERT, rows)
        if size is None:
            size = _Size(*connection.execute("SELECT count(*), total(bytes) FROM journal").fetchone())
        else:
            size = _Size(size.entries + len(rows), size.bytes + sum(row[-1] for row in rows))
        return _trimmed(connection, size, self._max_entries, self._max_bytes)

    def _select(
        self, query: JournalQuery, waiting: Sequence[Change | _Gap], connection: sqlite3.Connection
    ) -> list[JournalEntry]:
        """Searches what waits, and then the table, which may have a part of it by now. Runs in the reading thread."""
        written = connection.execute("SELECT max(revision) FROM journal WHERE epoch = ?", (self._epoch,)).fetchone()[0]
        with closing(sqlite3.connect(":memory:")) as unwritten:
            unwritten.execute(JOURNAL_SCHEMA)
            unwritten.executemany(_INSERT, (self._row(each) for each in waiting if each.revision > (written or 0)))
            found = _found(query, unwritten)
        return found + _found(query._replace(limit=query.limit - len(found)), connection)

    def _row(self, change: Change | _Gap) -> _Row:
        if isinstance(change, _Gap):
            entry = _entry_of_gap(self._epoch, change)
            brokers, topics = "", None  # found by every name
        else:
            entry = entry_of(self._epoch, change)
            names, touched = touched_names(change, MAX_TOPICS_OF_ENTRY)
            brokers, topics = _joined(names), None if touched is None else _joined(touched)
        texts = (entry.caller, entry.cause, entry.comment, entry.summary, brokers, topics or "")
        return (*entry, brokers, topics, sum(len(text.encode()) for text in texts))


def _entry_of_gap(epoch: str, gap: _Gap) -> JournalEntry:
    count = gap.revision - gap.first_revision + 1
    missing = f"{count:,} changes are missing here, from revision {gap.first_revision} on: too many waited for the disk"
    return JournalEntry(epoch, gap.revision, gap.applied_at_millis, cause="journal", summary=missing)


def _joined(names: Iterable[str]) -> str:
    """Names that are found with a line break on either side. Nobody asks for a name that has one itself."""
    return "".join(f"\n{name}" for name in names if "\n" not in name) + "\n"


def _trimmed(connection: sqlite3.Connection, size: _Size, max_entries: int, max_bytes: int) -> _Size:
    while size.entries > max_entries or size.bytes > max_bytes:
        oldest = connection.execute(
            "SELECT epoch, revision, bytes FROM journal ORDER BY epoch, revision LIMIT ?", (TRIM_STEP,)
        ).fetchall()
        for epoch, revision, length in oldest:
            if size.entries <= max_entries and size.bytes <= max_bytes:
                break
            size = _Size(size.entries - 1, size.bytes - length)
            last = (epoch, revision)
        connection.execute("DELETE FROM journal WHERE (epoch, revision) <= (?, ?)", last)
    return size


def _found(query: JournalQuery, connection: sqlite3.Connection) -> list[JournalEntry]:
    values = query._asdict()
    values["before_epoch"], values["before_revision"] = query.before or _END
    values["after_epoch"], values["after_revision"] = query.after or _BEGINNING
    return [JournalEntry(*row) for row in connection.execute(_SEARCH, values)]
