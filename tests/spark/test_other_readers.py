"""The log, read by programs that know nothing of it but its files' names. `make test-spark` brings them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from route_pipeline.log import files
from route_pipeline.log.compaction import compact
from route_pipeline.log.protocol.route_log import RouteLog
from route_pipeline.log.protocol.writer import LogWriter
from tests.support.routes.log_rows import append, write

pytestmark = pytest.mark.spark


def by_arrow(names: Sequence[str]) -> list[int]:
    return list(ds.dataset(names).to_table(columns=["revision"])["revision"].to_pylist())


def by_duckdb(names: Sequence[str]) -> list[int]:
    duckdb = pytest.importorskip("duckdb", reason="there is no duckdb; make test-spark has it")
    return [revision for (revision,) in duckdb.read_parquet(names, union_by_name=True).select("revision").fetchall()]


def by_pandas(names: Sequence[str]) -> list[int]:
    pandas = pytest.importorskip("pandas", reason="there is no pandas; make test-spark has it")
    return list(pandas.read_parquet(names)["revision"].tolist())


@pytest.mark.parametrize("read", [by_arrow, by_duckdb, by_pandas])
def test_the_files_have_each_row_once_before_and_after_a_compaction(
    tmp_path: Path, read: Callable[[Sequence[str]], list[int]]
) -> None:
    log = RouteLog.create(tmp_path / "routes")
    writer = LogWriter(log)
    for revision in (1, 2, 3):
        append(writer, revision)
    append(writer, 4, 5, days=1)
    write(log.store, 9)  # of a batch that was killed before its commit
    for _ in range(2):
        assert sorted(read(files(log.url))) == [1, 2, 3, 4, 5]
        compact(log)
    assert len(files(log.url)) == 2
