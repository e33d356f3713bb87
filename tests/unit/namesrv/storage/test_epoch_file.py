"""Epochs only go up, whatever the clock and the disk do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from namesrv.storage.data_dir import DataDirError
from namesrv.storage.epoch_file import EPOCH_FILE, next_epoch


def test_epochs_sort_in_the_order_of_starts_also_when_the_clock_steps_back(tmp_path: Path) -> None:
    epochs = [next_epoch(tmp_path, millis) for millis in (5_000, 4_000, 4_000, 10_000_000_000_000)]
    assert epochs == sorted(epochs)
    assert len(set(epochs)) == 4


@pytest.mark.parametrize("content", ["", "garbage", "12x-abc", "-5-abc", "1_0", "\u0661", "1" * 16])
def test_without_a_copy_a_broken_epoch_file_is_named_and_not_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / EPOCH_FILE).write_text(content)
    with pytest.raises(DataDirError, match=f"^{re.escape(str(tmp_path / EPOCH_FILE))} does not hold an epoch; "):
        next_epoch(tmp_path, 1)
    assert (tmp_path / EPOCH_FILE).read_text() == content


def test_a_broken_epoch_file_gives_way_to_its_copy(tmp_path: Path) -> None:
    """So that a name server starts on it: before, an operator had to remove the file."""
    first, second = next_epoch(tmp_path, 5_000), next_epoch(tmp_path, 6_000)
    (tmp_path / EPOCH_FILE).write_bytes(b"")
    with capture_logs() as logs:
        assert first < second < next_epoch(tmp_path, 7_000)
    assert [log["event"] for log in logs] == ["restored_from_copy"]


def test_an_epoch_of_the_version_before_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / EPOCH_FILE).write_text("000000000009000-0123abcd")
    assert next_epoch(tmp_path, 1).startswith("000000000009001-")
