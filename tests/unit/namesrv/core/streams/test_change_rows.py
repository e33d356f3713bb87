"""Changes as the rows of StreamRouteChanges: one for each key, bounded, with the reason of what went."""

from __future__ import annotations

from collections.abc import Iterable

from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.core.change_stream import change_messages
from namesrv.core.changes import Cause
from namesrv.core.model import DataVersion
from namesrv.core.snapshot import CHUNK_BYTES
from tests.properties import machine_test
from tests.support.core_fleet import CLUSTER, HA, A, Fleet
from tests.support.routes.route_rows import key_of
from tests.unit.namesrv.change_machine import ChangesMakeSnapshots

CAUSE = Cause("test")


def encoded(fleet: Fleet, after: int = 0) -> list[bytes]:
    state = fleet.state
    return list(change_messages(state.change_log.after(after), state.revision, state.identity))


def messages(fleet: Fleet, after: int = 0) -> list[pb.StreamRouteChangesResponse]:
    return [pb.StreamRouteChangesResponse.FromString(message) for message in encoded(fleet, after) if message]


def rows(fleet: Fleet, after: int = 0) -> list[pb.RouteChange]:
    return [row for message in messages(fleet, after) for row in message.changes.changes]


def tables(changes: Iterable[pb.RouteChange]) -> list[str]:
    return sorted(str(row.WhichOneof("row")) for row in changes)


def only(changes: Iterable[pb.RouteChange], name: str) -> list[pb.RouteChange]:
    return [row for row in changes if row.WhichOneof("row") == name]


def test_a_registration_has_a_row_in_each_table_with_the_time_it_was_applied() -> None:
    fleet = Fleet()
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


def test_changes_end_at_the_revision_asked_for() -> None:
    fleet = Fleet()
    for counter in range(1, 5):
        fleet.register(version=DataVersion(1, counter))
    state = fleet.state
    stream = change_messages(state.change_log.after(1), 3, state.identity)
    read = [pb.StreamRouteChangesResponse.FromString(message) for message in stream]
    assert [(message.header.revision, message.HasField("changes")) for message in read] == [
        (2, True),
        (3, True),
        (3, False),
    ]


def test_a_lost_group_has_a_row_for_each_of_its_topics_and_says_why() -> None:
    fleet = Fleet()
    fleet.register(topics=["T1", "T2"], timeout_seconds=60.0)
    fleet.clock.advance(61.0)
    fleet.scan()
    gone = rows(fleet, after=1)
    assert tables(gone) == ["broker_removed", "cluster_removed", "group_removed", "topic_removed", "topic_removed"]
    assert {row.topic_removed.topic for row in only(gone, "topic_removed")} == {"T1", "T2"}
    reasons = {row.WhichOneof("row"): getattr(row, row.WhichOneof("row") or "").reason for row in gone}
    expired = route_data_pb2.REMOVAL_REASON_EXPIRED
    assert reasons == {
        "broker_removed": expired,
        "cluster_removed": expired,
        "group_removed": expired,
        "topic_removed": route_data_pb2.REMOVAL_REASON_GROUP_GONE,
    }


def test_a_large_change_comes_in_bounded_messages_of_one_revision() -> None:
    fleet = Fleet()
    fleet.register(topics=[f"topic-{number}" for number in range(20_000)])
    sent = encoded(fleet)
    assert max(map(len, sent)) < CHUNK_BYTES + 1_000
    read = messages(fleet)
    assert len(read) > 5
    assert {message.header.revision for message in read} == {1}
    keys = [key_of(row) for message in read for row in message.changes.changes]
    assert len(keys) == len(set(keys)) == 20_003


TestChangesMakeSnapshots = machine_test(ChangesMakeSnapshots, 250, steps=30)
