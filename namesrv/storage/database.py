"""The database: one SQLite file that holds everything durable but the route snapshot.

Two threads use it. The event loop does not. One thread commits: each change is one transaction, and it is on disk
before ``write`` returns. The other one reads the journal at the same time. A disk that hangs may block both.

``tables`` says what the rows of ``durable`` are, and ``journal`` owns the table of that name. A table that comes later
needs no other schema: its rows go into ``durable`` under its name.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sqlite3
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import structlog

from namesrv.core.errors import Reason, not_durable, suppress_refusals
from namesrv.storage.data_dir import DataDirError
from namesrv.storage.tables import KV_CONFIG, BrokenRows, DurableTable, read_rocketmq_kv_config
from namesrv_common.files import disk
from namesrv_common.process.shutdown import DaemonExecutor

DATABASE_FILE = "namesrv.db"
KV_CONFIG_FILE = "kvConfig.json"
"""RocketMQ's file of the KV configuration (kvConfigPath), which a first start imports."""

APPLICATION_ID = 0x6E73_7276
"""Tells files of name servers from other programs' (PRAGMA application_id): ``nsrv``."""

_MAGIC = b"SQLite format 3\0"

FORMAT = 1
"""Goes up with every change that an older version could misread (PRAGMA user_version)."""

LOCK_SECONDS = 5.0
"""How long a commit waits for another program that has the file locked, such as a shell of SQLite."""

PROBE_SECONDS = 0.5
"""Pause between two tries whether a disk that has refused a commit takes one again."""

HANG_SECONDS = 10.0
"""A commit that takes longer is a problem that operators see: more than twice as long as one waits for a lock."""

_REMEDY = (
    "move it and its -wal away; then restore a backup, or start without KV configuration, intents, settings and journal"
)

_EPOCH = "epoch"
_RUN, _RUNNING, _CRASHES, _SNAPSHOT_COMPLETE = "run", "running", "crashes", "snapshot_complete"
_MILLIS_DIGITS = 15
"""Width of an epoch's number: milliseconds since 1970 fit until the year 33658, so epochs sort as text."""

JOURNAL_SCHEMA = """
CREATE TABLE journal (
    epoch TEXT NOT NULL, revision INTEGER NOT NULL, applied_at_millis INTEGER NOT NULL,
    caller TEXT NOT NULL, cause TEXT NOT NULL, comment TEXT NOT NULL, summary TEXT NOT NULL,
    removed_broker_count INTEGER NOT NULL, removal_reason INTEGER NOT NULL,
    brokers TEXT NOT NULL, topics TEXT, bytes INTEGER NOT NULL,
    PRIMARY KEY (epoch, revision)
);
"""

_SCHEMA = f"""
CREATE TABLE durable (
    name TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (name, key)
) WITHOUT ROWID;
{JOURNAL_SCHEMA}
"""

ContentT = TypeVar("ContentT")
ResultT = TypeVar("ResultT")
Work = Callable[[sqlite3.Connection], ResultT]

_log = structlog.get_logger(__name__)


class MemoryDatabase:
    """A table for a journal without a data directory. One thread reads and writes it."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._connection.executescript(JOURNAL_SCHEMA)
        self._thread = DaemonExecutor(1, "journal")

    async def write(self, work: Work[ResultT]) -> ResultT:
        """Has the thread do some work and returns its result."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, self._connection)

    read = write

    def close(self) -> None:
        """Ends the thread. There must be no new work."""
        self._thread.shutdown(wait=False)


