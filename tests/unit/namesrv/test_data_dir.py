"""The data folder: one process, epochs that only go up, files that are whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from namesrv.data_dir import EPOCH_FILE, DataDir, DataDirError


def test_epochs_sort_in_the_order_of_starts_also_when_the_clock_steps_back(tmp_path: Path) -> None:
    data_dir = DataDir.open(tmp_path)
    epochs = [data_dir.next_epoch(millis) for millis in (5_000, 4_000, 4_000, 10_000_000_000_000)]
    assert epochs == sorted(epochs)
    assert len(set(epochs)) == 4
    data_dir.close()


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


@pytest.mark.parametrize("content", ["", "garbage", "12x-abc"])
def test_a_broken_epoch_file_is_named_and_not_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / EPOCH_FILE).write_text(content)
    data_dir = DataDir.open(tmp_path)
    with pytest.raises(DataDirError, match="does not hold an epoch"):
        data_dir.next_epoch(1)
    assert (tmp_path / EPOCH_FILE).read_text() == content
    data_dir.close()
