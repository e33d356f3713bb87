"""The summaries of a batch: one for each name server, with what was read and what is missing. Its commit has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from route_pipeline.change_rows import BACK, CHANGES_READ, HOLE, LOST, SNAPSHOT


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
