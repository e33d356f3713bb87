"""The files of a log, as a checkpoint keeps them: a Parquet object of its own, read only by those who ask for files.

A log has hundreds of thousands of files. An ingest needs none of them to append, so it must not read their names.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from route_pipeline.arrow_schemas import LONG, STRING, TIMESTAMP
from route_pipeline.log.protocol.commits import Commit, DataFile, LogError, Span

_SPANS = pa.list_(pa.struct([("namesrv", STRING), ("epoch", STRING), ("first", LONG), ("last", LONG)]))
_REMOVED_AT = "removed_at"
SCHEMA = pa.schema(
    [
        ("path", STRING),
        ("table", STRING),
        ("date", STRING),
        ("rows", LONG),
        ("size", LONG),
        ("made_by", STRING),
        ("spans", _SPANS),
        (_REMOVED_AT, TIMESTAMP),
    ]
)
"""The columns of the object: those of a file's entry in a commit, and when it was removed; null: it is of the log."""


class FileList:
    """The files of a log, and those that were removed and are still in the store.

    It begins with the files of a checkpoint, which are fetched when they are first asked for, and goes on by commits.
    """

    def __init__(self, fetch: Callable[[], pa.Table] | None = None) -> None:
        """Fetches nothing yet. ``fetch`` gives the files of the checkpoint, in columns; None: there is none."""
        self._fetch = fetch or SCHEMA.empty_table
        self._base: pa.Table | None = None
        self._since: list[Commit] = []
        self._there: dict[str, DataFile] = {}
        self._removed: dict[str, datetime] = {}
        self._named = fetch is None
        """Whether there is an object for each file."""

    @property
    def there(self) -> dict[str, DataFile]:
        """The files of the log, by path. Raises StoreError if they cannot be read, or a commit does not follow."""
        self._name_all()
        return self._there

    @property
    def removed(self) -> dict[str, datetime]:
        """Files that were removed and are still in the store, with when. Raises StoreError as ``there`` does."""
        self._name_all()
        return self._removed

    def apply(self, commit: Commit) -> None:
        """Takes the next commit in.

        Raises:
            LogError: It cannot follow on what is known; seen at once only if the files have been asked for.
        """
        if self._named:
            self._apply(commit)
        self._since.append(commit)

    def table(self) -> pa.Table:
        """All of it in columns, for the next checkpoint, without an object for each file. Raises StoreError."""
        base = self._checkpoint_files()
        added: dict[str, DataFile] = {}
        gone: dict[str, datetime | None] = {}
        for commit in self._since:
            added |= {file.path: file for file in commit.add}
            gone |= dict.fromkeys(commit.remove, commit.at) | dict.fromkeys(commit.forget)
        rows = [_row(file) for path, file in added.items() if path not in gone]
        # Of a file that was removed, its name is all that is needed.
        rows += [{"path": path, _REMOVED_AT: at} for path, at in gone.items() if at]
        if gone:
            base = base.filter(pc.invert(pc.is_in(base["path"], pa.array(gone, STRING))))
        return pa.concat_tables([base, pa.Table.from_pylist(rows, SCHEMA)]).combine_chunks()

    def go_on_from(self, table: pa.Table) -> None:
        """Takes a new checkpoint's files as what to begin with: the commits up to it are no longer needed."""
        self._base = table
        self._since.clear()

    def _checkpoint_files(self) -> pa.Table:
        if self._base is None:
            self._base = self._fetch()
        return self._base

    def _name_all(self) -> None:
        if self._named:
            return
        base = self._checkpoint_files()
        of_log = pc.is_null(base[_REMOVED_AT])
        self._there = _objects(base.filter(of_log))
        old = base.filter(pc.invert(of_log))
        self._removed = dict(zip(old["path"].to_pylist(), old[_REMOVED_AT].to_pylist(), strict=True))
        for commit in self._since:
            self._apply(commit)
        self._named = True

    def _apply(self, commit: Commit) -> None:
        for path in commit.remove:
            if self._there.pop(path, None) is None:
                raise LogError(f"commit {commit.number} removes {path}, which is not there")
            self._removed[path] = commit.at
        for file in commit.add:
            if file.path in self._there:
                raise LogError(f"commit {commit.number} adds {file.path} again")
            self._there[file.path] = file
        for path in commit.forget:
            self._removed.pop(path, None)


def encode(files: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(files, sink, compression="zstd")
    return sink.getvalue()


def digest(content: bytes) -> str:
    """The checksum by which a checkpoint knows its object."""
    return hashlib.sha256(content).hexdigest()


def decode(name: str, sha256: str, content: bytes) -> pa.Table:
    """The files of an object. It may have more columns than this program knows. Raises LogError if it was changed."""
    if digest(content) != sha256:
        raise LogError(f"{name} was cut or changed after it was written: its checksum is another one")
    try:
        return pq.read_table(io.BytesIO(content)).select(SCHEMA.names).cast(SCHEMA)
    except (KeyError, ValueError, pa.ArrowException) as error:
        raise LogError(f"{name} cannot be read: {str(error).partition(chr(10))[0]}") from None


def _row(file: DataFile) -> dict[str, Any]:
    spans = [{"namesrv": one.namesrv, "epoch": one.epoch, "first": one.first, "last": one.last} for one in file.spans]
    names = ("path", "table", "date", "rows", "size", "made_by")
    return {name: getattr(file, name) for name in names} | {"spans": spans}


def _objects(rows: pa.Table) -> dict[str, DataFile]:
    columns = [rows[name].to_pylist() for name in ("path", "table", "date", "rows", "size", "made_by")]
    spans = rows["spans"].combine_chunks()
    flat = spans.flatten()
    each = [Span(*values) for values in zip(*(column.to_pylist() for column in flat.flatten()), strict=True)]
    counts = spans.value_lengths().fill_null(0).to_pylist()
    files: dict[str, DataFile] = {}
    end = 0
    for path, table, date, lines, size, made_by, count in zip(*columns, counts, strict=True):
        files[path] = DataFile(path, table, date, lines, size, made_by, tuple(each[end : end + count]))
        end += count
    return files
