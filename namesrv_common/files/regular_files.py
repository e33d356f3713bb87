"""Files that others may have put there, read whole and within a bound."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

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
