"""The folder that holds everything durable."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Self

LOCK_FILE = "lock"


class DataDirError(Exception):
    """The folder, or a file in it, cannot be used; the text has the path, the reason and the remedy."""

    @classmethod
    def of(cls, subject: object, error: OSError) -> Self:
        """What an operator reads where the system gives no access to something."""
        match error.errno:
            case errno.EACCES | errno.EPERM | errno.EROFS:
                remedy = "give this process the right to read and write it and its folder"
            case errno.ENOSPC | errno.EDQUOT:
                remedy = "make room on the disk"
            case errno.EEXIST | errno.EISDIR | errno.ENOTDIR | errno.ELOOP:
                remedy = "move away what is in its place"
            case _:
                remedy = "check the disk"
        return cls(f"{subject}: {error.strerror or error}: {remedy}")


class DataDir:
    """A data folder that only this process uses, until ``close``."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: Path) -> Self:
        """Makes the folder if it is not there, and locks it. Raises DataDirError, also if another process holds it."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        except FileExistsError as error:
            raise DataDirError(f"data directory {path} is not a folder: move it away, or name another") from error
        except OSError as error:
            raise DataDirError.of(f"data directory {path}", error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(lock, 32).decode(errors="replace").strip()
            os.close(lock)
            if error.errno != errno.EWOULDBLOCK:
                problem = f"cannot be locked: {error.strerror}: use a file system with locks, such as a local disk"
                raise DataDirError(f"data directory {path} {problem}") from error
            raise DataDirError(f"data directory {path} is in use by process {owner or '?'}: end that first") from error
        try:
            os.ftruncate(lock, 0)
            os.write(lock, f"{os.getpid()}\n".encode())
        except OSError as error:
            os.close(lock)
            raise DataDirError.of(f"data directory {path}", error) from error
        return cls(path, lock)

    def close(self) -> None:
        os.close(self._lock)
