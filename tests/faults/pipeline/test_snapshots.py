"""Snapshots that are newer than they were planned, or that come twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from namesrv.core.model import DataVersion
from route_pipeline.log.ingest import ingest
from route_pipeline.log.protocol.route_log import RouteLog, files
from tests.support.routes.fleet_life import LivingNamesrv
from tests.support.routes.route_history import state_at, versions_of
from tests.support.spark_session import spark
from tests.support.virtual_clock import VirtualClock

__all__ = ["spark"]  # pytest finds the fixture by its name in this module

SEED = 4242
OPTIONS = {"onCompacted": "resync", "connectTimeoutSeconds": "1"}
A, B = "10.0.0.1:10911", "10.0.0.2:10911"
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture
def store(tmp_path: Path) -> RouteLog:
    return RouteLog.create(tmp_path / "log")


@pytest.fixture
def namesrv(spark: SparkSession) -> Iterator[LivingNamesrv]:
    """It starts after Spark: a fork under gRPC's threads can go wrong. It knows two brokers."""
    assert spark.version
    with LivingNamesrv("ns-a", VirtualClock()) as living:
        for addr in (A, B):
            register(living, addr, "Base")
        yield living


def register(namesrv: LivingNamesrv, addr: str, *topics: str) -> None:
    namesrv.clock.advance(1)
    version = DataVersion(1_000, namesrv.fleet.state.revision + 1)
    namesrv.fleet.register(addr, 0, list(topics), name=f"broker-{addr}", cluster="c0", version=version)
    namesrv.note()


def unregister(namesrv: LivingNamesrv, addr: str) -> None:
    namesrv.clock.advance(1)
    namesrv.fleet.unregister(addr, name=f"broker-{addr}", cluster="c0")
    namesrv.note()


def changes_of(store: RouteLog) -> Counter[tuple[object, ...]]:
    """How often each row of a change is in the log."""
    columns = ["namesrv", "epoch", "revision", "table_name", "key", "from_snapshot"]
    rows = ds.dataset(files(store.url)).to_table(columns=[*columns, "op"]).to_pylist()
    return Counter(tuple(row.values()) for row in rows if not row["from_snapshot"] and row["table_name"] != "reads")


def test_a_snapshot_newer_than_its_plan_and_later_changes_are_one_history(
    spark: SparkSession, store: RouteLog, namesrv: LivingNamesrv
) -> None:
    planned = namesrv.moments[-1]

    def go_on() -> None:
        register(namesrv, A, "Base", "Between")
        unregister(namesrv, B)
        register(namesrv, A, "Base")

    namesrv.before_pin = go_on
    ingest(spark, [namesrv.endpoint], store, OPTIONS)
    namesrv.before_pin = lambda: None
    taken = namesrv.moments[-1]
    assert taken.revision == planned.revision + 3
    register(namesrv, B, "Base", "After")
    ingest(spark, [namesrv.endpoint], store, OPTIONS)

    told = changes_of(store)
    assert set(told.values()) == {1}
    assert {row[2] for row in told} == set(range(planned.revision + 1, namesrv.moments[-1].revision + 1))
    versions = versions_of(spark, store)
    for moment in namesrv.moments:
        if moment.revision >= taken.revision:
            assert state_at(versions, "ns-a", moment) == moment.state, moment.revision


def test_a_snapshot_that_comes_again_with_a_new_checkpoint_changes_nothing(
    spark: SparkSession, store: RouteLog, namesrv: LivingNamesrv
) -> None:
    ingest(spark, [namesrv.endpoint], store, OPTIONS)
    register(namesrv, A, "Base", "More")
    ingest(spark, [namesrv.endpoint], store, OPTIONS)
    before = sorted(versions_of(spark, store), key=repr)

    again = ingest(spark, [namesrv.endpoint], store, OPTIONS, new_run=True)

    assert [summary.read for summary in again.summaries] == ["snapshot"]
    assert sorted(versions_of(spark, store), key=repr) == before
