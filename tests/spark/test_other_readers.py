"""The log, read by programs that know Delta tables."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable

from route_pipeline.log.place import Place
from route_pipeline.log.route_log import RouteLog
from tests.support.routes.log_rows import append, cluster, staged


def by_arrow(table: str) -> list[int]:
    rows = DeltaTable(table).to_pyarrow_dataset().to_table(columns=["kind", "revision"]).to_pylist()
    return [row["revision"] for row in rows if row["kind"] == "changes"]


def by_polars(table: str) -> list[int]:
    frame = pl.scan_delta(table).filter(pl.col("kind") == "changes").select("revision").collect()
    return list(frame["revision"].to_list())


@pytest.mark.parametrize("read", [by_arrow, by_polars])
def test_the_table_has_each_row_once_before_and_after_a_compaction(
    tmp_path: Path, read: Callable[[str], list[int]]
) -> None:
    place = Place(str(tmp_path / "routes"))
    log = RouteLog(place)
    for revisions in ((1,), (2,), (3, 4)):
        append(log, *revisions)
    staged(place, cluster(9))  # of a batch that was killed before its commit
    for _ in range(2):
        assert sorted(read(place.table)) == [1, 2, 3, 4]
        log.maintain(None, timedelta(hours=1))
