"""What a streaming query's progress says of the name servers: how far behind each is, which are lost, how old the news.

::

    query = observed(changes).writeStream. ...
    for one in progress_of(query.lastProgress):
        print(one.namesrv, one.revisions_behind, one.lost)
    print(seconds_since_change(query.lastProgress))
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from route_pipeline.change_rows import UNKNOWN
from route_pipeline.schemas import READS
from route_pipeline.stream_reader import UP, OffsetError, Positions, from_json

OBSERVED = "namesrv"
"""Name of the metrics of :func:`observed` in a query's progress."""


@dataclass(frozen=True, slots=True)
class NamesrvProgress:
    """Where a batch left one name server."""

    address: str
    """Where it listens, host:port."""
    namesrv: str
    """Name that it gives itself; empty if it never answered."""
    lost: bool
    """Whether it did not answer when the batch was planned."""
    revisions_behind: int | None
    """Revisions that it had and that are not in the batch or before; None: not known, or it was restarted."""


def progress_of(progress: Mapping[str, Any]) -> list[NamesrvProgress]:
    """What a query's progress says of each name server, by address.

    Args:
        progress: ``query.lastProgress``, or that of a listener's event; other sources in it are passed over.
    """
    found: list[NamesrvProgress] = []
    for source in progress["sources"]:
        reached, there = _positions(source["endOffset"]), _positions(source["latestOffset"])
        for address, at in sorted(reached.items()):
            latest = there.get(address)
            same_life = latest is not None and latest.state == at.state == UP and latest.epoch == at.epoch
            behind = max(0, latest.revision - at.revision) if latest is not None and same_life else None
            found.append(NamesrvProgress(address, at.namesrv, at.state != UP, behind))
    return found


def observed(changes: DataFrame) -> DataFrame:
    """The stream ``changes`` with metrics: ``rows``, ``put_aside``, ``last_change_millis`` (the name servers' clocks).

    Rows put aside are those of changes of a kind that this version does not know.
    """
    of_namesrv = F.col("table_name") != READS
    return changes.observe(
        OBSERVED,
        F.max(F.when(of_namesrv & ~F.col("from_snapshot"), F.unix_millis("changed_at"))).alias("last_change_millis"),
        F.count(F.lit(1)).alias("rows"),
        F.count_if(F.col("table_name") == UNKNOWN).alias("put_aside"),
    )


def seconds_since_change(progress: Mapping[str, Any]) -> float | None:
    """Seconds from the newest change in a batch to the batch's start, by the clocks of both machines.

    None: there was no change in it, or the stream is not :func:`observed`.
    """
    metrics = progress["observedMetrics"].get(OBSERVED)
    changed_at: int | None = None if metrics is None else metrics["last_change_millis"]
    if changed_at is None:
        return None
    began: datetime = datetime.fromisoformat(progress["timestamp"])
    return began.timestamp() - changed_at / 1000


def _positions(offset: str | None) -> Positions:
    try:
        return from_json(json.loads(offset or "null"))
    except (OffsetError, ValueError):
        return {}
