"""Operations on files that our programs own. At each step a test can make them fail or crash.

A point is called ``<moment> <step> <name of the file>``: ``before fsync kvConfig.json.tmp``. A write has a point in the
middle, too: a disk that runs full takes a part first. The errors there are those of a real disk, an OSError.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from io import FileIO
from pathlib import Path
from typing import IO

from groundwork.failpoints import FAILPOINTS

_NOTHING = nullcontext()

Stream = IO[bytes] | FileIO


def open_new(file: Path) -> IO[bytes]:
    """Opens a file that is to be written from its start. Raises OSError."""
    with _step("open", file):
        return file.open("wb")


def open_to_append(file: Path) -> FileIO:
    """Opens or makes a file for appending and reading; nothing is buffered. Raises OSError."""
    with _step("open", file):
        return FileIO(file, "a+")


def write(stream: Stream, file: Path, content: bytes) -> int:
    """Writes to a file that is open.

    Returns:
        How many bytes were taken: all, unless the stream is an unbuffered one.

    Raises:
        OSError: The disk takes no more; a part may be written.
    """
    if FAILPOINTS is None:
        return stream.write(content)
    with _step("write", file):
        half = len(content) // 2
        taken = stream.write(content[:half])
        stream.flush()
        FAILPOINTS.hit(f"half write {file.name}")
        return taken + stream.write(content[half:]) if taken == half else taken


def sync(stream: Stream, file: Path) -> None:
    """Returns once what was written is durable. Raises OSError."""
    with _step("fsync", file):
        stream.flush()
        os.fsync(stream.fileno())


def truncate(stream: Stream, file: Path, size: int) -> None:
    """Cuts a file off at a size. Raises OSError."""
    with _step("truncate", file):
        stream.truncate(size)


def rename(file: Path, target: Path) -> None:
    """Gives a file the name of another, which it replaces. Raises OSError."""
    with _step("rename", target):
        file.replace(target)


def link(file: Path, second_name: Path) -> None:
    """Gives a file a second name, which must be free. Raises OSError."""
    with _step("link", second_name):
        os.link(file, second_name)


def remove(file: Path) -> None:
    """Removes a file if it is there. Raises OSError."""
    with _step("remove", file):
        file.unlink(missing_ok=True)


def sync_folder_of(file: Path) -> None:
    """Returns once the names in the folder of a file are durable. Raises OSError."""
    with _step("fsync-folder-of", file):
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _step(step: str, file: Path) -> AbstractContextManager[None]:
    return _NOTHING if FAILPOINTS is None else _between_points(f"{step} {file.name}")


@contextmanager
def _between_points(step: str) -> Iterator[None]:
    assert FAILPOINTS is not None
    FAILPOINTS.hit(f"before {step}")
    yield
    FAILPOINTS.hit(f"after {step}")
