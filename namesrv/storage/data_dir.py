"""The folder that holds everything durable, and the file in it that holds a route snapshot."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

import structlog

from namesrv.core.tables import varint
from namesrv_common.files import disk

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


# The snapshot file, so that a restarted name server can serve its routes until the brokers are back.
#
# It starts with a line that names the format. Then come the messages, each after its length as a protobuf varint, so
# that every protobuf library can read them. The last 32 bytes are the SHA-256 of all bytes before them.

SNAPSHOT_FILE = "routes.snapshot"
"""Name of the file. RocketMQ has none: its name server starts without routes."""

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Largest message. A damaged length must not fill memory; the messages of a stream are below 1 MB."""

MAX_FILE_BYTES = 4 * 1024**3
"""Largest file: it is loaded into memory as a whole. The largest tables make some 100 MB."""

_FORMAT = b"namesrv route snapshot, format 1\n"
_DIGEST = hashlib.sha256
_DIGEST_BYTES = _DIGEST().digest_size
_LENGTH_BITS = 28
"""Bits of a length that are read at most: four bytes of a varint, more than the largest message needs."""

_log = structlog.get_logger(__name__)


class BrokenFile(Exception):
    """A file does not hold a snapshot. The text says why, and continues the file's name: ``is cut off``."""


class SnapshotFile:
    """``routes.snapshot`` in a folder: the snapshot that was committed last, whole, or none.

    Losing it is a cold start. It blocks: not for the event loop, and for one thread at a time.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / SNAPSHOT_FILE
        self._temporary = folder / f"{SNAPSHOT_FILE}.tmp"

    def write(self, messages: Iterable[bytes]) -> None:
        """Replaces the snapshot by these encoded StreamRouteSnapshotResponse messages, once they are durable.

        Raises:
            OSError: The disk did not take them, or a message or the file is larger than what is loaded (EFBIG). The
                snapshot before is there, or this one.
        """
        digest, size = _DIGEST(), _DIGEST_BYTES
        with disk.open_new(self._temporary) as stream:
            try:
                for part in itertools.chain([_FORMAT], map(self._delimited, messages)):
                    if (size := size + len(part)) > MAX_FILE_BYTES:
                        raise self._too_large(f"snapshot of {size} bytes is over the limit of {MAX_FILE_BYTES}")
                    disk.write(stream, part)
                    digest.update(part)
                disk.write(stream, digest.digest())
                disk.sync(stream)
                disk.rename(self._temporary, self._file)
                disk.sync_folder_of(self._file)
            finally:
                with suppress(OSError):  # the disk may refuse the buffered rest of a snapshot that is given up
                    stream.close()
                with suppress(OSError):  # the next snapshot overwrites it
                    disk.remove(self._temporary)

    def load(self) -> list[bytes] | None:
        """The messages of the snapshot; None if there is none that can be used. Call it before the first ``write``.

        Never raises because of a file, because a name server can start without a snapshot; the problem is logged.
        """
        with suppress(OSError):  # left over by a process that was killed; the next snapshot overwrites it
            disk.remove(self._temporary)
        try:
            return _messages(_checked(self._file))
        except FileNotFoundError:
            return None
        except (BrokenFile, OSError) as error:
            reason = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
            _log.warning("snapshot_not_loaded", problem=f"{self._file} {reason}")
            return None

    def _delimited(self, message: bytes) -> bytes:
        if len(message) > MAX_MESSAGE_BYTES:
            raise self._too_large(f"message of {len(message)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
        return varint(len(message)) + message

    def _too_large(self, problem: str) -> OSError:
        return OSError(errno.EFBIG, problem, str(self._temporary))


def _checked(file: Path) -> bytes:
    """Returns the content between the first line and the checksum, which is right. Raises BrokenFile or OSError."""
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise BrokenFile("is no regular file")  # opening a pipe might never return
    if status.st_size > MAX_FILE_BYTES:
        raise BrokenFile(f"has {status.st_size} bytes, over the limit of {MAX_FILE_BYTES}")
    with file.open("rb") as stream:
        if status.st_size < len(_FORMAT) + _DIGEST_BYTES:
            raise BrokenFile("is cut off")
        if (start := stream.read(len(_FORMAT))) != _FORMAT:
            raise BrokenFile("is no route snapshot of format 1")
        body = stream.read(status.st_size - len(_FORMAT) - _DIGEST_BYTES)
        digest = _DIGEST(start)
        digest.update(body)
        if stream.read(_DIGEST_BYTES) != digest.digest():
            raise BrokenFile("does not match its checksum")
    return body


def _messages(body: bytes) -> list[bytes]:
    """Delimited messages. Raises BrokenFile if another program has written them so."""
    messages: list[bytes] = []
    at = 0
    while at < len(body):
        length = 0
        for shift in range(0, _LENGTH_BITS, 7):
            byte = body[at] if at < len(body) else 0
            length |= (byte & 0x7F) << shift
            at += 1
            if byte <= 0x7F:
                break
        else:
            raise BrokenFile("holds something that is no length of a message")
        if length > MAX_MESSAGE_BYTES:
            raise BrokenFile(f"holds a message of {length} bytes, over the limit of {MAX_MESSAGE_BYTES}")
        if at + length > len(body):
            raise BrokenFile("is cut off")
        messages.append(body[at : at + length])
        at += length
    return messages
