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


def open_regular(path: Path) -> BinaryIO:
    """Opens a file for reading, without ever waiting for somebody who writes to a pipe.

    Raises:
        OSError: It cannot be opened, or something else than a file is there; ``strerror`` says what.
        ValueError: Its name has a zero byte.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.stat(descriptor).st_mode  # noqa: PTH116 - what is open, not a path
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))  # noqa: TRY301 - it is closed, too
        if not stat.S_ISREG(mode):
            kind = _KINDS.get(stat.S_IFMT(mode), "something else")
            raise OSError(errno.EINVAL, f"is {kind} and no file", str(path))  # noqa: TRY301
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_at_most(path: Path, max_bytes: int) -> bytes:
    """The content of a file as long as it is when it is opened.

    Raises:
        OSError: It cannot be read, is no file, is larger, or grows while it is read; ``strerror`` says which.
        ValueError: Its name has a zero byte.
    """
    with open_regular(path) as file:
        size = os.stat(file.fileno()).st_size  # noqa: PTH116 - what is open, not a path
        if size > max_bytes:
            raise OSError(errno.EFBIG, f"is larger than {max_bytes} bytes", str(path))
        content = file.read(size + 1)
    if len(content) > size:
        raise OSError(errno.EBUSY, "grows while it is read", str(path))
    return content


# A checksum that a file carries as an extended attribute. It tells damage by a disk from edits by people.
#
# The formats of these files cannot contain one: they are RocketMQ's, or are read by the version before. The attribute
# also has the time of the last modification. The checksum of a file that was edited, restored from a backup or written
# by another program therefore does not count. Such a file, and one on a disk without extended attributes, is used as it
# is. Bits that flip on a disk change no time.

ATTRIBUTE = "user.namesrv.sha256"


def _seal(stream: IO[bytes], content: bytes) -> None:
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


# Replacement of a small file: as a whole and durably, with a copy of its former content.


def replace_durably(file: Path, content: bytes, *, copy: Path) -> None:
    """Replaces a file so that it holds, whatever happens, the old content or the new one.

    Args:
        file: The file; its folder exists. The new one gets the permissions of the old one.
        copy: Where the old content is kept, in the same folder.

    Raises:
        OSError: It failed, and the file is as it was.
    """
    temporary = file.with_name(f"{file.name}.tmp")
    with disk.open_new(temporary) as stream:
        disk.write(stream, content)
        _seal(stream, content)
        disk.sync(stream)
    if file.exists():
        shutil.copymode(file, temporary)
        _keep(file, copy)
    disk.rename(temporary, file)
    try:
        disk.sync_folder_of(file)
    except OSError:
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
