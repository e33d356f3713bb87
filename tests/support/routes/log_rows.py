"""Rows of a log, and batches of them, without a name server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from route_pipeline.arrow_schemas import arrow_schema
from route_pipeline.log.data_files import BatchRows
from route_pipeline.log.place import Place
from route_pipeline.log.route_log import RouteLog
from route_pipeline.questions import questions
from route_pipeline.schemas import CHANGES

NOON = datetime(2026, 1, 2, 12, 0, 0, 5, tzinfo=UTC)
_SCHEMA = arrow_schema(CHANGES)


def row(namesrv: str = "ns-a", revision: int = 1, at: datetime = NOON, **more: Any) -> dict[str, Any]:
    """A row of a change, of the first snapshot."""
    own = {"namesrv": namesrv, "epoch": "01", "revision": revision, "changed_at": at, "op": "put", "snapshot": 1}
    return dict.fromkeys(_SCHEMA.names) | own | {"from_snapshot": False} | more


def cluster(revision: int, name: str = "c", **more: Any) -> dict[str, Any]:
    return row(revision=revision, table_name="clusters", key=name, cluster_name=name, **more)


def read(revision: int, op: str = "changes", **more: Any) -> dict[str, Any]:
    """A row in which the reader says what it read."""
    return row(revision=revision, **({"table_name": "reads", "key": "127.0.0.1:1", "op": op} | more))


def staged(place: Place, *rows: dict[str, Any], at: datetime = NOON) -> BatchRows:
    """The files of rows, and what the reader says of them."""
    found = BatchRows(place, at)
    found.add_all([pa.RecordBatch.from_pylist(list(rows), _SCHEMA)])
    return found


def append(log: RouteLog, *revisions: int, op: str = "changes") -> int:
    """Appends a batch with a row for each revision; its number."""
    return append_rows(log, *(cluster(one) for one in revisions), read(max(revisions), op))


def append_rows(log: RouteLog, *rows: dict[str, Any], at: datetime = NOON) -> int:
    """Appends a batch with these rows; its number."""
    batch = staged(log.place, *rows, at=at)
    return log.append(batch.files, batch.reads)


def revisions_of(place: Place) -> list[int]:
    """The revisions of the changes in a log."""
    with questions(place) as asked:
        found = asked.ask("select revision from log where kind = 'changes' order by revision")
    return [one["revision"] for one in found]
