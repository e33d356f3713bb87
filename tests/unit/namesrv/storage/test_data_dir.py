"""The data folder: one process, and errors that name it, the reason and the remedy."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from types import ModuleType

import pytest

from namesrv.storage.data_dir import LOCK_FILE, DataDir, DataDirError


def test_the_folder_is_made(tmp_path: Path) -> None:
    DataDir.open(tmp_path / "a" / "b").close()
    assert (tmp_path / "a" / "b").is_dir()


def test_a_second_process_is_refused_and_told_the_owner(tmp_path: Path) -> None:
    first = DataDir.open(tmp_path)
    with pytest.raises(DataDirError) as raised:
        DataDir.open(tmp_path)
    assert str(raised.value) == f"data directory {tmp_path} is in use by process {os.getpid()}: end that first"
    first.close()
    DataDir.open(tmp_path).close()


def test_a_folder_that_is_a_file_or_in_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(DataDirError) as raised:
        DataDir.open(file)
    assert str(raised.value) == f"data directory {file} is not a folder: move it away, or name another"
    with pytest.raises(DataDirError) as raised:
        DataDir.open(file / "data")
    assert str(raised.value) == f"data directory {file}/data: Not a directory: move away what is in its place"


REFUSED = [
    (fcntl, "flock", errno.ENOLCK, " cannot be locked: No locks available: use a file system with locks, such as"),
    (os, "write", errno.ENOSPC, ": No space left on device: make room on the disk"),
    (os, "open", errno.EACCES, ": Permission denied: give this process the right to read and write it"),
    (os, "open", errno.EROFS, ": Read-only file system: give this process the right to read and write it"),
    (os, "ftruncate", errno.EIO, ": Input/output error: check the disk"),
]
"""Calls of the system that fail, and what an operator reads."""


@pytest.mark.parametrize(("module", "call", "error", "text"), REFUSED)
def test_a_refused_folder_is_named_with_the_remedy_and_left_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, call: str, error: int, text: str
) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patched:
        patched.setattr(module, call, refuse)
        with pytest.raises(DataDirError) as raised:
            DataDir.open(tmp_path)
    assert str(raised.value).startswith(f"data directory {tmp_path}{text}")
    assert all(link.resolve() != (tmp_path / LOCK_FILE).resolve() for link in Path("/proc/self/fd").iterdir())
    DataDir.open(tmp_path).close()
