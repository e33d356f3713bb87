"""Files: bounded reads, checksums, and replacement as a whole."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO, BinaryIO

from namesrv_common.files import disk

# Files that others may have put there, read whole and within a bound. Pipes and devices are not waited for.

_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}


class NoRegularFile(OSError):
    """A pipe, a device, a socket or a folder is where a file should be: to wait for it or to read it may never end."""


def open_regular(path: Path) -> BinaryIO:
    """Opens a file for reading, without ever waiting for somebody who writes to a pipe.

    Raises:
        NoRegularFile: Something else than a file is there; ``strerror`` says what.
        OSError: It cannot be opened.
        ValueError: Its name has a zero byte.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.stat(descriptor).st_mode  # noqa: PTH116 - what is open, not a path
        if stat.S_ISDIR(mode):
            raise NoRegularFile(errno.EISDIR, os.strerror(errno.EISDIR), str(path))  # noqa: TRY301 - it is closed, too
        if not stat.S_ISREG(mode):
            kind = _KINDS.get(stat.S_IFMT(mode), "something else")
            raise NoRegularFile(errno.EINVAL, f"is {kind} and no file", str(path))  # noqa: TRY301
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_as_it_is(file: BinaryIO, max_bytes: int) -> bytes:
    """The content of an open file as long as it is now.

    Raises:
        OSError: It is larger than the bound, or grows while it is read; ``strerror`` says which.
    """
    size = os.stat(file.fileno()).st_size  # noqa: PTH116 - what is open, not a path
    if size > max_bytes:
        raise OSError(errno.EFBIG, f"is larger than {max_bytes} bytes", file.name)
    content = file.read(size + 1)
    if len(content) > size:
        raise OSError(errno.EBUSY, "grows while it is read", file.name)
    return content


def read_at_most(path: Path, max_bytes: int) -> bytes:
    """The content of a file.

    Raises:
        OSError: It cannot be read, is no file, or is larger; ``strerror`` says which.
        ValueError: Its name has a zero byte.
    """
    with open_regular(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"is larger than {max_bytes} bytes", str(path))
    return content


# A checksum that a file carries as an extended attribute. It tells damage by a disk from edits by people.
#
# The formats of these files cannot contain one: they are RocketMQ's, or are read by the version before. The attribute
# also has the time of the last modification. The checksum of a file that was edited, restored from a backup or written
# by another program therefore does not count. Such a file, and one on a disk without extended attributes, is used as it
# is. Bits that flip on a disk change no time.

ATTRIBUTE = "user.namesrv.sha256"


def seal(stream: IO[bytes], content: bytes) -> None:
    """Gives a file that will not be written again the checksum of its content, where the file system can keep it."""
    stream.flush()
    modified = os.fstat(stream.fileno()).st_mtime_ns
    with suppress(OSError, AttributeError):  # no such attributes on this file system, or on this operating system
        os.setxattr(stream.fileno(), ATTRIBUTE, f"{_digest(content)} {modified}".encode())


def is_damaged(file: Path, content: bytes) -> bool:
    """Whether a file has a checksum that counts, and the content that was read does not match it."""
    try:
        digest, _, modified = os.getxattr(file, ATTRIBUTE).decode(errors="replace").partition(" ")
        return modified == str(file.stat().st_mtime_ns) and digest != _digest(content)
    except (OSError, AttributeError):
        return False


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# Replacement of a small file: as a whole and durably, with or without a copy of its former content.


def replace_durably(file: Path, content: bytes, *, copy: Path | None = None) -> None:
    """Replaces a file so that it holds, whatever happens, the old content or the new one.

    Args:
        file: The file; its folder exists.
        copy: Where the old content is kept, in the same folder; the new file gets the permissions of the old one then.

    Raises:
        OSError: It failed. With a copy the file is as it was; without one, the new content may be there but not
            durable.
    """
    temporary = file.with_name(f"{file.name}.tmp")
    with disk.open_new(temporary) as stream:
        disk.write(stream, content)
        seal(stream, content)
        disk.sync(stream)
    if copy is not None and file.exists():
        shutil.copymode(file, temporary)
        _keep(file, copy)
    disk.rename(temporary, file)
    try:
        disk.sync_folder_of(file)
    except OSError:
        if copy is not None:
            with suppress(OSError):  # without a copy there was nothing before
                disk.rename(copy, file)
        raise


def _keep(file: Path, copy: Path) -> None:
    """Gives the file the name of the copy, too: a second name costs nothing, and the file is never missing."""
    second_name = copy.with_name(f"{copy.name}.tmp")
    disk.remove(second_name)
    try:
        disk.link(file, second_name)
    except OSError:  # a file system without hard links
        shutil.copy2(file, second_name)
    disk.rename(second_name, copy)
