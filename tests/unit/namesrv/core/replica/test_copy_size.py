"""A copy keeps no more than its limits, whatever its leader sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from namesrv_api.v1 import admin_service_pb2, route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_internal.v1 import replica_service_pb2 as internal_pb

from namesrv.core import copy_size, pace, snapshot_load
from namesrv.core.copy_size import CopyTooLarge
from namesrv.core.replica import ReplicaIntake, ReplicaTables
from namesrv.core.state import RouteState
from namesrv.core.state_change import apply_all_now
from tests.support.breaths import breaths_of
from tests.support.virtual_clock import VirtualClock

CLUSTER, GROUP, ADDRESS = "c", "broker-a", "127.0.0.1:10911"


def intake() -> ReplicaIntake:
    return ReplicaIntake(lambda identity: ReplicaTables(identity, VirtualClock()), "copy")


def take(copy: ReplicaIntake, revision: int = 1, **content: Any) -> None:
    """Has the copy take a message of the tables."""
    header = route_data_pb2.NamesrvHeader(namesrv_name="leader", epoch="1", revision=revision)
    receive(copy, tables=pb.StreamRouteSnapshotResponse(header=header, **content))


def receive(copy: ReplicaIntake, **content: Any) -> None:
    apply_all_now(copy.take(internal_pb.FollowTablesResponse(**content)))


def queues(queue_ids: int = 0) -> route_data_pb2.QueueData:
    row = route_data_pb2.QueueData(cluster_name=CLUSTER, broker_name=GROUP, read_queue_nums=4, write_queue_nums=4)
    if queue_ids:
        row.mapping.topic_queue_ids.extend(range(queue_ids))
        row.mapping.broker_queue_ids.extend(range(queue_ids))
    return row


def topics(*names: str, queue_ids: int = 0) -> pb.SnapshotChunk:
    return pb.SnapshotChunk(topics=[pb.TopicQueues(topic=name, queue_datas=[queues(queue_ids)]) for name in names])


def group() -> route_data_pb2.BrokerData:
    address = route_data_pb2.BrokerAddr(broker_id=0, broker_addr=ADDRESS)
    return route_data_pb2.BrokerData(cluster_name=CLUSTER, broker_name=GROUP, broker_addrs=[address])


def live(address: str = ADDRESS) -> route_data_pb2.BrokerLiveInfo:
    return route_data_pb2.BrokerLiveInfo(cluster_name=CLUSTER, broker_name=GROUP, broker_addr=address)


def begun() -> ReplicaIntake:
    """A copy that has the brokers of its leader's snapshot."""
    copy = intake()
    take(copy, snapshot_header=pb.SnapshotHeader())
    cluster = route_data_pb2.ClusterData(cluster_name=CLUSTER, broker_names=[GROUP])
    take(copy, chunk=pb.SnapshotChunk(clusters=[cluster], broker_datas=[group()], live_brokers=[live()]))
    return copy


def whole() -> ReplicaIntake:
    """A copy of a leader that has one topic."""
    copy = begun()
    take(copy, chunk=topics("T1"))
    end = pb.SnapshotEnd(cluster_count=1, broker_data_count=1, live_broker_count=1, topic_count=1, queue_data_count=1)
    take(copy, snapshot_end=end)
    assert copy.tables is not None
    return copy


def state_of(copy: ReplicaIntake) -> RouteState:
    assert copy.tables is not None
    return copy.tables.state


def change(copy: ReplicaIntake, *rows: pb.RouteChange, **beyond: Any) -> None:
    """The leader's next change, and the bookmark after it."""
    revision = state_of(copy).revision + 1
    receive(copy, change_start=internal_pb.ChangeStart(revision=revision, **beyond))
    if rows:
        take(copy, revision, changes=pb.RouteChanges(changes=rows))
    take(copy, revision, changes=pb.RouteChanges())


def put(name: str, queue_ids: int = 0) -> pb.RouteChange:
    return pb.RouteChange(topic_put=pb.TopicQueues(topic=name, queue_datas=[queues(queue_ids)]))


FILTERS = route_data_pb2.FilterServerData(
    cluster_name=CLUSTER, broker_addr=ADDRESS, filter_servers=["f:1", "f:2", "f:3", "f:4"]
)
INTENTS = [admin_service_pb2.Intent()] * 6
GUARDED = [internal_pb.BrokerRef(cluster_name=CLUSTER, broker_addr=str(port)) for port in range(6)]


