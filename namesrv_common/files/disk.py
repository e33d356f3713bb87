"""Steps on files that the programs own. Every write, rename and removal goes through this module.

Callers must name it (``disk.rename``), because tests wrap its functions to make a step fail or crash.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO


def open_new(file: Path) -> IO[bytes]:
    """Opens a file that is to be written from its start. Raises OSError."""
    return file.open("wb")


def write(stream: IO[bytes], content: bytes) -> int:
    """Writes to a file that is open.

    Returns:
        How many bytes were taken: all, unless the stream is an unbuffered one.

    Raises:
        OSError: The disk takes no more; a part may be written.
    """
    return stream.write(content)


def sync(stream: IO[bytes]) -> None:
    """Returns once the written bytes are durable. Raises OSError."""
    stream.flush()
    os.fsync(stream.fileno())


def rename(file: Path, target: Path) -> None:
    """Gives a file the name of another, which it replaces. Raises OSError."""
    file.replace(target)


def link(file: Path, second_name: Path) -> None:
    """Gives a file a second name, which must be free. Raises OSError."""
    os.link(file, second_name)


def remove(file: Path) -> None:
    """Removes a file if it is there. Raises OSError."""
    file.unlink(missing_ok=True)


def sync_folder_of(file: Path) -> None:
    """Returns once the names in the folder of a file are durable. Raises OSError."""
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
