"""Replacement of a small file: as a whole and durably, with or without a copy of its former content."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from groundwork.files import disk
from groundwork.files.checksums import seal


def replace_durably(file: Path, content: bytes, *, copy: Path | None = None) -> None:
    """Replaces a file so that it holds, whatever happens, the old content or the new one.

    Args:
        file: The file; its folder exists.
        content: What it is to hold.
        copy: Where the old content is kept, in the same folder; the new file gets the permissions of the old one then.

    Raises:
        OSError: It failed. With a copy the file is as it was; without one, the new content may be there but not
            durable.
    """
    temporary = file.with_name(f"{file.name}.tmp")
    with disk.open_new(temporary) as stream:
        disk.write(stream, temporary, content)
        seal(stream, content)
        disk.sync(stream, temporary)
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
