"""What the report opens with, computed by a real Spark from rows of a log."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from route_pipeline.log.data_files import INGESTED_AT, LOG_DDL
from route_pipeline.log.history import history
from route_pipeline.log.protocol.state import LogState
from route_pipeline.log.protocol.summaries import Summary
from route_pipeline.queries import Change, Disagreement, Flap, last_day, latest_state
from route_pipeline.schemas import CHANGE_COLUMNS
from tests.support.spark_session import spark

__all__ = ["spark"]  # pytest finds the fixture by its name in this module

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
EMPTY: dict[str, Any] = dict.fromkeys([*(column.name for column in CHANGE_COLUMNS), INGESTED_AT])


def at(hours: float) -> datetime:
    return NOON + timedelta(hours=hours)


def row(namesrv: str, revision: int, hours: float, **more: Any) -> dict[str, Any]:
    """A row, changed at a time and ingested then."""
    seen = {"changed_at": at(hours), INGESTED_AT: at(hours), "from_snapshot": False, "op": "put"}
    return EMPTY | {"namesrv": namesrv, "epoch": "01", "revision": revision} | seen | more


def broker(namesrv: str, revision: int, hours: float, key: str, **more: Any) -> dict[str, Any]:
    named = {"table_name": "brokers", "key": key, "cluster_name": "c", "broker_name": "b", "broker_addr": key}
    return row(namesrv, revision, hours, **named, **more)


def snapshot(namesrv: str, hours: float, *keys: str) -> list[dict[str, Any]]:
    mark = row(namesrv, 1, hours, table_name="reads", key=namesrv, op="snapshot")
    return [*(broker(namesrv, 1, hours, key, from_snapshot=True) for key in keys), mark]


def test_the_last_day_ends_with_the_last_ingest_and_a_first_read_is_no_news(spark: SparkSession) -> None:
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
    changes = spark.createDataFrame([tuple(one.values()) for one in rows], LOG_DDL).cache()
    versions = history(changes).cache()

    found = last_day(changes, versions)

    assert found.until == NOON
    assert found.counts == [("brokers", 1, 1, 2)]
    assert found.latest[:3] == [
        Change(at(0), "brokers", "y", "went", "EXPIRED", ("ns-b",)),
        Change(at(-0.25), "brokers", "y", "changed", "", ("ns-a", "ns-b")),
        Change(at(-1), "brokers", "x", "came", "", ("ns-a",)),
    ]
    assert found.flaps == [Flap("x", 2, at(-2), ("EXPIRED",), ("ns-a",))]
    known = {name: Summary("run", 0, NOON, name, "01", 3, 0, 0, "changes", None) for name in ("ns-a", "ns-b")}
    latest = latest_state(LogState(known=known), changes, versions)
    assert latest.open_disagreements == 2
    assert latest.disagreements == [
        Disagreement(at(-3), "brokers", "z", ("ns-b",), ("ns-a",)),
        Disagreement(at(0), "brokers", "y", ("ns-a",), ("ns-b",)),
    ]
