"""The file that holds a route snapshot, so that a restarted name server can serve it until the brokers are back.

It starts with a line that names the format. Then come the messages, each after its length as a protobuf varint, so that
every protobuf library can read them. The last 32 bytes are the SHA-256 of all bytes before them.
"""

from __future__ import annotations

import errno
import hashlib
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO

import structlog

from namesrv.core.encoding import varint
from namesrv_common.files import disk

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

    @contextmanager
    def open_writer(self) -> Iterator[SnapshotWriter]:
        """Opens a new snapshot. Without a commit in the context, nothing of it is left. Raises OSError."""
        with disk.open_new(self._temporary) as stream:
            try:
                yield SnapshotWriter(stream, self._temporary, self._file)
            finally:
                with suppress(OSError):  # the disk may refuse the buffered rest of a snapshot that is given up
                    stream.close()
                with suppress(OSError):  # the next snapshot overwrites it
                    disk.remove(self._temporary)

    def load(self) -> list[bytes] | None:
        """The messages of the snapshot; None if there is none that can be used. Call it before the first writer.

        Never raises because of a file, because a name server can start without a snapshot; the problem is logged.
        """
        with suppress(OSError):  # left over by a process that was killed; the next snapshot overwrites it
            disk.remove(self._temporary)
        try:
            return _read(self._file)
        except FileNotFoundError:
            return None
        except (BrokenFile, OSError) as error:
            reason = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
            _log.warning("snapshot_not_loaded", problem=f"{self._file} {reason}")
            return None


class SnapshotWriter:
    """A snapshot that is being written, into a temporary file."""

    def __init__(self, stream: IO[bytes], temporary: Path, file: Path) -> None:
        self._stream = stream
        self._temporary = temporary
        self._file = file
        self._digest = _DIGEST()
        self._size = _DIGEST_BYTES
        self._write(_FORMAT)

    def append(self, message: bytes) -> None:
        """Adds an encoded StreamRouteSnapshotResponse.

        Raises:
            OSError: The disk did not take it, or the message or the file would be larger than what is loaded (EFBIG).
        """
        length = varint(len(message))
        if len(message) > MAX_MESSAGE_BYTES:
            self._refuse(f"message of {len(message)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
        if self._size + len(length) + len(message) > MAX_FILE_BYTES:
            self._refuse(f"snapshot with another {len(message)} bytes is over the limit of {MAX_FILE_BYTES}")
        self._write(length)
        self._write(message)

    def commit(self) -> None:
        """Makes the snapshot durable and replaces the one before.

        Raises:
            OSError: It failed; the next start loads the snapshot before, or this one if it was replaced already.
        """
        disk.write(self._stream, self._digest.digest())
        disk.sync(self._stream)
        disk.rename(self._temporary, self._file)
        disk.sync_folder_of(self._file)

    def _write(self, part: bytes) -> None:
        disk.write(self._stream, part)
        self._digest.update(part)
        self._size += len(part)

    def _refuse(self, problem: str) -> None:
        raise OSError(errno.EFBIG, problem, str(self._temporary))


class _Body:
    """Reads a file up to its checksum, and computes what that must be."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self._stream = stream
        self._digest = _DIGEST()
        self.left = size

    def take(self, count: int) -> bytes:
        part = self._stream.read(count) if count <= self.left else b""
        if len(part) < count:
            raise BrokenFile("is cut off")
        self.left -= count
        self._digest.update(part)
        return part

    def take_message(self) -> bytes:
        length = 0
        for shift in range(0, _LENGTH_BITS, 7):
            byte = self.take(1)[0]
            length |= (byte & 0x7F) << shift
            if byte <= 0x7F:
                break
        else:
            raise BrokenFile("holds something that is no length of a message")
        if length > MAX_MESSAGE_BYTES:
            raise BrokenFile(f"holds a message of {length} bytes, over the limit of {MAX_MESSAGE_BYTES}")
        return self.take(length)

    def check_digest(self) -> None:
        if self._stream.read(_DIGEST_BYTES) != self._digest.digest():
            raise BrokenFile("does not match its checksum")


def _read(file: Path) -> list[bytes]:
    """All messages of a file whose checksum is right. Raises BrokenFile or OSError."""
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise BrokenFile("is no regular file")  # opening a pipe might never return
    if status.st_size > MAX_FILE_BYTES:
        raise BrokenFile(f"has {status.st_size} bytes, over the limit of {MAX_FILE_BYTES}")
    with file.open("rb") as stream:
        body = _Body(stream, status.st_size - _DIGEST_BYTES)
        if body.take(len(_FORMAT)) != _FORMAT:
            raise BrokenFile("is no route snapshot of format 1")
        messages = []
        while body.left:
            messages.append(body.take_message())
        body.check_digest()
    return messages
