"""Snapshots of the tables: they stand still, share what is alike, and are encoded a few rows at a time."""

from __future__ import annotations

from namesrv.core.model import DataVersion
from namesrv.core.snapshot import LIVE_SLICE, RouteTable, SnapshotPart
from tests.support.core_fleet import A, B, Fleet

NEXT_VERSION = DataVersion(2_000, 2)


def test_a_snapshot_does_not_change_with_the_tables(fleet: Fleet) -> None:
    fleet.register(A, topics=("T",))
    snapshot = fleet.manager.snapshot()
    fleet.register(A, topics=("T1",), version=NEXT_VERSION)
    fleet.register(B, 1)
    assert set(snapshot.topics.rows) == {"T"}
    assert [dict(group.addrs) for group in snapshot.groups] == [{0: A}]
    assert [live.broker_addr for live in snapshot.live] == [A]


def test_two_snapshots_of_one_revision_share_the_topic_table(fleet: Fleet) -> None:
    fleet.register(A)
    first, second = fleet.manager.snapshot(), fleet.manager.snapshot()
    assert first.topics is second.topics
    fleet.register(B, 1)
    assert fleet.manager.snapshot().topics is not first.topics


LIVE_PART = SnapshotPart(0, 1, [RouteTable.LIVE_BROKERS])


def test_live_brokers_are_encoded_a_few_at_a_time(fleet: Fleet) -> None:
    for number in range(3 * LIVE_SLICE):
        fleet.register(f"10.0.{number >> 8}.{number & 255}:10911", topics=(), name=f"b-{number}")
    pauses = sum(not message for message in fleet.manager.snapshot([RouteTable.LIVE_BROKERS]).messages(LIVE_PART))
    assert pauses >= 3
