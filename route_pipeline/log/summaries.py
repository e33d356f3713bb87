"""The summary of each batch: one row for each name server, with what was read and what is missing.

They are small and are read on the driver with Arrow, without a Spark job.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from groundwork.files import disk
from route_pipeline.log.store import Run
from route_pipeline.source.change_rows import BACK, CHANGES_READ, HOLE, LOST, SNAPSHOT

_SCHEMA = pa.schema(
    [
        pa.field("run", pa.string(), nullable=False),
        pa.field("batch_id", pa.int64(), nullable=False),
        pa.field("ingested_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("namesrv", pa.string(), nullable=False),
        pa.field("epoch", pa.string(), nullable=False),
        pa.field("revision", pa.int64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("quarantined", pa.int64(), nullable=False),
        pa.field("read", pa.string(), nullable=False),
        pa.field("gap", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Summary:
    """What one batch brought of one name server."""

    run: str
    """The run that it is of."""
    batch_id: int
    """Its number within the run."""
    ingested_at: datetime
    """When it was written, UTC."""
    namesrv: str
    """Name of the name server."""
    epoch: str
    """Its process lifetime."""
    revision: int
    """The revision that is known of it."""
    rows: int
    """Rows of it, without those put aside."""
    quarantined: int
    """Rows that were put aside."""
    read: str
    """What was read: snapshot, changes, lost, back, hole; several are joined by a comma."""
    gap: str | None
    """What is missing before it in one line; None: nothing."""


def gap_of(reads: Iterable[Mapping[str, Any]], before: Summary | None) -> str | None:
    """What is missing between what was known of a name server and a batch.

    Args:
        reads: The batch's rows of table ``reads`` of this name server.
        before: The last summary of it; None: it was never read.
    """
    gaps: list[str] = []
    for read in reads:
        if read["op"] == HOLE:
            gaps.append(f"changes after {read['after_revision']} up to {read['revision']}: {read['reason']}")
        if before is None or not before.epoch:
            continue
        point = f"revision {before.revision} of epoch {before.epoch}"
        if read["op"] == CHANGES_READ and read["epoch"] == before.epoch and read["after_revision"] > before.revision:
            gaps.append(f"changes after {point} up to {read['after_revision']}")
        if read["op"] == SNAPSHOT and read["epoch"] != before.epoch:
            gaps.append(f"what happened after {point} until the restart, and from it to the snapshot")
        if read["op"] == SNAPSHOT and read["epoch"] == before.epoch and read["revision"] > before.revision:
            gaps.append(f"single changes after {point} up to {read['revision']}, which the snapshot sums up")
    return "; ".join(gaps) or None


def point_of(reads: Iterable[Mapping[str, Any]], before: Summary | None) -> tuple[str, int]:
    """The epoch and revision up to which a name server is known after a batch."""
    known = [(read["epoch"], read["revision"]) for read in reads if read["op"] in (SNAPSHOT, CHANGES_READ)]
    if before is not None:
        known.append((before.epoch, before.revision))
    return max(known, default=("", 0))


def read_text(reads: Iterable[Mapping[str, Any]]) -> str:
    """The column ``read``."""
    ops = {read["op"] for read in reads}
    return ",".join(op for op in (SNAPSHOT, CHANGES_READ, LOST, BACK, HOLE) if op in ops)


def write_summaries(path: Path, summaries: list[Summary]) -> None:
    """Writes the summaries of a batch; the file appears whole.

    Raises:
        OSError: It cannot be written.
    """
    rows = [asdict(summary) for summary in summaries]
    encoded = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), encoded)
    part = path.with_name(f"_{path.name}.part")
    with disk.open_new(part) as stream:
        disk.write(stream, part, encoded.getvalue())
        disk.sync(stream, part)
    disk.rename(part, path)


def read_summaries(folder: Path, run: Run | None = None) -> list[Summary]:
    """All summaries below a folder, in the order they were written.

    Args:
        folder: The folder ``ingests`` of a store.
        run: Only those of one run; None: of all.
    """
    names = [field.name for field in fields(Summary)]
    found: list[Summary] = []
    for path in folder.glob(f"run={run.run_id if run else '*'}/batch_id=*.parquet"):
        rows = pq.read_table(path, schema=_SCHEMA, partitioning=None).to_pylist()
        found += [Summary(**{name: row[name] for name in names}) for row in rows]
    return sorted(found, key=lambda summary: (summary.ingested_at, summary.run, summary.batch_id, summary.namesrv))