@pytest.mark.parametrize(
    ("limit", "content", "problem"),
    [
        ("MAX_TOPICS", {"chunk": topics(*"ABCDEF")}, "6 topics, over the limit of 5 of a copy"),
        ("MAX_QUEUE_ROWS", {"chunk": topics("A", queue_ids=5)}, "6 rows of queues, over the limit of 5 of a copy"),
        (
            "MAX_BROKER_ROWS",
            {"chunk": pb.SnapshotChunk(filter_servers=[FILTERS])},
            "10 rows about brokers, over the limit of 5 of a copy",
        ),
        ("MAX_TEXT_LENGTH", {"chunk": topics("ABCDEF")}, "a name of 6 characters, over the limit of 5 of a copy"),
    ],
)
def test_a_snapshot_over_a_limit_is_refused_while_it_comes(limit: str, content: dict[str, Any], problem: str) -> None:
    copy = begun()
    with (
        mock.patch.object(copy_size, limit, 5),
        mock.patch.object(snapshot_load, "MAX_TEXT_LENGTH", 5),
        pytest.raises(CopyTooLarge, match=f"^{problem}$"),
    ):
        take(copy, **content)
    assert copy.tables is None


@pytest.mark.parametrize(
    ("limit", "rows", "problem"),
    [
        ("MAX_BROKER_ROWS", {"guarded_brokers": GUARDED}, "6 rows about brokers"),
        ("MAX_OTHER_ROWS", {"intents": INTENTS}, "6 intents, keys and held queues"),
    ],
)
def test_state_beyond_the_tables_over_a_limit_is_refused_while_it_comes(
    limit: str, rows: dict[str, Any], problem: str
) -> None:
    copy = begun()
    with (
        mock.patch.object(copy_size, limit, 5),
        pytest.raises(CopyTooLarge, match=f"^{problem}, over the limit of 5 of a copy$"),
    ):
        receive(copy, opening=internal_pb.OpeningRows(**rows))
    assert copy.tables is None


def add_topics(copy: ReplicaIntake) -> None:
    change(copy, *(put(f"A{number}") for number in range(5)))


def map_queues(copy: ReplicaIntake) -> None:
    change(copy, put("T1", queue_ids=5))


def add_filters(copy: ReplicaIntake) -> None:
    change(copy, pb.RouteChange(filter_put=FILTERS))


def add_keys(copy: ReplicaIntake) -> None:
    keys = [internal_pb.KvChange(namespace="n", key=str(number), value="v") for number in range(6)]
    change(copy, kv_changes=keys)


def hold_queues(copy: ReplicaIntake) -> None:
    rows = [
        internal_pb.HeldQueues(topic=f"H{number}", cluster_name=CLUSTER, broker_name=GROUP, queue_data=queues())
        for number in range(6)
    ]
    receive(copy, news=internal_pb.News(held_queues=rows))


def lengthen_a_name(copy: ReplicaIntake) -> None:
    change(copy, put("x" * 100))


@pytest.mark.parametrize(
    ("limit", "grow", "problem"),
    [
        ("MAX_TOPICS", add_topics, "6 topics"),
        ("MAX_QUEUE_ROWS", add_topics, "6 rows of queues"),
        ("MAX_QUEUE_ROWS", map_queues, "6 rows of queues"),
        ("MAX_BROKER_ROWS", add_filters, "7 rows about brokers"),
        ("MAX_OTHER_ROWS", add_keys, "6 intents, keys and held queues"),
        ("MAX_KV_BYTES", add_keys, "18 bytes of KV configuration"),
        ("MAX_OTHER_ROWS", hold_queues, "6 intents, keys and held queues"),
        ("MAX_TEXT_LENGTH", lengthen_a_name, "a name of 100 characters"),
    ],
)
def test_changes_that_grow_a_copy_over_a_limit_are_refused(
    limit: str, grow: Callable[[ReplicaIntake], None], problem: str
) -> None:
    copy = whole()
    at_most = 50 if limit == "MAX_TEXT_LENGTH" else 5
    with (
        mock.patch.object(copy_size, limit, at_most),
        pytest.raises(CopyTooLarge, match=f"^{problem}, over the limit of {at_most} of a copy$"),
    ):
        grow(copy)


def test_a_copy_that_replaces_its_rows_again_and_again_does_not_count_them_twice() -> None:
    copy = whole()
    with mock.patch.object(copy_size, "MAX_QUEUE_ROWS", 3), mock.patch.object(copy_size, "MAX_BROKER_ROWS", 3):
        for _ in range(5):
            change(copy, put("T1"), pb.RouteChange(broker_put=group()), pb.RouteChange(live_put=live()))
    assert state_of(copy).revision == 6


def test_texts_of_a_cause_are_cut() -> None:
    copy = whole()
    change(copy, put("T2"), cause=internal_pb.ChangeCause(call="x", caller="y", comment="z" * 10_000))
    assert state_of(copy).change_log.last.cause == ("x", "y", "z" * copy_size.MAX_CAUSE_LENGTH)


def test_a_snapshot_that_is_given_up_is_freed_with_breaths() -> None:
    copy = begun()
    take(copy, chunk=topics(*"ABCDEF"))
    with mock.patch.object(pace, "DROPPED_AT_ONCE", 2):
        assert breaths_of(copy.let_go) == 6, "three for the names of topics, and three for their queues"
    assert copy._reader is not None
    assert copy._reader.size.topics == 0
