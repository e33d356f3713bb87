"""The folder that ingests are kept in.

::

    DIR/route_pipeline.json                     says that the folder is ours, and the version of its layout
    DIR/topic_queues/ingest_id=ID/*.parquet     one folder for each table and ingest
    DIR/brokers/ingest_id=ID/*.parquet
    DIR/clusters/ingest_id=ID/*.parquet
    DIR/snapshots/ingest_id=ID/*.parquet        appears last: what is here is whole
    DIR/_work/ID/                               an ingest under way; Spark and Arrow pass over such names

A table's part of an ingest appears by renaming a folder that is already complete, and an ingest counts once its part
of ``snapshots`` is there. The name server is a column, not a folder: Spark would guess a type from a folder's name, and
each ingest would be many small files.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from route_pipeline.schemas import ROW_COLUMNS, SNAPSHOTS

LAYOUT_VERSION = 1
"""Version of the layout above."""

_MARKER = "route_pipeline.json"
_WORK = "_work"
_INGEST_PREFIX = "ingest_id="
_PATTERN_CHARACTERS = re.compile(r"[*?\[\]{}\\]")


class StoreError(Exception):
    """The folder cannot be used as asked; the text is one line."""


class RouteStore:
    """A folder of ingests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, folder: Path) -> RouteStore:
        """Takes a folder that is ours, empty, or not there yet.

        Raises:
            StoreError: It holds something else, or cannot be written to.
        """
        _check_name(folder)
        store = cls(folder.absolute())
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                store._check_marker()
            else:
                (folder / _MARKER).write_text(json.dumps({"layout_version": LAYOUT_VERSION}) + "\n", encoding="utf-8")
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

    def ingest_ids(self) -> list[str]:
        """Ids of the whole ingests, oldest first."""
        folders = (self.folder / SNAPSHOTS).glob(f"{_INGEST_PREFIX}*")
        return sorted(folder.name.removeprefix(_INGEST_PREFIX) for folder in folders)

    def latest_ingest_id(self) -> str:
        """Id of the latest whole ingest.

        Raises:
            StoreError: There is none.
        """
        ids = self.ingest_ids()
        if not ids:
            raise StoreError(f"{self.folder} has no ingest yet")
        return ids[-1]

    def table_folder(self, table: str, ingest_id: str) -> Path:
        """Where a table's part of an ingest is."""
        return self.folder / table / f"{_INGEST_PREFIX}{ingest_id}"

    @contextmanager
    def new_ingest(self, at: datetime) -> Iterator[IngestInProgress]:
        """A new ingest. What it has not committed when the block is left is removed.

        Args:
            at: The time of the ingest, with its time zone; ids sort by it.

        Raises:
            StoreError: The folder cannot be written to, or there is an ingest of the same microsecond.
        """
        ingest_id = at.astimezone(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        work = self.folder / _WORK / ingest_id
        try:
            work.mkdir(parents=True)
        except OSError as error:
            raise StoreError(f"{work} cannot be made: {error.strerror}") from error
        try:
            yield IngestInProgress(self, ingest_id, work)
        finally:
            shutil.rmtree(work, ignore_errors=True)

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


class IngestInProgress:
    """An ingest that nobody sees yet."""

    def __init__(self, store: RouteStore, ingest_id: str, work: Path) -> None:
        self._store = store
        self._work = work
        self.ingest_id = ingest_id

    def folder(self, name: str) -> Path:
        """Where to write a table, or anything else that may go when the ingest is done."""
        return self._work / name

    def commit(self) -> None:
        """Makes the ingest visible.

        Raises:
            StoreError: A table could not be moved to its place; nothing of the ingest is visible.
        """
        moved: list[Path] = []
        try:
            # ROW_COLUMNS ends with snapshots, whose part makes the ingest count.
            for table in ROW_COLUMNS:
                target = self._store.table_folder(table, self.ingest_id)
                target.parent.mkdir(exist_ok=True)
                self.folder(table).rename(target)
                moved.append(target)
        except BaseException as error:
            for target in moved:
                shutil.rmtree(target, ignore_errors=True)
            if isinstance(error, OSError):
                raise StoreError(f"ingest {self.ingest_id} cannot be moved to its place: {error.strerror}") from error
            raise


def _check_name(folder: Path) -> None:
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", str(folder)):
        raise StoreError(f"{folder} is a URL; name a folder that this machine and all of Spark's can reach")
    if _PATTERN_CHARACTERS.search(str(folder)):
        raise StoreError(f"{folder} has one of * ? [ ] {{ }} \\ in its name, which Spark takes for a pattern")
