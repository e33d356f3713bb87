"""Snapshots that are newer than they were planned, or that come twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from namesrv.core.model import DataVersion
from route_pipeline.ingest import Appended, Ingester, ingest_options
from route_pipeline.log.place import Place
from route_pipeline.log.route_log import RouteLog
from route_pipeline.questions import questions
from tests.support.routes.fleet_life import LivingNamesrv
from tests.support.routes.route_history import state_at, versions_of
from tests.support.virtual_clock import VirtualClock

SEED = 4242
OPTIONS = {"onCompacted": "resync", "connectTimeoutSeconds": "1"}
A, B = "10.0.0.1:10911", "10.0.0.2:10911"


@pytest.fixture
def log(tmp_path: Path) -> RouteLog:
    return RouteLog(Place(str(tmp_path / "log")))


def ingest(log: RouteLog, namesrv: LivingNamesrv, *, restart: bool = False) -> list[Appended]:
    return Ingester(ingest_options([namesrv.endpoint], OPTIONS), log, restart=restart).once()


@pytest.fixture
def namesrv() -> Iterator[LivingNamesrv]:
    """It knows two brokers."""
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


def changes_of(log: RouteLog) -> Counter[tuple[object, ...]]:
    """How often each row of a change is in the log."""
    columns = "namesrv, epoch, revision, table_name, key, op"
    with questions(log.place) as asked:
        rows = asked.ask(f"select {columns} from log where kind = 'changes' and not from_snapshot")
    return Counter(tuple(row.values()) for row in rows)


def test_a_snapshot_newer_than_its_plan_is_one_history_with_changes(log: RouteLog, namesrv: LivingNamesrv) -> None:
    planned = namesrv.moments[-1]

    def go_on() -> None:
        register(namesrv, A, "Base", "Between")
        unregister(namesrv, B)
        register(namesrv, A, "Base")

    namesrv.before_pin = go_on
    ingest(log, namesrv)
    namesrv.before_pin = lambda: None
    taken = namesrv.moments[-1]
    assert taken.revision == planned.revision + 3
    register(namesrv, B, "Base", "After")
    ingest(log, namesrv)

    told = changes_of(log)
    assert set(told.values()) == {1}
    assert {row[2] for row in told} == {taken.revision + 1}, "what the snapshot holds is not read again"
    versions = versions_of(log.place)
    for moment in namesrv.moments:
        if moment.revision >= taken.revision:
            assert state_at(versions, "ns-a", moment) == moment.state, moment.revision
