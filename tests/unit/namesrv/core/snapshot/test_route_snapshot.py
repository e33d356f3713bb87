"""Snapshots of the tables: they stand still, share what is alike, and are encoded a few rows at a time."""

from __future__ import annotations

import pytest

from namesrv.core import pace
from namesrv.core.model import DataVersion
from namesrv.core.snapshot import RouteTable
from tests.support.breaths import breaths_of
from tests.support.core_fleet import A, B, Fleet

NEXT_VERSION = DataVersion(2_000, 2)


def test_a_snapshot_does_not_change_with_the_tables(fleet: Fleet) -> None:
    fleet.register(A, topics=("T",))
    taken = fleet.state.snapshot()
    fleet.register(A, topics=("T1",), version=NEXT_VERSION)
    fleet.register(B, 1)
    assert set(taken.tables.topic_queue_table) == {"T"}
    assert [group.addrs for group in taken.tables.broker_addr_table.values()] == [{0: A}]
    assert [live.broker_addr for live in taken.tables.broker_live_table.values()] == [A]


def test_two_snapshots_of_one_revision_share_the_tables(fleet: Fleet) -> None:
    fleet.register(A)
    first, second = fleet.state.snapshot(), fleet.state.snapshot()
    assert first.tables is second.tables
    fleet.register(A, topics=("T2",), version=NEXT_VERSION)
    assert fleet.state.snapshot().tables is not first.tables


@pytest.mark.parametrize("table", [RouteTable.TOPIC_QUEUES, RouteTable.LIVE_BROKERS])
def test_messages_are_made_with_breaths(fleet: Fleet, table: RouteTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace.paced, "__defaults__", (10,))
    for number in range(31):
        fleet.register(f"10.0.0.{number}:10911", topics=[f"T{number}"], name=f"broker-{number}")
    messages = fleet.state.snapshot().messages([table])
    assert breaths_of(lambda: list(messages)) == 3
