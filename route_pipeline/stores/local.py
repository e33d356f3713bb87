"""A folder of a file system. A file is made once by giving a finished one its name, which must be free."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, cast

from groundwork import disk
from route_pipeline.stores.store import MissingFileError, StoredFile, StoreError, StoreUnavailableError

PART = ".part"
"""End of the name of a file that is not finished. Spark and Arrow pass over names that begin with a dot."""

_MAY_PASS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE)
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


@dataclass(frozen=True, slots=True)
class LocalStore:
    """A folder that this machine, and all of Spark's, reach by one path."""

    root: Path
    """Absolute."""

    @property
    def url(self) -> str:
        return str(self.root)

    def uri(self, path: str) -> str:
        return str(self.root / path)

    def files(self, folder: str = "") -> list[StoredFile]:
        """All files below a folder, without those that are not finished."""
        with _errors(self.root / folder, "read"):
            found = []
            for parent, _, names in os.walk(self.root / folder, onerror=_unless_gone):
                for name in names:
                    if not (name.startswith(".") and name.endswith(PART)):
                        with suppress(FileNotFoundError):  # it went meanwhile
                            found.append(self._info(Path(parent, name)))
            return sorted(found, key=lambda file: file.path)

    def info(self, path: str) -> StoredFile:
        with _errors(self.root / path, "read"):
            return self._info(self.root / path)

    def read(self, path: str) -> bytes:
        with _errors(self.root / path, "read"):
            return (self.root / path).read_bytes()

    def read_many(self, paths: Sequence[str]) -> list[bytes | None]:
        found: list[bytes | None] = []
        for path in paths:
            try:
                found.append(self.read(path))
            except MissingFileError:
                found.append(None)
        return found

    def create(self, path: str, content: bytes) -> bool:
        target = self.root / path
        part = target.with_name(f".{target.name}.{secrets.token_hex(4)}{PART}")
        with _errors(target, "written"):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with disk.open_new(part) as stream:
                    disk.write(stream, content)
                    disk.sync(stream)
                disk.link(part, target)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno in _NO_LINKS:
                    raise StoreError(
                        f"{self.root}: its file system has no hard links, so no log can be on it"
                    ) from error
                raise
            finally:
                part.unlink(missing_ok=True)
            disk.sync_folder_of(target)
        return True

    @contextmanager
    def open_new(self, path: str) -> Iterator[BinaryIO]:
        """A file to be written from its start; its folder must be there."""
        target = self.root / path
        with _errors(target, "written"), disk.open_new(target) as stream:
            yield cast(BinaryIO, stream)
            disk.sync(stream)
        with _errors(target, "written"):
            disk.sync_folder_of(target)

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        with _errors(self.root / path, "read"), (self.root / path).open("rb") as stream:
            yield stream

    def delete(self, path: str) -> None:
        with _errors(self.root / path, "removed"):
            disk.remove(self.root / path)

    def make_folder(self, path: str) -> None:
        with _errors(self.root / path, "written"):
            (self.root / path).mkdir(parents=True, exist_ok=True)

    def _info(self, file: Path) -> StoredFile:
        found = file.stat()
        modified = datetime.fromtimestamp(found.st_mtime, UTC)
        return StoredFile(file.relative_to(self.root).as_posix(), found.st_size, modified)


def _unless_gone(error: OSError) -> None:
    """What to do about a folder that cannot be listed: its files are not to be taken for missing."""
    if not isinstance(error, FileNotFoundError):
        raise error


@contextmanager
def _errors(file: Path, done: str) -> Iterator[None]:
    """Gives the system's errors in a line."""
    try:
        yield
    except OSError as error:
        text = f"{file} cannot be {done}{' to' if done == 'written' else ''}: {error.strerror or error}"
        if isinstance(error, FileNotFoundError) and done == "read":
            raise MissingFileError(f"{file} is missing") from error
        raise (StoreUnavailableError if error.errno in _MAY_PASS else StoreError)(text) from error
