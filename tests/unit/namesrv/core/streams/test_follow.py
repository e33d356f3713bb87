"""Following a snapshot: normalised changes lead to the rows of a snapshot. Bookmarks, resuming, ends."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from hypothesis import strategies as st
from hypothesis.stateful import rule
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.core.change_stream import follow_messages
from namesrv.core.changes import ChangeLog
from namesrv.core.errors import Reason, shutting_down
from namesrv.core.model import DataVersion
from namesrv.core.snapshot import ALL_TABLES, RouteTable
from namesrv.core.watch.hub import Follower
from tests.properties import machine_test
from tests.support.core_fleet import Fleet
from tests.support.refusals import refuses
from tests.support.routes.route_rows import TABLES, FollowedRows
from tests.unit.namesrv.change_machine import ChangesMakeSnapshots


def read(
    fleet: Fleet, reader: Follower, tables: Collection[RouteTable] = ALL_TABLES
) -> list[pb.StreamRouteSnapshotResponse]:
    """Everything that a reader has not been sent, up to the bookmark."""
    state = fleet.state
    messages = [
        pb.StreamRouteSnapshotResponse.FromString(message)
        for message in follow_messages(state.change_log, reader, state.identity, tables)
        if message
    ]
    assert all(message.WhichOneof("content") == "changes" for message in messages)
    return messages


def follower(revision: int = 0) -> Follower:
    return Follower(lambda: None, revision=revision)


def test_a_lost_broker_with_ten_thousand_topics_is_one_change(fleet: Fleet) -> None:
    fleet.register(topics=[f"T{number}" for number in range(10_000)])
    reader = follower(fleet.state.revision)
    fleet.unregister()
    changes, bookmark = read(fleet, reader)
    kinds = [change.WhichOneof("row") for change in changes.changes.changes]
    assert sorted(map(str, kinds)) == ["broker_removed", "cluster_removed", "group_removed"]
    assert not bookmark.changes.changes


def test_a_follower_that_the_change_log_has_left_behind_is_told_to_start_again(fleet: Fleet) -> None:
    fleet.state.change_log = ChangeLog(max_changes=2)
    for counter in range(4):
        fleet.register(version=DataVersion(1, counter))
    with refuses(Reason.REVISION_COMPACTED):
        read(fleet, follower(1))
    assert len(read(fleet, follower(2))) == 3


def test_a_follower_in_the_middle_of_a_change_when_it_is_dropped_gets_all_of_it_and_then_is_told(fleet: Fleet) -> None:
    state = fleet.state
    state.change_log = ChangeLog(max_changes=2)
    fleet.register()
    reader = follower()
    messages = follow_messages(state.change_log, reader, state.identity, ALL_TABLES)
    assert next(messages)
    for counter in range(4):
        fleet.register(version=DataVersion(2, counter))
    with refuses(Reason.REVISION_COMPACTED):
        list(messages)
    assert reader.revision == 1


def test_a_follower_that_must_end_is_told_before_its_next_change(fleet: Fleet) -> None:
    fleet.register()
    reader = follower()
    reader.failure = shutting_down()
    with refuses(Reason.SHUTTING_DOWN):
        read(fleet, reader)


def test_a_follower_of_brokers_is_sent_no_topics_and_nothing_is_passed_over_for_it(fleet: Fleet) -> None:
    fleet.register(topics=[f"T{number}" for number in range(10_000)])
    state = fleet.state
    messages = list(follow_messages(state.change_log, follower(), state.identity, {RouteTable.LIVE_BROKERS}))
    assert len(messages) == 2, "a pause stands for work on topics"
    first, bookmark = map(pb.StreamRouteSnapshotResponse.FromString, messages)
    assert [change.WhichOneof("row") for change in first.changes.changes] == ["live_put"]
    assert not bookmark.changes.changes


def test_a_group_that_goes_is_one_change_for_each_table_that_it_changes_and_none_for_others(fleet: Fleet) -> None:
    fleet.register()
    fleet.unregister()
    told = {
        table
        for table in RouteTable
        for message in read(fleet, follower(1), {table})
        for change in message.changes.changes
        if change.WhichOneof("row") == "group_removed"
    }
    assert told == {RouteTable.CLUSTERS, RouteTable.TOPIC_QUEUES, RouteTable.BROKER_GROUPS}


SOME_TABLES = [
    *({table} for table in RouteTable),
    {RouteTable.BROKER_GROUPS, RouteTable.LIVE_BROKERS},
    {RouteTable.CLUSTERS, RouteTable.TOPIC_QUEUES},
]


class FollowersHoldSnapshots(ChangesMakeSnapshots):
    """Followers read whenever they like; at each bookmark they hold what a snapshot has."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.reader = FollowedRows(), follower()
        self.of_tables = [(tables, FollowedRows(_on_wire(tables)), follower()) for tables in SOME_TABLES]

    @rule()
    def everybody_reads(self) -> None:
        now = FollowedRows.of_snapshot(
            pb.StreamRouteSnapshotResponse.FromString(message) for message in self.fleet.state.snapshot().messages()
        )
        messages = read(self.fleet, self.reader)
        for message in messages:
            self.rows.take(message)
        assert self.rows == now
        revisions = [message.header.revision for message in messages]
        assert revisions == sorted(revisions)
        assert revisions[-1] == self.fleet.state.revision
        for tables, some, reader in self.of_tables:
            for message in read(self.fleet, reader, tables):
                some.take(message)
            held = [getattr(some, name) for name in TABLES.values()]
            of_now = now.of_tables(_on_wire(tables))
            assert held == [getattr(of_now, name) for name in TABLES.values()]

    @rule(tables=st.sets(st.sampled_from(RouteTable), min_size=1))
    def somebody_takes_a_snapshot_of_some_tables(self, tables: set[RouteTable]) -> None:
        state = self.fleet.state
        whole = state.snapshot()
        messages = list(whole.messages(tables))
        *_, end = parsed = [pb.StreamRouteSnapshotResponse.FromString(message) for message in messages]
        rows = FollowedRows.of_snapshot(parsed)
        everything = FollowedRows.of_snapshot(map(pb.StreamRouteSnapshotResponse.FromString, whole.messages()))
        assert rows == everything.of_tables(_on_wire(tables))
        counted = end.snapshot_end
        assert counted.queue_data_count == len(rows.queues)
        assert counted.topic_count == len({topic for topic, *_ in rows.queues})
        assert (counted.cluster_count, counted.broker_data_count) == (len(rows.clusters), len(rows.groups))
        assert counted.live_broker_count == len(rows.live)

    def teardown(self) -> None:
        self.everybody_reads()
        super().teardown()


def _on_wire(tables: Iterable[RouteTable]) -> list[pb.RouteTable]:
    asked = {f"ROUTE_TABLE_{table.name}" for table in tables}
    return [table for table in TABLES if pb.RouteTable.Name(table) in asked]


TestFollowersHoldSnapshots = machine_test(FollowersHoldSnapshots, 100, steps=30)
