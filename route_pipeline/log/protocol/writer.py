"""A writer of a log: it makes the next commit, and finds out if another was faster or has taken its place."""

from __future__ import annotations

import secrets
import socket
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from groundwork.version import __version__
from route_pipeline.log.protocol import commits, file_list, state
from route_pipeline.log.protocol.commits import BATCH, Commit, DataFile, Writer
from route_pipeline.log.protocol.route_log import (
    CHECKPOINTS,
    RouteLog,
    checkpoint_files_path,
    checkpoint_path,
    commit_path,
)
from route_pipeline.log.protocol.summaries import Summary
from route_pipeline.stores.store import MissingFileError, StoreError, StoreUnavailableError, check_creates_once

CHECKPOINT_EVERY = 100
"""Commits from one checkpoint to the next: a start reads one checkpoint and fewer commits than this."""
KEPT_CHECKPOINTS = 3
"""A reader that has just listed them finds what it listed."""
ATTEMPTS = 4
LONGEST_WAIT_SECONDS = 2.0
"""Longest wait before a commit is tried again whose answer was lost or that the store refused."""


class ReplacedError(StoreError):
    """Another writer appends to the log, and this one must end. The text is one line."""


class ConflictError(StoreError):
    """Files that a commit was to replace were replaced by another; nothing has changed. The text is one line."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What a batch brought."""

    run: str
    number: int
    position: Mapping[str, Any]
    summaries: tuple[Summary, ...]


class LogWriter:
    """One process that writes to a log. Others may, too: of two that append batches, one ends."""

    def __init__(self, log: RouteLog) -> None:
        """Reads what the log holds.

        Raises:
            StoreError: The log is damaged, or the store cannot make a file only if there is none of that name.
        """
        self.log = log
        self._opened = time.monotonic()
        self._opened_at = check_creates_once(log.store)
        self.state = log.state()
        self._me = Writer(secrets.token_hex(8), self.state.epoch + 1, socket.gethostname(), f"namesrv {__version__}")
        self._last = self._last_batch()

    @property
    def store_time(self) -> datetime:
        """The time by the store's clock, which is the same for all that write to it; S3 tells whole seconds."""
        return self._opened_at + timedelta(seconds=time.monotonic() - self._opened)

    def catch_up(self) -> None:
        """Takes in what others have committed, and batches of this writer of which all answers were lost.

        Raises:
            LogError: The log is damaged.
            StoreUnavailableError: It cannot be read now.
        """
        self.log.state(self.state)
        if self.state.writer == self._me.id:
            self._last = self._last_batch()

    def append_batch(self, batch: Batch, add: Sequence[DataFile]) -> Commit:
        """Commits a batch.

        Raises:
            ReplacedError: Another writer has appended one meanwhile.
            StoreError: It could not be written.
        """
        return self._append(BATCH, add, (), (), batch)

    def append(
        self, kind: str, *, add: Sequence[DataFile] = (), remove: Sequence[str] = (), forget: Sequence[str] = ()
    ) -> Commit:
        """Commits something that leaves the position as it is.

        Raises:
            ConflictError: A file to be removed is no longer there.
            StoreError: It could not be written.
        """
        return self._append(kind, add, remove, forget, None)

    def _append(
        self, kind: str, add: Sequence[DataFile], remove: Sequence[str], forget: Sequence[str], batch: Batch | None
    ) -> Commit:
        self._check_there(add)
        while True:
            self._check_may(remove, batch)
            self._write_checkpoint()
            commit = Commit(
                number=self.state.number + 1,
                log=self.log.id,
                kind=kind,
                at=self.store_time,
                writer=self._me if batch else Writer(self._me.id, self.state.epoch, self._me.host, self._me.program),
                add=tuple(add),
                remove=tuple(remove),
                forget=tuple(forget),
                run=batch.run if batch else "",
                batch=batch.number if batch else 0,
                position=batch.position if batch else None,
                summaries=batch.summaries if batch else (),
            )
            if self._create(commit_path(commit.number), commits.encode(commit.number, commits.to_json(commit))):
                self.state.apply(commit)
                self._last = self._last_batch()
                return commit
            self.catch_up()

    def _last_batch(self) -> tuple[str, int]:
        return self.state.run, self.state.batch

    def _check_may(self, remove: Sequence[str], batch: Batch | None) -> None:
        if batch and (self._last_batch() != self._last or self.state.epoch > self._me.epoch):
            raise ReplacedError(
                f"another ingest, on {self.state.host}, writes to {self.log.url}: this one ends, and nothing of its "
                "last batch is in the log"
            )
        if gone := [path for path in remove if path not in self.state.files]:
            raise ConflictError(f"{self.log.url}: {gone[0]} was replaced by another process meanwhile")

    def _check_there(self, add: Sequence[DataFile]) -> None:
        """Looks for the files that tasks wrote: one that wrote to a folder of its own machine would lose rows."""
        for file in add:
            try:
                size = self.log.store.info(file.path).size
            except MissingFileError:
                raise StoreError(
                    f"{self.log.store.uri(file.path)} was written and is not there: is it one place for all of Spark's "
                    "machines?"
                ) from None
            if size != file.size:
                raise StoreUnavailableError(f"{self.log.store.uri(file.path)} has {size} bytes of {file.size}")

    def _create(self, path: str, content: bytes) -> bool:
        """Makes an object; a lost answer is told from a lost race by what the object holds."""

        def attempt() -> bool:
            if self.log.store.create(path, content):
                return True
            try:
                return self.log.store.read(path) == content
            except MissingFileError as error:  # another request for it is under way
                raise StoreUnavailableError(str(error)) from error

        again = Retrying(
            retry=retry_if_exception_type(StoreUnavailableError),
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_random_exponential(multiplier=0.2, max=LONGEST_WAIT_SECONDS),
            reraise=True,
        )
        return again(attempt)

    def _write_checkpoint(self) -> None:
        """Keeps what the commits add up to, every so many, and removes old ones."""
        number = self.state.number
        if number - self.state.checkpoint < CHECKPOINT_EVERY:
            return
        files = self.state.file_list.table()
        content = file_list.encode(files)
        body = state.to_json(self.log.id, self.state, file_list.digest(content))
        # If another writer was faster, the other of the two objects is its business, too.
        if self._create(checkpoint_files_path(number), content):
            self._create(checkpoint_path(number), commits.encode(number, body))
        self.state.checkpoint = number
        self.state.file_list.go_on_from(files)
        by_number: dict[str, list[str]] = defaultdict(list)
        for file in self.log.store.files(CHECKPOINTS):
            by_number[Path(file.path).stem].append(file.path)
        for old in sorted(by_number)[:-KEPT_CHECKPOINTS]:
            for path in by_number[old]:
                self.log.store.delete(path)
