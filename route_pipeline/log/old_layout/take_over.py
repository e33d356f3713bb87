"""The takeover of a log of the old layout, a folder that had no commits: its files stay where they are.

One commit names them all, with the summaries and the position that Spark's checkpoint had. Until the marker is
replaced, which is one step, the folder is an old log as before; from then on it is a new one. So it may be killed at
any step, and begun again.
"""

from __future__ import annotations

import fcntl
import json
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from groundwork import disk
from groundwork.version import __version__
from route_pipeline.log.old_layout.old_swap import finish_replacing
from route_pipeline.log.protocol import commits
from route_pipeline.log.protocol.commits import (
    CHANGES,
    HISTORY,
    QUARANTINE,
    RETENTION,
    TAKE_OVER,
    Commit,
    DataFile,
    Writer,
)
from route_pipeline.log.protocol.route_log import MARKER, OLD_LAYOUT, RouteLog, commit_path
from route_pipeline.log.protocol.summaries import Summary
from route_pipeline.stores.local import LocalStore
from route_pipeline.stores.store import StoreError
from route_pipeline.stores.urls import open_store

_COMPACTED, _LASTING = "run=compacted", "run=lasting"
_NO_LONGER_NEEDED = ("ingests", "_checkpoint", "_work")


def take_over(place: str | PathLike[str]) -> RouteLog:
    """Makes a log of the old layout one of the new.

    Args:
        place: Path of the old log, which no program may read or write meanwhile.

    Returns:
        The log; its state says what was found.

    Raises:
        StoreError: There is none, a program of the old version writes to it, or it cannot be written to.
    """
    store = open_store(place)
    if not isinstance(store, LocalStore):
        raise StoreError(f"{store.url} is no folder: logs of the old layout are on file systems only")
    root = store.root
    try:
        if _version(root) == OLD_LAYOUT:
            with _no_other_writer(root):
                finish_replacing(root / "changes", root / "_work")
                for left in ("_commits", "_checkpoints"):
                    shutil.rmtree(root / left, ignore_errors=True)
                log_id = secrets.token_hex(8)
                commit = _first_commit(root, log_id)
                body = commits.encode(commit.number, commits.to_json(commit))
                store.create(commit_path(commit.number), body)
                _replace_marker(root, log_id)
        log = RouteLog.open(place)
    except OSError as error:
        raise StoreError(f"{root} cannot be taken over: {error.strerror or error}") from error
    for left in _NO_LONGER_NEEDED:
        shutil.rmtree(root / left, ignore_errors=True)
    return log


def _version(root: Path) -> Any:
    """The version of a folder's layout; None: RouteLog says what is wrong with it."""
    try:
        return json.loads((root / MARKER).read_text(encoding="utf-8"))["layout_version"]
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def _no_other_writer(root: Path) -> Iterator[None]:
    """Holds the lock that programs of the old version take."""
    (root / "_work").mkdir(exist_ok=True)
    (root / "changes").mkdir(exist_ok=True)
    with (root / "_work" / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(f"another ingest or compaction is writing to {root}") from None
        yield


def _first_commit(root: Path, log_id: str) -> Commit:
    summaries = _summaries(root)
    run, batch, position = _position(root)
    return Commit(
        number=1,
        log=log_id,
        kind=TAKE_OVER,
        at=datetime.now(UTC),
        writer=Writer(secrets.token_hex(8), 1, socket.gethostname(), f"namesrv {__version__}"),
        add=tuple(_files(root)),
        run=run,
        batch=batch,
        position=position,
        summaries=tuple(summaries),
    )


def _files(root: Path) -> Iterator[DataFile]:
    """The files of whole batches: those that have a summary. Others are read again from their name server."""
    for table in (CHANGES, QUARANTINE):
        for batch in sorted((root / table).glob("date=*/run=*/batch_id=*")):
            run, day = batch.parent.name, batch.parent.parent.name
            if run in {_COMPACTED, _LASTING} or (root / "ingests" / run / f"{batch.name}.parquet").exists():
                made_by = RETENTION if run == _LASTING else TAKE_OVER
                for file in sorted(batch.glob("*.parquet")):
                    yield _file(root, file, table, day.removeprefix("date="), made_by)
    for file in sorted((root / HISTORY).glob("*.parquet")):
        yield _file(root, file, HISTORY, "", TAKE_OVER)


def _file(root: Path, file: Path, table: str, date: str, made_by: str) -> DataFile:
    try:
        rows = pq.read_metadata(file).num_rows
    except pa.ArrowInvalid as error:
        raise StoreError(f"{file} is damaged: {str(error).splitlines()[0]}") from error
    return DataFile(file.relative_to(root).as_posix(), table, date, rows, file.stat().st_size, made_by)


def _summaries(root: Path) -> list[Summary]:
    found: list[Summary] = []
    for path in root.glob("ingests/run=*/batch_id=*.parquet"):
        rows = pq.ParquetFile(path).read().to_pylist()
        found += [Summary(**{name: row[name] for name in Summary.__dataclass_fields__}) for row in rows]
    return sorted(found, key=lambda summary: (summary.ingested_at, summary.run, summary.batch_id, summary.namesrv))


def _position(root: Path) -> tuple[str, int, Any]:
    """Run and number of the last whole batch, and what Spark noted as its end; None: a snapshot has to be read."""
    run = max((folder.name for folder in (root / "_checkpoint").glob("*")), default="")
    numbers = [int(path.stem.removeprefix("batch_id=")) for path in (root / "ingests" / f"run={run}").glob("*.parquet")]
    if not numbers:
        return "", 0, None
    try:
        offsets = (root / "_checkpoint" / run / "offsets" / str(max(numbers))).read_text(encoding="utf-8")
        return run, max(numbers), json.loads(offsets.splitlines()[-1])
    except (FileNotFoundError, ValueError, IndexError):
        return "", 0, None


def _replace_marker(root: Path, log_id: str) -> None:
    part = root / f".{MARKER}.part"
    marker = {"format": commits.FORMAT, "layout_version": commits.VERSION, "log": log_id}
    with disk.open_new(part) as stream:
        disk.write(stream, part, f"{json.dumps(marker)}\n".encode())
        disk.sync(stream, part)
    disk.rename(part, root / MARKER)
    disk.sync_folder_of(root / MARKER)
