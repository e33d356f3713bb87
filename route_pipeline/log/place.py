"""The location of a route log: its tables, how they are created and opened, and the errors of both."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from route_pipeline.arrow_schemas import TIMESTAMP, arrow_schema
from route_pipeline.schemas import CHANGES

TABLE, HISTORY = "changes", "history"
"""Folders of a log: the table of all rows, and the stored history, which ``maintain --history`` makes."""

ROWS, READS, QUARANTINE = "changes", "reads", "quarantine"
"""Values of the partition column ``kind``."""

PARTITIONS = ["kind", "day"]

STATISTICS = (
    *("namesrv", "epoch", "revision", "changed_at", "table_name", "key", "topic", "cluster_name", "broker_name"),
    *("broker_addr", "ingested_at", "batch", "snapshot"),
)
"""Columns with statistics: those that questions filter by."""

FILE_SCHEMA = pa.schema(
    [
        *arrow_schema(CHANGES),
        pa.field("ingested_at", TIMESTAMP, nullable=False),
        pa.field("batch", pa.int64()),
        pa.field("problem", pa.string()),
    ]
)
"""The columns in a data file."""

SCHEMA = FILE_SCHEMA.append(pa.field("kind", pa.string())).append(pa.field("day", pa.date32()))
"""The columns of the table."""

_CONFIGURATION = {
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 7 days",
    "delta.dataSkippingStatsColumns": ",".join(STATISTICS),
}
_SCHEMES = ("s3://", "s3a://", "gs://", "abfss://", "abfs://", "az://")
_PATIENCE = {"retry_timeout": "30s", "max_retries": "5"}
"""Of a bucket's client. Its own default is to try again for three minutes before it says why."""
_MAX_LENGTH = 300
_PROBE = ".probe-"


class LogError(Exception):
    """The log cannot be used as it is; the text is one line."""


class StoreError(LogError):
    """The log cannot be reached or written to at this moment; another try may succeed."""


def one_line(error: BaseException) -> str:
    """The text of an error of delta-rs, without colours and frames of its stack."""
    text = re.sub(r"\x1b\[[0-9;]*m|↳", "", str(error).partition("\n\nSource")[0])
    text = re.sub(r"\b\d+: (<unknown>|\S+ at \S+).*", "", text, flags=re.DOTALL)
    return " ".join(text.split())[:_MAX_LENGTH] or type(error).__name__


