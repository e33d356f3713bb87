"""The data folder: one process, and errors that name it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from namesrv.storage.data_dir import DataDir, DataDirError


def test_the_folder_is_made(tmp_path: Path) -> None:
    DataDir.open(tmp_path / "a" / "b").close()
    assert (tmp_path / "a" / "b").is_dir()


def test_a_second_process_is_refused_and_told_the_owner(tmp_path: Path) -> None:
    first = DataDir.open(tmp_path)
    with pytest.raises(DataDirError, match=f"in use by process {os.getpid()}"):
        DataDir.open(tmp_path)
    first.close()
    DataDir.open(tmp_path).close()


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(DataDirError, match=f"^data directory {file}: is not a folder$"):
        DataDir.open(file)


def test_a_disk_without_room_for_the_owners_number_is_an_error_and_leaves_the_folder_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int, _content: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(DataDirError, match=f"^data directory {tmp_path}: No space left on device$"):
            DataDir.open(tmp_path)
    DataDir.open(tmp_path).close()
