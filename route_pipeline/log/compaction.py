"""Compaction, which keeps the log small: few large files for each day in place of many small ones, today's too.

It is a commit that removes files and adds one with the same rows. Readers that go on with the old files find them for a
while; then they leave the store. No Spark is needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa

from route_pipeline.log.data_files import DATA, LOG_SCHEMA, NewFile, as_rows, folder_of, groups
from route_pipeline.log.log_reader import read_rows
from route_pipeline.log.protocol.commits import CHANGES, CLEANING, COMPACTION, QUARANTINE, RETENTION, DataFile
from route_pipeline.log.protocol.route_log import RouteLog
from route_pipeline.log.protocol.writer import ConflictError, LogWriter
from route_pipeline.log.quality import PROBLEM
from route_pipeline.stores.store import WORK, StoreRefusedError, StoreUnavailableError

ROWS_A_FILE = 2_000_000
"""About 20 MB of topic queues. Files of half of it and more stay as they are."""
ROW_GROUP_ROWS = 64 * 1024

GRACE = timedelta(days=1)
"""How long files stay that are no longer of the log, for readers that listed them."""
ORPHAN_AGE = timedelta(days=7)
"""Age at which a file goes that no commit ever had: a batch that still writes it would have ended long ago."""

_SCHEMAS = {CHANGES: LOG_SCHEMA, QUARANTINE: LOG_SCHEMA.append(pa.field(PROBLEM, pa.string()))}


class CompactionError(Exception):
    """It ended early; the log has the same rows, and what was done stays. The text is one line."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """The outcome of a compaction."""

    days: tuple[str, ...]
    """Days whose files were put together."""
    files_before: int
    """Files of the log before it."""
    files_after: int
    """Files of the log after it."""
    deleted: int
    """Files that left the store."""


def compact(log: RouteLog, grace: timedelta = GRACE) -> Compacted:
    """Puts small files of a day together, and deletes what has not been of the log for long.

    Args:
        log: The log. Others may read it and append to it meanwhile.
        grace: How long files stay that were replaced.

    Raises:
        LogError: A data file is missing, or was cut or changed: files that were replaced stay, which may have its rows.
        StoreError: The log cannot be written to.
        CompactionError: The store failed on the way, or another compaction was faster.
    """
    writer = LogWriter(log)
    log.check_files(writer.state, _SCHEMAS)
    before = len(writer.state.files)
    days: set[str] = set()
    try:
        for small in _small_files(writer.state.files.values()):
            if _merge(writer, small):
                days.add(small[0].date)
        deleted = _clean(writer, grace)
    except (ConflictError, StoreRefusedError, StoreUnavailableError) as error:
        raise CompactionError(f"{log.url} cannot be compacted: {error}") from error
    return Compacted(tuple(sorted(days)), before, len(writer.state.files), deleted)


def _small_files(files: Iterable[DataFile]) -> list[list[DataFile]]:
    """Files to be put together, each list in one file: of one day and table."""
    of_day: dict[tuple[str, str], list[DataFile]] = defaultdict(list)
    for file in files:
        if file.table in _SCHEMAS and file.rows < ROWS_A_FILE // 2:
            of_day[file.date, file.table].append(file)
    found: list[list[DataFile]] = []
    for _, small in sorted(of_day.items()):
        held: list[DataFile] = []
        for file in small:
            if sum(one.rows for one in held) + file.rows > ROWS_A_FILE:
                found.append(held)
                held = []
            held.append(file)
        found.append(held)
    return [some for some in found if len(some) > 1]


def _merge(writer: LogWriter, small: Sequence[DataFile]) -> bool:
    """Commits one file in place of some. Files with columns that this program does not know stay as they are."""
    table, date = small[0].table, small[0].date
    kept = all(file.made_by == RETENTION for file in small)
    store = writer.log.store
    store.make_folder(folder_of(date))
    schema = _SCHEMAS[table]
    with NewFile(store, table, date, RETENTION if kept else COMPACTION) as file:
        for rows in groups(read_rows(store, small), ROW_GROUP_ROWS):
            if not set(rows.schema.names) <= set(schema.names):
                return False
            file.write(as_rows(rows, schema))
    writer.append(COMPACTION, add=file.files(), remove=[one.path for one in small])
    return True


def _clean(writer: LogWriter, grace: timedelta) -> int:
    """Deletes files that were removed from the log longer ago than a time, and those that never were of it."""
    store, state = writer.log.store, writer.state
    gone = [path for path, at in state.removed.items() if at <= writer.store_time - grace]
    orphans = [
        file.path
        for folder in (DATA, WORK)
        for file in store.files(folder)
        if file.path not in state.files
        and file.path not in state.removed
        and file.modified <= writer.store_time - ORPHAN_AGE
    ]
    for path in (*gone, *orphans):
        store.delete(path)
    if gone:
        writer.append(CLEANING, forget=gone)
    return len(gone) + len(orphans)
