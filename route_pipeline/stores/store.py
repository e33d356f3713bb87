"""A place that keeps files by name, as the log needs it: no renaming, no appending, and files that are made once.

A path is relative to the store's root and has ``/`` between its parts.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import BinaryIO, Protocol

WORK = "_work"
"""Folder of files that a program has for itself, for moments."""


class StoreError(Exception):
    """The store cannot be used as asked; the text is one line."""


class StoreUnavailableError(StoreError):
    """The store did not do what was asked, as when it is full or does not answer; it may, later."""


class StoreRefusedError(StoreError):
    """The store refuses, and will until somebody changes a right, credentials, or a clock."""


class MissingFileError(StoreError):
    """There is no file of that name."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a store."""

    path: str
    size: int
    """Bytes."""
    modified: datetime
    """When it was written last, by the store's clock, UTC."""


class Store(Protocol):
    """A folder, or a prefix of a bucket. Travels to the tasks by pickle; may be used from any thread.

    Each method raises StoreUnavailableError if the store fails, and StoreError if it will go on failing.
    """

    @property
    def url(self) -> str:
        """The root, for people and for ``open_store``."""
        ...

    def uri(self, path: str) -> str:
        """A file's address for Spark, Arrow and others."""
        ...

    def files(self, folder: str = "") -> list[StoredFile]:
        """All files below a folder, by their paths; none if the folder is not there."""
        ...

    def info(self, path: str) -> StoredFile:
        """What is known of a file. Raises MissingFileError."""
        ...

    def read(self, path: str) -> bytes:
        """A whole file. Raises MissingFileError."""
        ...

    def read_many(self, paths: Sequence[str]) -> list[bytes | None]:
        """Whole files, None for those that are missing."""
        ...

    def create(self, path: str, content: bytes) -> bool:
        """Makes a file, whole and durable, unless there is one of that name.

        Returns:
            Whether it did. An error leaves open whether it did: the answer may have been lost.
        """
        ...

    def open_new(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A file to be written from its start, durable when the block is left. Its name is used for the first time."""
        ...

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A file to be read, from anywhere in it. Raises MissingFileError."""
        ...

    def delete(self, path: str) -> None:
        """Removes a file if it is there."""
        ...

    def make_folder(self, path: str) -> None:
        """Makes a folder where the store has such. Tasks do not: one that lacks it sees another store."""
        ...


def check_creates_once(store: Store) -> datetime:
    """Checks that a store makes a file only if there is none of that name.

    Returns:
        The time, by the store's clock.

    Raises:
        StoreError: It does not, or it cannot be written to.
    """
    path = f"{WORK}/{secrets.token_hex(8)}"
    try:
        if not store.create(path, b"1") or store.create(path, b"2") or store.read(path) != b"1":
            raise StoreError(
                f"{store.url} overwrites a file that is to be made only if it is absent: no log can be on it"
            )
        return store.info(path).modified
    finally:
        store.delete(path)