class Database:
    """The open database of a data directory, which only this process uses."""

    def __init__(self, folder: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Opens the database, or makes it on a first start. Blocks, so call it before anybody is answered.

        A first start imports RocketMQ's kvConfig.json, if the folder has one, and leaves that file as it is.

        Raises:
            DataDirError: The file cannot be read or written, is damaged, is of another program or of a newer version,
                or kvConfig.json cannot be read. Nothing has been overwritten.
        """
        self.folder = folder
        self.path = folder / DATABASE_FILE
        self.problem: str | None = None
        """Why the disk refused the last commit, or that one hangs; None if it took it."""
        self._monotonic = monotonic
        self._committing_since: float | None = None
        try:
            if not os.path.lexists(self.path):  # a link to a disk that is not there must not be replaced
                _make(self.path)
            self._connection = _open(self.path)
        except BrokenRows as error:
            raise DataDirError(f"{self.path}: {error}; {_REMEDY}") from error
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter for an error that quotes damaged text
            raise _unusable(self.path, error) from error
        except OSError as error:
            raise DataDirError.of(error.filename or self.path, error) from error
        self._writer = DaemonExecutor(1, "database")
        self._reader = DaemonExecutor(1, "database-reader")

    def load(self, table: DurableTable[ContentT]) -> ContentT:
        """The content of a table. Blocks. Raises DataDirError if this version cannot read it."""
        with self._reading():
            rows = _rows(self._connection, table.name)
        try:
            return table.decode(rows)
        except BrokenRows as error:
            raise DataDirError(f"{self.path}: table {table.name}: {error}; {_REMEDY}") from error

    def next_epoch(self, now_millis: int) -> str:
        """An epoch later than all before it, also after the clock has stepped back; durable before it is returned.

        Blocks. Raises DataDirError.
        """
        with self._reading():
            before = _rows(self._connection, _EPOCH).get(_EPOCH, "0").partition("-")[0]
            if not before.isdecimal():
                raise DataDirError(f"{self.path}: table {_EPOCH} holds no epoch; {_REMEDY}")
            epoch = format_epoch(max(now_millis, int(before) + 1))
            self._transact(lambda connection: _put(connection, _EPOCH, {_EPOCH: epoch}))
        return epoch

    def last_run(self) -> tuple[int, bool]:
        """Counts processes on this folder that ended without ``end_run``, and tells whether the snapshot is complete.

        It is if the last process ended in order and its snapshot file holds all routes that it knew. Call this before
        ``begin_run``. Blocks. Raises DataDirError.
        """
        with self._reading():
            return _crashes(self._connection), _rows(self._connection, _RUN).get(_SNAPSHOT_COMPLETE) == "1"

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Raises DataDirError where the file cannot be read or written at the start."""
        try:
            yield
        except sqlite3.Error as error:
            raise _unusable(self.path, error) from error

    async def begin_run(self) -> None:
        """Notes that a process runs, and keeps how many have crashed. Raises NOT_DURABLE."""
        await self.write(_begin_run)

    async def end_run(self, *, snapshot_is_complete: bool) -> None:
        """Notes that the process ends in order, and whether its snapshot file holds all routes. Raises NOT_DURABLE."""
        rows = {_RUNNING: "0", _SNAPSHOT_COMPLETE: "1" if snapshot_is_complete else "0"}
        await self.write(partial(_put, name=_RUN, rows=rows))

    async def replace(self, table: DurableTable[ContentT], content: ContentT) -> None:
        """Makes a content the durable one of a table. Raises NOT_DURABLE; then the table has the content before."""
        await self.write(partial(_replace, table, content))

    async def write(self, work: Work[ResultT]) -> ResultT:
        """Has the committing thread do some work in one transaction, and returns its result once it is durable.

        Raises:
            NOT_DURABLE: The disk did not take it, or another program holds the lock; nothing has changed.
        """
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._committed, work)

    async def read(self, work: Work[ResultT]) -> ResultT:
        """Has the reading thread do some work. Raises sqlite3.Error."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._read, work)

    async def watch(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Notes that a commit hangs, and tries whether a disk that refuses commits takes one. Runs until cancelled.

        A transaction whose commit failed may be in the log on disk; the next one that is taken overwrites it there.
        """
        while True:
            await sleep(PROBE_SECONDS)
            since = self._committing_since
            if since is not None and self._monotonic() - since > HANG_SECONDS:
                self._note_problem(f"a commit takes longer than {HANG_SECONDS:g} s")
            elif self.problem is not None:
                with suppress_refusals(Reason.NOT_DURABLE):
                    await self.write(_touch)

    async def close(self, deadline_seconds: float) -> None:
        """Waits for the work under way, and closes the file, unless a disk hangs. There must be no new work."""
        self._reader.shutdown(wait=False)
        closed = asyncio.get_running_loop().run_in_executor(self._writer, self._connection.close)
        self._writer.shutdown(wait=False)
        try:
            await asyncio.wait_for(asyncio.shield(closed), deadline_seconds)
        except (TimeoutError, sqlite3.Error):
            _log.warning("database_not_closed", file=str(self.path))

    def _committed(self, work: Work[ResultT]) -> ResultT:
        """Runs in the committing thread."""
        self._committing_since = self._monotonic()
        try:
            result = self._transact(work)
        except sqlite3.Error as error:
            self._note_problem(str(error))
            raise not_durable(str(error)) from error
        finally:
            self._committing_since = None
        if self.problem is not None:
            _log.info("database_takes_writes", file=str(self.path))
            self.problem = None
        return result

    def _note_problem(self, problem: str) -> None:
        # The path of the file is for the log only; callers must not see it.
        if self.problem is None:
            _log.error("database_refuses_writes", file=str(self.path), problem=problem)
        self.problem = problem

    def _transact(self, work: Work[ResultT]) -> ResultT:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            result = work(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return result

    def _read(self, work: Work[ResultT]) -> ResultT:
        """Runs in the reading thread. Each read has a connection of its own, which holds back no checkpoint later."""
        with closing(_connect(self.path, "ro")) as connection:
            return work(connection)


def format_epoch(millis: int) -> str:
    """An epoch: a number that orders the epochs of one name server, and a random part."""
    return f"{millis:0{_MILLIS_DIGITS}d}-{secrets.token_hex(4)}"


def _make(path: Path) -> None:
    """Makes the database of a first start under another name, so that a file of its own name is always whole."""
    if (log := path.with_name(f"{path.name}-wal")).exists() and log.stat().st_size:
        raise DataDirError(f"{path} is missing, but {log} is there: restore both, or move that one away")
    imported = read_rocketmq_kv_config(path.with_name(KV_CONFIG_FILE))
    new = path.with_name(f"{path.name}.new")
    for left_over in ("", "-journal", "-wal", "-shm"):
        disk.remove(new.with_name(f"{new.name}{left_over}"))
    with disk.open_new(new):  # for an error that says why it cannot
        pass
    with closing(_connect(new, "rw")) as connection:
        connection.executescript(
            f"PRAGMA synchronous = FULL; BEGIN; PRAGMA application_id = {APPLICATION_ID}; "
            f"PRAGMA user_version = {FORMAT}; {_SCHEMA}"
        )
        if imported is not None:
            _replace(KV_CONFIG, imported, connection)
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")
    disk.rename(new, path)
    disk.sync_folder_of(path)
    if imported is not None:
        keys = imported.key_count
        _log.info("kv_config_imported", file=str(path.with_name(KV_CONFIG_FILE)), keys=keys)


def _open(path: Path) -> sqlite3.Connection:
    """Opens a file that can be written and is whole. One that is not stays as it is, its log included."""
    _check_header(path)
    # A restored copy has no log but a journal, which a crash may leave. Only a writer can roll it back.
    has_journal = path.with_name(f"{path.name}-journal").exists()
    with closing(_connect(path, "rw" if has_journal else "ro")) as connection:
        _check_content(path, connection)
    connection = _connect(path, "rw")
    try:
        _begin_to_write(path, connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _begin_to_write(path: Path, connection: sqlite3.Connection) -> None:
    if (mode := _pragma(connection, "journal_mode = WAL")) != "wal":
        raise DataDirError(f"{path} is on a file system without shared memory (mode {mode}): use a local disk")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN IMMEDIATE")  # fails now where nothing can be written, rather than with a change
    connection.execute("ROLLBACK")


def _check_header(path: Path) -> None:
    """Whether a file is a name server's and of this format. SQLite would remove the log of an empty file.

    Raises DataDirError or OSError.
    """
    # SQLite does not say why it cannot open a file, and opens one that cannot be written for reading.
    descriptor = os.open(path, os.O_RDWR)
    try:
        header = os.pread(descriptor, 72, 0)
    finally:
        os.close(descriptor)
    can_be_written = header[18:20] in (b"\x01\x01", b"\x02\x02")  # without and with a log
    version, application_id = int.from_bytes(header[60:64], "big"), int.from_bytes(header[68:], "big")
    if not (header.startswith(_MAGIC) and can_be_written and application_id == APPLICATION_ID and version >= FORMAT):
        raise DataDirError(f"{path} is no database of a name server, or damaged; {_REMEDY}")
    if version > FORMAT:
        raise DataDirError(
            f"{path} has format {version}, of a newer version; this one reads format {FORMAT}: "
            "start the newer version, or restore a backup that was made before it ran"
        )


def _check_content(path: Path, connection: sqlite3.Connection) -> None:
    """Whether all that is stored can be read as it was written. Raises DataDirError, BrokenRows or sqlite3.Error."""
    if (problem := _pragma(connection, "quick_check(1)")) != "ok":
        raise DataDirError(f"{path} is damaged: {' '.join(str(problem).split())}; {_REMEDY}")
    with closing(sqlite3.connect(":memory:")) as empty:
        empty.executescript(_SCHEMA)
        if not _tables(empty) <= _tables(connection):
            raise DataDirError(f"{path} is damaged: its tables are not those of format {FORMAT}; {_REMEDY}")
    _check_rows(connection)


def _tables(connection: sqlite3.Connection) -> set[tuple[str, str]]:
    return set(connection.execute("SELECT name, sql FROM sqlite_master"))


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"file:{quote(os.fsencode(path.absolute()))}?mode={mode}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=LOCK_SECONDS)


def _pragma(connection: sqlite3.Connection, text: str) -> Any:
    return connection.execute(f"PRAGMA {text}").fetchone()[0]


def _unusable(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> DataDirError:
    """What an operator reads of an error of SQLite at the start."""
    # Python's own errors have no code: it cannot decode a text.
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    match code & 0xFF:
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_ERROR:
            return DataDirError(f"{path} is damaged: {' '.join(str(error).split())}; {_REMEDY}")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return DataDirError(f"{path}: {error}: end the other program that has it open")
        case sqlite3.SQLITE_PROTOCOL:
            return DataDirError(f"{path}: {error}: use a file system with locks, such as a local disk")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return DataDirError(f"{path}: {error}: give this process the right to write the file and its folder")
        case sqlite3.SQLITE_FULL:
            return DataDirError(f"{path}: {error}: make room on the disk")
        case _:
            return DataDirError(f"{path}: {error} (code {code}): check the disk")


def _check_rows(connection: sqlite3.Connection) -> None:
    """Checks all tables at once: a row may be damaged in the name of its table. Raises BrokenRows."""
    for name, key, value, checksum in connection.execute("SELECT name, key, value, checksum FROM durable"):
        if checksum != _checksum(name, key, value):
            raise BrokenRows(f"table {name}: the row {str(key)[:100]!r} does not match its checksum")


def _rows(connection: sqlite3.Connection, name: str) -> dict[str, str]:
    """The rows of a table, value by key."""
    return dict(connection.execute("SELECT key, value FROM durable WHERE name = ?", (name,)))


def _checksum(name: str, key: str, value: str) -> int:
    """SQLite finds damage to the structure of its file, but none to a text in it."""
    return zlib.crc32(f"{name}\0{key}\0{value}".encode())


def _replace(table: DurableTable[ContentT], content: ContentT, connection: sqlite3.Connection) -> None:
    before = _rows(connection, table.name)
    after = table.encode(content)
    gone = ((table.name, key) for key in before.keys() - after.keys())
    connection.executemany("DELETE FROM durable WHERE name = ? AND key = ?", gone)
    _put(connection, table.name, {key: value for key, value in after.items() if before.get(key) != value})


def _put(connection: sqlite3.Connection, name: str, rows: Mapping[str, str]) -> None:
    connection.executemany(
        "INSERT OR REPLACE INTO durable VALUES (?, ?, ?, ?)",
        ((name, key, value, _checksum(name, key, value)) for key, value in rows.items()),
    )


def _crashes(connection: sqlite3.Connection) -> int:
    rows = _rows(connection, _RUN)
    before = rows.get(_CRASHES, "0")
    return (int(before) if before.isdecimal() else 0) + (rows.get(_RUNNING) == "1")


def _begin_run(connection: sqlite3.Connection) -> None:
    _put(connection, _RUN, {_RUNNING: "1", _SNAPSHOT_COMPLETE: "0", _CRASHES: str(_crashes(connection))})


def _touch(connection: sqlite3.Connection) -> None:
    """Writes a page that stays as it is. SQLite does so for its header, but not for a row that does not change."""
    connection.execute(f"PRAGMA user_version = {FORMAT}")