class Place:
    """The folder or the prefix of a bucket that a log is in."""

    def __init__(self, url: str, options: Mapping[str, str] | None = None) -> None:
        """Looks at the address, a path or a URL of S3, GCS or Azure, only. Raises LogError if no log can be there.

        ``options`` are what the store needs to be told, in the words of delta-rs; the environment has the others.
        """
        path = url.removeprefix("file://").removeprefix("file:") if url.startswith("file:") else url
        if "://" in path and (not path.startswith(_SCHEMES) or not path.partition("://")[2].strip("/")):
            raise LogError(f"{url} is no path and no URL of a bucket: a log is on a disk, s3://, gs:// or abfss://")
        self.local = None if "://" in path else Path(path).resolve()
        self.url = str(self.local) if self.local else path.rstrip("/")
        self.options = {**({} if self.local else _PATIENCE), **(options or {})}

    @property
    def table(self) -> str:
        """Address of the table of all rows."""
        return f"{self.url}/{TABLE}"

    def open(self) -> DeltaTable:
        """The table. Raises LogError if there is none, or it cannot be read."""
        try:
            table = DeltaTable(self.table, storage_options=self.options or None)
        except TableNotFoundError:
            raise LogError(f"{self.url} has no route log") from None
        except Exception as error:  # noqa: BLE001 - one broken table raises OSError, DeltaError or ValueError
            raise StoreError(f"{self.url} cannot be opened: {one_line(error)}") from None
        missing = set(STATISTICS) - {field.name for field in table.schema().fields}
        if missing:
            raise LogError(f"{self.table} is another table: it has no column {min(missing)}")
        return table

    def open_or_create(self) -> DeltaTable:
        """The table, made if there is none. Raises LogError if it cannot be written to."""
        if self.local is not None:
            self._probe(self.local)
            self._repair(self.local)
        with failures(f"{self.url} cannot be written to"):
            if not self._is_there():
                self._create()
        return self.open()

    def filesystem(self) -> pafs.FileSystem:
        """The table's folder, for files that are read and written whole, by the thread that asks.

        That of a bucket is Python code: a thread of Arrow that calls it while Python ends aborts the program.
        """
        if self.local is not None:
            return pafs.SubTreeFileSystem(self.table, pafs.LocalFileSystem())
        return pafs.PyFileSystem(DeltaStorageHandler(self.table, self.options or None))

    def read(self, path: str) -> bytes:
        """The content of a file of the table. Raises LogError."""
        with failures(f"{self.table}/{path} cannot be read"), self.filesystem().open_input_file(path) as file:
            return bytes(file.read())

    def files(self, table: DeltaTable) -> list[str]:
        """The paths of the files of a table. Raises LogError if one of them is missing on a disk, or was cut."""
        adds = pa.table(table.get_add_actions()).select(["path", "size_bytes"]).to_pylist()
        for add in adds if self.local is not None else ():
            path, size = Path(self.table, add["path"]), add["size_bytes"]
            there = path.stat().st_size if path.exists() else None
            if there != size:
                problem = "is missing" if there is None else f"was cut: it has {there:,} bytes and not {size:,}"
                raise LogError(f"{path} {problem}")
        return [add["path"] for add in adds]

    def _create(self) -> None:
        try:
            DeltaTable.create(
                self.table,
                SCHEMA,
                mode="error",
                partition_by=PARTITIONS,
                name="routes",
                description="Routes of name servers: snapshots, every change, and what the reader says of its reads.",
                configuration=dict(_CONFIGURATION),
                storage_options=self.options or None,
                raise_if_key_not_exists=False,
            )
        except (DeltaError, OSError):
            # Another writer may have made it at the same time.
            if not self._is_there():
                raise

    def _is_there(self) -> bool:
        return DeltaTable.is_deltatable(self.table, storage_options=self.options or None)

    def _probe(self, folder: Path) -> None:
        """Tries what a commit needs, a hard link, before anything is read."""
        if folder.is_dir():
            others = [one.name for one in folder.iterdir() if one.name not in (TABLE, HISTORY)]
            if any(not name.startswith(_PROBE) for name in others):
                raise LogError(f"{self.url} holds something else than a route log")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            first, second = (folder / f"{_PROBE}{secrets.token_hex(8)}" for _ in range(2))
            try:
                first.write_bytes(b"probe")
                os.link(first, second)
            finally:
                first.unlink(missing_ok=True)
                second.unlink(missing_ok=True)
        except OSError as error:
            hint = " (the file system has no hard links)" if error.errno in (errno.EPERM, errno.EOPNOTSUPP) else ""
            raise LogError(f"{self.url} cannot be written to: {error.strerror}{hint}") from None

    def _repair(self, folder: Path) -> None:
        """Moves a last commit away that a stopped machine left truncated.

        delta-rs does not sync its commits. The log does, and reports a batch only then. So nobody knows of this batch,
        and its rows are read again.
        """
        commits = sorted((folder / TABLE / "_delta_log").glob("[0-9]*.json"))
        if commits and not _is_whole(commits[-1]):
            commits[-1].replace(commits[-1].with_suffix(".broken"))


def _is_whole(commit: Path) -> bool:
    try:
        lines = [json.loads(line) for line in commit.read_bytes().splitlines()]
    except ValueError:
        return False
    return bool(lines) and all(isinstance(line, dict) for line in lines)


def sync(*paths: Path) -> None:
    """Has the disk hold files and folders, as delta-rs and Arrow do not."""
    for path in paths:
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


@contextmanager
def failures(what: str) -> Iterator[None]:
    """Converts errors of delta-rs and Arrow into one line."""
    try:
        yield
    except LogError:
        raise
    except (DeltaError, pa.ArrowException, OSError, ValueError) as error:
        raise StoreError(f"{what}: {one_line(error)}") from None
