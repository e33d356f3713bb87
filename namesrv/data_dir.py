"""The folder that holds everything durable, and the epoch in it."""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path
from typing import Self

from groundwork import disk

LOCK_FILE = "lock"
EPOCH_FILE = "epoch"
_MILLIS_DIGITS = 15
"""Width of an epoch's number: milliseconds since 1970 fit until the year 33658, so epochs sort as text."""


class DataDirError(Exception):
    """The folder cannot be used; the text says why."""


class DataDir:
    """A data folder that this process alone uses, until ``close``."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: Path) -> Self:
        """Makes the folder if it is not there, and locks it.

        Raises:
            DataDirError: It cannot be made or written, or another process holds it.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        except FileExistsError as error:
            raise DataDirError(f"data directory {path}: is not a folder") from error
        except OSError as error:
            raise DataDirError(f"data directory {path}: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(lock, 32).decode(errors="replace").strip()
            os.close(lock)
            raise DataDirError(f"data directory {path} is in use by process {owner or '?'}") from error
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        return cls(path, lock)

    def next_epoch(self, now_millis: int) -> str:
        """An epoch later than all before it, also after the clock has stepped back; durable before it is returned.

        Raises:
            DataDirError: It cannot be read or written, or is no epoch.
        """
        file = self.path / EPOCH_FILE
        try:
            before = int(file.read_text().partition("-")[0]) if file.exists() else 0
            epoch = format_epoch(max(now_millis, before + 1))
            write_atomically(file, epoch.encode())
        except ValueError as error:
            raise DataDirError(
                f"{file} does not hold an epoch; restore it, or remove it if no reader resumes"
            ) from error
        except OSError as error:
            raise DataDirError(f"{file}: {error.strerror}") from error
        return epoch

    def close(self) -> None:
        """Gives the folder up."""
        os.close(self._lock)


def format_epoch(millis: int) -> str:
    """An epoch: a number that orders the epochs of one name server, and a random part."""
    return f"{millis:0{_MILLIS_DIGITS}d}-{secrets.token_hex(4)}"


def write_atomically(file: Path, content: bytes) -> None:
    """Replaces a file so that it holds, whatever happens, the old content or the new one. Raises OSError."""
    temporary = file.with_name(file.name + ".tmp")
    with disk.open_new(temporary) as stream:
        disk.write(stream, temporary, content)
        disk.sync(stream, temporary)
    disk.rename(temporary, file)
    disk.sync_folder_of(file)
