"""The change log on a store, as readers find it.

::

    LOG/route_pipeline.json             says that the place is a log's, its id, and the version of its format
    LOG/_commits/NUMBER.json            the commits: a file is of the log if and only if they say so
    LOG/_checkpoints/NUMBER.json        what the commits up to this one add up to, but for the files
    LOG/_checkpoints/NUMBER.parquet     the files that they add up to
    LOG/data/DATE/*.parquet             files of rows, under their last names from the start
    LOG/delta/                          the change log as a Delta table, where that is asked for

NUMBER has 20 digits. Nothing is renamed and nothing is locked, so the store may be any that can make a file only if
there is none of that name.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection
from functools import partial
from os import PathLike
from pathlib import Path

import pyarrow as pa

from route_pipeline.log.protocol import commits, file_list, state
from route_pipeline.log.protocol.commits import CHANGES, Commit, DataFile, LogError
from route_pipeline.log.protocol.file_list import FileList
from route_pipeline.log.protocol.state import LogState
from route_pipeline.stores.local import LocalStore
from route_pipeline.stores.remote import RemoteStore
from route_pipeline.stores.store import MissingFileError, Store, StoreError
from route_pipeline.stores.urls import open_store

MARKER = "route_pipeline.json"
CHECKPOINTS = "_checkpoints"

_FIRST_BLOCK, _LARGEST_BLOCK = 4, 32
"""How many commits are asked for at once: few at first, as mostly there is none that is new."""


class RouteLog:
    """A log, opened to read from."""

    def __init__(self, store: Store, log_id: str) -> None:
        self.store = store
        self.id = log_id

    @property
    def url(self) -> str:
        return self.store.url

    @classmethod
    def create(cls, place: str | PathLike[str]) -> RouteLog:
        """Opens a log, or makes one where nothing is yet. Raises StoreError, also if something else is there."""
        store = open_store(place)
        try:
            return cls._of_marker(store)
        except MissingFileError:
            pass
        if store.files():
            raise StoreError(f"{store.url} holds something else: it has no {MARKER}")
        _check_not_inside_a_log(store)
        marker = {"format": commits.FORMAT, "layout_version": commits.VERSION, "log": secrets.token_hex(8)}
        store.create(MARKER, f"{json.dumps(marker)}\n".encode())
        return cls._of_marker(store)  # another process may have been faster

    @classmethod
    def open(cls, place: str | PathLike[str]) -> RouteLog:
        """Opens a log. Raises StoreError if there is none."""
        store = open_store(place)
        if isinstance(store, LocalStore) and not store.root.is_dir():
            raise StoreError(f"{store.url} is not a folder")
        try:
            return cls._of_marker(store)
        except MissingFileError:
            raise StoreError(f"{store.url} holds something else: it has no {MARKER}") from None

    @classmethod
    def _of_marker(cls, store: Store) -> RouteLog:
        try:
            marker = json.loads(store.read(MARKER))
            version = marker["layout_version"]
        except (ValueError, KeyError, TypeError):
            raise LogError(f"{store.uri(MARKER)} is damaged") from None
        if version != commits.VERSION:
            raise LogError(f"{store.url} has layout version {version}; this program knows {commits.VERSION}")
        if not isinstance(marker.get("log"), str):
            raise LogError(f"{store.uri(MARKER)} is damaged")
        return cls(store, marker["log"])

    def state(self, known: LogState | None = None) -> LogState:
        """What the log holds now.

        Args:
            known: What was known before, which is brought up to date; None: nothing.

        Raises:
            LogError: A commit is missing, cut, changed, or of another log.
        """
        found = self._newest_checkpoint() if known is None else known
        block = _FIRST_BLOCK
        while new := self.commits_after(found.number, block):
            for commit in new:
                found.apply(commit)
            block = min(2 * block, _LARGEST_BLOCK)
        return found

    def commits_after(self, number: int, most: int) -> list[Commit]:
        """The commits after one, some at once; none if there is none. Raises LogError for a damaged one."""
        numbers = range(number + 1, number + 1 + most)
        contents = self.store.read_many([commit_path(one) for one in numbers])
        if None in contents and any(contents[contents.index(None) :]):
            # The later ones may have been made while these were read.
            contents = self.store.read_many([commit_path(one) for one in numbers])
        found: list[Commit] = []
        for one, content in zip(numbers, contents, strict=True):
            if content is None:
                if any(contents[one - number :]):
                    raise LogError(f"{self.store.uri(commit_path(one))} is missing, and later commits are there")
                break
            found.append(self._commit(one, content))
        return found

    def check_not_empty(self, found: LogState) -> None:
        """Checks that there is something to read. Raises StoreError if there is no ingest yet."""
        if found.batch < 0 and not found.files:
            raise StoreError(f"{self.url} has no ingest yet")

    def check_files(self, found: LogState, tables: Collection[str] = (CHANGES,)) -> None:
        """Checks that data files are there with the sizes that they were written with. It lists them, and reads none.

        Args:
            found: What the log holds; it is brought up to date if something looks wrong.

        Raises:
            LogError: A file is missing, or was cut or changed.
        """
        files = [file for file in found.files.values() if file.table in tables]
        folders = sorted({file.path.partition("/")[0] for file in files})
        sizes = {one.path: one.size for folder in folders for one in self.store.files(folder)}
        wrong = [file for file in files if sizes.get(file.path) != file.size]
        if not wrong:
            return
        there = self.state(found).files  # another process may have replaced them since
        for file in wrong:
            if file.path in there:
                raise _damage(self.store, file, sizes.get(file.path))

    def _commit(self, number: int, content: bytes) -> Commit:
        name = self.store.uri(commit_path(number))
        commit = commits.from_json(name, number, commits.decode(name, number, content))
        if commit.log != self.id:
            raise LogError(f"{name} is of another log: two are in one place")
        return commit

    def _newest_checkpoint(self, before: int | None = None) -> LogState:
        """The newest checkpoint that can be read; they only save time. None: the state before the first commit."""
        listed = [Path(file.path) for file in self.store.files(CHECKPOINTS)]
        for path in reversed([path for path in listed if path.suffix == ".json"]):
            try:
                number = int(path.stem)
                if before is not None and number >= before:
                    continue
                body = commits.decode(str(path), number, self.store.read(str(path)))
                if body["log"] == self.id:
                    sha256 = str(body["files_sha256"])
                    return state.from_json(str(path), number, body, FileList(partial(self._files_at, number, sha256)))
            except (LogError, MissingFileError, ValueError, KeyError):
                continue
        return LogState()

    def _files_at(self, number: int, sha256: str) -> pa.Table:
        """The files of a checkpoint; of its commits, if they are damaged or newer checkpoints have taken its place."""
        path = checkpoint_files_path(number)
        try:
            return file_list.decode(path, sha256, self.store.read(path))
        except (LogError, MissingFileError):
            found = self._newest_checkpoint(before=number)
            while found.number < number:
                some = self.commits_after(found.number, min(_LARGEST_BLOCK, number - found.number))
                if not some:
                    raise LogError(f"{self.store.uri(commit_path(found.number + 1))} is missing") from None
                for commit in some:
                    found.apply(commit)
            return found.file_list.table()


def commit_path(number: int) -> str:
    return f"_commits/{number:020d}.json"


def checkpoint_path(number: int) -> str:
    return f"{CHECKPOINTS}/{number:020d}.json"


def checkpoint_files_path(number: int) -> str:
    return f"{CHECKPOINTS}/{number:020d}.parquet"


def files(place: str | PathLike[str], table: str = CHANGES) -> list[str]:
    """The files that a log has at this moment, for Spark, Arrow, DuckDB or pandas.

    Args:
        place: Path or URL of the log.
        table: ``changes``, ``quarantine`` or ``history``.

    Returns:
        Their paths or URLs. They stay for a day after they were compacted, so read them soon.

    Raises:
        StoreError: There is no log, or it cannot be read.
    """
    log = RouteLog.open(place)
    return [log.store.uri(file.path) for file in log.state().files_of(table)]


def _damage(store: Store, file: DataFile, size: int | None) -> LogError:
    if size is None:
        return LogError(f"{store.uri(file.path)} is missing, and the log has rows in it")
    return LogError(commits.was_cut(store.uri(file.path), size, file.size))


def _check_not_inside_a_log(store: Store) -> None:
    parents: list[Store] = []
    if isinstance(store, LocalStore):
        parents += [LocalStore(parent) for parent in store.root.parents]
    elif isinstance(store, RemoteStore):
        root = store.root
        while "/" in root:
            root = root.rpartition("/")[0]
            parents.append(RemoteStore(store.scheme, root))
    for parent in parents:
        try:
            parent.read(MARKER)
        except StoreError:
            continue
        raise StoreError(f"{store.url} is inside the log {parent.url}")
