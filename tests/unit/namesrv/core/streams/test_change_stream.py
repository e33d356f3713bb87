"""Changes as rows: one for each key, bounded, with the reason of what went. Followers of a snapshot, and their ends."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.core.changes import ChangeLog
from namesrv.core.errors import Reason, shutting_down
from namesrv.core.model import DataVersion
from namesrv.core.snapshot import ALL_TABLES, CHUNK_BYTES
from namesrv.core.watch.hub import ChangeReader
from namesrv.core.watch.messages import change_messages, follow_messages
from tests.support.core_fleet import CLUSTER, HA, A, Fleet
from tests.support.refusals import refuses
from tests.support.routes.route_rows import key_of


def encoded(fleet: Fleet, after: int = 0) -> list[bytes]:
    state = fleet.state
    return list(change_messages(state.change_log.after(after), state.revision, state.identity))


def messages(fleet: Fleet, after: int = 0) -> list[pb.StreamRouteChangesResponse]:
    return [pb.StreamRouteChangesResponse.FromString(message) for message in encoded(fleet, after) if message]


def tables(changes: Iterable[pb.RouteChange]) -> list[str]:
    return sorted(str(row.WhichOneof("row")) for row in changes)


def test_a_registration_has_a_row_in_each_table_with_the_time_it_was_applied(fleet: Fleet) -> None:
    fleet.register(topics=[("T", (1, 2, 6, 3))], ha=HA, filter_servers=("f:1",))
    changes, end = messages(fleet)
    assert tables(changes.changes.changes) == ["broker_put", "cluster_put", "filter_put", "live_put", "topic_put"]
    assert changes.changes.applied_at_millis == fleet.clock.wall_millis()
    by_name = {row.WhichOneof("row"): row for row in changes.changes.changes}
    assert by_name["topic_put"].topic_put == pb.TopicQueues(
        topic="T",
        queue_datas=[
            route_data_pb2.QueueData(
                broker_name="broker-a", cluster_name=CLUSTER,
                read_queue_nums=1, write_queue_nums=2, perm=6, topic_sys_flag=3,
            )
        ],
    )  # fmt: skip
    live = by_name["live_put"].live_put
    assert (live.broker_addr, live.ha_server_addr) == (A, HA)
    assert live.last_update_timestamp_millis == fleet.clock.wall_millis()
    assert list(by_name["cluster_put"].cluster_put.broker_names) == ["broker-a"]
    assert changes.header == end.header == fleet.state.header()
    assert not end.HasField("changes")


def test_a_lost_group_has_a_row_for_each_of_its_topics_and_says_why(fleet: Fleet) -> None:
    fleet.register(topics=["T1", "T2"], timeout_seconds=60.0)
    fleet.clock.advance(61.0)
    fleet.scan()
    gone = [row for message in messages(fleet, after=1) for row in message.changes.changes]
    assert tables(gone) == ["broker_removed", "cluster_removed", "group_removed", "topic_removed", "topic_removed"]
    assert {row.topic_removed.topic for row in gone if row.HasField("topic_removed")} == {"T1", "T2"}
    reasons = {row.WhichOneof("row"): getattr(row, row.WhichOneof("row") or "").reason for row in gone}
    expired = route_data_pb2.REMOVAL_REASON_EXPIRED
    assert reasons == {
        "broker_removed": expired,
        "cluster_removed": expired,
        "group_removed": expired,
        "topic_removed": route_data_pb2.REMOVAL_REASON_GROUP_GONE,
    }


def test_a_large_change_comes_in_bounded_messages_of_one_revision(fleet: Fleet) -> None:
    fleet.register(topics=[f"topic-{number}" for number in range(20_000)])
    sent = encoded(fleet)
    assert max(map(len, sent)) < CHUNK_BYTES + 1_000
    read = messages(fleet)
    assert len(read) > 5
    assert {message.header.revision for message in read} == {1}
    keys = [key_of(row) for message in read for row in message.changes.changes]
    assert len(keys) == len(set(keys)) == 20_003


# Followers of a snapshot: a group that goes is one change for them.


def read(
    fleet: Fleet, reader: ChangeReader, tables: Collection[pb.RouteTable] = ALL_TABLES
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


def follower(revision: int = 0) -> ChangeReader:
    return ChangeReader(lambda: None, revision=revision)


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
    messages = list(follow_messages(state.change_log, follower(), state.identity, {pb.ROUTE_TABLE_LIVE_BROKERS}))
    assert len(messages) == 2, "a pause stands for work on topics"
    first, bookmark = map(pb.StreamRouteSnapshotResponse.FromString, messages)
    assert [change.WhichOneof("row") for change in first.changes.changes] == ["live_put"]
    assert not bookmark.changes.changes


def test_a_group_that_goes_is_one_change_for_each_table_that_it_changes_and_none_for_others(fleet: Fleet) -> None:
    fleet.register()
    fleet.unregister()
    told = {
        table
        for table in ALL_TABLES
        for message in read(fleet, follower(1), {table})
        for change in message.changes.changes
        if change.WhichOneof("row") == "group_removed"
    }
    assert told == {pb.ROUTE_TABLE_CLUSTERS, pb.ROUTE_TABLE_TOPIC_QUEUES, pb.ROUTE_TABLE_BROKER_GROUPS}
