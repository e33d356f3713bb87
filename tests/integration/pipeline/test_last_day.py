"""What the report opens with, computed from rows of a log."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa

from route_pipeline.log.place import SCHEMA
from route_pipeline.questions import Questions
from route_pipeline.report_data import collect_report

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
EMPTY: dict[str, Any] = dict.fromkeys(SCHEMA.names)


def at(hours: float) -> datetime:
    return NOON + timedelta(hours=hours)


def row(namesrv: str, revision: int, hours: float, **more: Any) -> dict[str, Any]:
    """A row, changed at a time and ingested then."""
    seen = {"changed_at": at(hours), "ingested_at": at(hours), "from_snapshot": False, "op": "put"}
    own = {"namesrv": namesrv, "epoch": "01", "revision": revision, "snapshot": 1, "kind": "changes", "batch": revision}
    return EMPTY | own | seen | more


def broker(namesrv: str, revision: int, hours: float, key: str, **more: Any) -> dict[str, Any]:
    named = {"table_name": "brokers", "key": key, "cluster_name": "c", "broker_name": "b", "broker_addr": key}
    return row(namesrv, revision, hours, **named, **more)


def snapshot(namesrv: str, hours: float, *keys: str) -> list[dict[str, Any]]:
    mark = row(namesrv, 1, hours, table_name="reads", key=namesrv, op="snapshot", kind="reads")
    return [*(broker(namesrv, 1, hours, key, from_snapshot=True) for key in keys), mark]


def test_the_last_day_ends_with_the_last_ingest_and_a_first_read_is_no_news() -> None:
    gone = {"op": "remove", "reason": "EXPIRED"}
    rows = [
        *snapshot("ns-a", -30, "x", "y", "old"),
        *snapshot("ns-b", -3, "x", "y", "z"),
        broker("ns-a", 2, -28, "old", **gone),  # before the day
        broker("ns-a", 3, -5, "x", **gone),
        broker("ns-a", 4, -4, "x"),
        broker("ns-a", 5, -2, "x", **gone),
        broker("ns-a", 6, -1, "x"),
        broker("ns-a", 7, -0.5, "y", zone_name="zone-2"),
        broker("ns-b", 2, -0.25, "y", zone_name="zone-2"),
        broker("ns-b", 3, 0, "y", **gone),
    ]
    table = pa.Table.from_pylist(rows, SCHEMA)
    with duckdb.connect() as connection:
        connection.register("given", table)
        data = collect_report(Questions(connection, "create view log as from given;"))

    assert data.until == NOON
    assert data.changed == [{"table_name": "brokers", "came": 1, "changed": 1, "went": 2}]
    assert [tuple(one.values()) for one in data.latest[:3]] == [
        (at(0), "brokers", "y", "went", "EXPIRED", ["ns-b"]),
        (at(-0.25), "brokers", "y", "changed", "", ["ns-a", "ns-b"]),
        (at(-1), "brokers", "x", "came", "", ["ns-a"]),
    ]
    assert [tuple(one.values()) for one in data.flaps] == [("x", 2, at(-2), ["EXPIRED"], ["ns-a"])]
    assert data.open_disagreements == 2
    told = [(one["since"], one["key"], one["have"], one["lack"]) for one in data.disagreements]
    assert told == [(at(-3), "z", ["ns-b"], ["ns-a"]), (at(0), "y", ["ns-a"], ["ns-b"])]
