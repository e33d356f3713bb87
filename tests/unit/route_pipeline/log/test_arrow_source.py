"""Rows of data files, as readers of a log and its compaction get them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from route_pipeline.log.log_reader import read_rows
from route_pipeline.log.protocol.commits import CHANGES, DataFile
from route_pipeline.stores.local import LocalStore


def test_the_rows_of_a_file_that_was_seen_late_are_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"row": [1, 2, 3]}), tmp_path / "1")
    file = DataFile("1", CHANGES, "2026-11-23", 3, (tmp_path / "1").stat().st_size, "batch", ())
    # As a store that does not find it, and finds it when it is asked once more.
    monkeypatch.setattr(LocalStore, "read_many", lambda _, paths: [None for _ in paths])
    assert sum(rows.num_rows for rows in read_rows(LocalStore(tmp_path), [file])) == 3
