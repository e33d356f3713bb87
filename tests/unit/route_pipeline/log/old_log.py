"""A log of the old layout, made by hand as version 0.2 made it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from route_pipeline.log.protocol.summaries import Summary
from tests.unit.route_pipeline.log.rows import NOON, rows

RUN = "20260102T120000.000000Z-aa"
OFFSET = {"version": 1, "namesrvs": {"a:1": {"namesrv": "ns-a", "epoch": "0001", "revision": 4, "state": "up"}}}
_SUMMARY = pa.schema(
    [
        pa.field("run", pa.string()),
        pa.field("batch_id", pa.int64()),
        pa.field("ingested_at", pa.timestamp("us", tz="UTC")),
        pa.field("namesrv", pa.string()),
        pa.field("epoch", pa.string()),
        pa.field("revision", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("quarantined", pa.int64()),
        pa.field("read", pa.string()),
        pa.field("gap", pa.string()),
    ]
)


def old_log(root: Path) -> Path:
    """A compacted day, two whole batches, one without its summary, and Spark's notes of three."""
    root.mkdir(parents=True)
    (root / "route_pipeline.json").write_text(json.dumps({"layout_version": 2}))
    _rows(root / "changes" / "date=2026-01-01" / "run=compacted" / "batch_id=0", 1)
    for batch, revisions in enumerate(((2,), (3, 4), (5,))):
        _rows(root / "changes" / "date=2026-01-02" / f"run={RUN}" / f"batch_id={batch}", *revisions)
        if batch < 2:
            summary = Summary(RUN, batch, NOON, "ns-a", "0001", max(revisions), len(revisions), 0, "changes", None)
            _table(root / "ingests" / f"run={RUN}" / f"batch_id={batch}.parquet", [asdict(summary)])
        offsets = root / "_checkpoint" / RUN / "offsets"
        offsets.mkdir(parents=True, exist_ok=True)
        offset: dict[str, Any] = OFFSET if batch == 1 else OFFSET | {"version": 0}
        (offsets / str(batch)).write_text("\n".join(["v1", "{}", json.dumps(offset)]))
    (root / "_work").mkdir()
    return root


def _rows(folder: Path, *revisions: int) -> None:
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_batches([rows(*revisions)]), folder / "part-0.parquet")


def _table(path: Path, entries: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(entries, schema=_SUMMARY), path)
