"""Rows for Spark and the route log: queues, which stay encoded, labels of brokers, and the rules that rows keep."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from namesrv_api.v1 import route_data_pb2, route_service_pb2

from route_pipeline import snapshot_rows
from route_pipeline.arrow_schemas import arrow_schema, batch_of
from route_pipeline.name_server import SnapshotResponse
from route_pipeline.options import EVERYTHING
from route_pipeline.quality import problems_of
from route_pipeline.schemas import BROKERS, CHANGES
from route_pipeline.snapshot_rows import COLUMNS, BrokerRows, QueueColumns
from tests.support.fakes.snapshot_name_server import Chunk, queue, topics_chunk

Topics = list[route_service_pb2.TopicQueues]

STATIC = route_data_pb2.StaticTopicMapping(
    scope="__global__", total_queue_nums=4, epoch=7, topic_queue_ids=[3], broker_queue_ids=[1]
)
STATIC_JSON = '{"currIdMap":{"3":1},"dirty":false,"epoch":7,"scope":"__global__","totalQueues":4}'


def encoded(chunk: Chunk) -> Topics:
    message = route_service_pb2.StreamRouteSnapshotResponse(chunk=chunk).SerializeToString()
    return list(SnapshotResponse.FromString(message).chunk.topics)


def test_each_queue_has_its_topic_and_its_own_numbers() -> None:
    queues = QueueColumns()
    reported = route_data_pb2.QueueData(
        cluster_name="c2",
        broker_name="b",
        read_queue_nums=1,
        write_queue_nums=2,
        perm=4,
        reported_perm=6,
        mapping=STATIC,
    )
    first = queues.of(encoded(topics_chunk(A=[queue("broker-a"), queue("broker-b", 4, 2)])), EVERYTHING)
    again = queues.of(encoded(topics_chunk(B=[queue("broker-a"), reported], C=[queue("broker-a")])), EVERYTHING)

    assert tuple(first) == COLUMNS
    assert list(zip(*(first[name].to_pylist() for name in COLUMNS), strict=True)) == [
        ("A", "DefaultCluster", "broker-a", 8, 8, 6, 0, None, None),
        ("A", "DefaultCluster", "broker-b", 4, 2, 6, 0, None, None),
    ]
    assert list(zip(*(again[name].to_pylist() for name in COLUMNS), strict=True)) == [
        ("B", "DefaultCluster", "broker-a", 8, 8, 6, 0, None, None),
        ("B", "c2", "b", 1, 2, 4, 0, 6, STATIC_JSON),
        ("C", "DefaultCluster", "broker-a", 8, 8, 6, 0, None, None),
    ]
    assert len(queues) == 3, "equal ones are decoded once"


def test_what_is_kept_is_bounded_and_what_was_forgotten_is_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_rows, "MAX_DIFFERENT_QUEUES", 2)
    queues = QueueColumns()
    names = [f"broker-{number}" for number in range(9)]

    found = [queues.of(encoded(topics_chunk(A=[queue(name)])), EVERYTHING)["broker_name"] for name in names * 2]

    assert [column.to_pylist() for column in found] == [[name] for name in names * 2]
    assert len(queues) <= 3


def test_bytes_that_are_no_queue_are_named_by_their_topic() -> None:
    topics = encoded(topics_chunk(Fine=[queue("a")], Broken=[queue("b")]))
    topics[1].queue_datas.append(b"\x0a\x05abc")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a queue of topic 'Broken' that cannot be decoded"):
        QueueColumns().of(topics, EVERYTHING)


def test_labels_of_a_broker_are_texts_sorted_by_key() -> None:
    group = route_data_pb2.BrokerData(
        cluster_name="c",
        broker_name="b",
        broker_addrs=[route_data_pb2.BrokerAddr(broker_id=number, broker_addr=f"h{number}:1") for number in (0, 1)],
    )
    live = route_data_pb2.BrokerLiveInfo(
        cluster_name="c", broker_name="b", broker_id=0, broker_addr="h0:1", labels={"row": "7", "rack": "r1"}
    )
    brokers = BrokerRows()
    brokers.add(route_service_pb2.SnapshotChunk(broker_datas=[group], live_brokers=[live]))
    origin = {"namesrv": "ns", "epoch": "1", "revision": 1, "taken_at": 0}
    assert batch_of(BROKERS, origin, brokers.rows())["labels"].to_pylist() == [["rack=r1", "row=7"], None]


# The rules of the log, each broken by one row.

SEEN = {"revision": 7, "changed_at": datetime(2026, 1, 1, tzinfo=UTC), "op": "put", "from_snapshot": False}
COMMON: dict[str, Any] = {"namesrv": "ns-a", "epoch": "0001", **SEEN}
GROUP_NAMES = {"cluster_name": "c", "broker_name": "b"}
NUMBERS = {"read_queue_nums": 65_535, "write_queue_nums": 0, "perm": 7}
QUEUE = COMMON | GROUP_NAMES | NUMBERS | {"table_name": "topic_queues", "key": "T/c/b", "topic": "T"}
ADDRESSES = [{"broker_id": 0, "broker_addr": "10.0.0.1:10911"}]
GROUP = COMMON | GROUP_NAMES | {"table_name": "broker_groups", "key": "c/b", "broker_addrs": ADDRESSES}
BROKER_NAMES = {"cluster_name": "c", "broker_addr": "10.0.0.1:10911"}
BROKER = COMMON | BROKER_NAMES | {"table_name": "brokers", "key": "c/10.0.0.1:10911", "broker_id": 0}
CLUSTER = COMMON | {"table_name": "clusters", "key": "c", "cluster_name": "c"}
FILTERS = COMMON | {"table_name": "filter_servers", "key": "c/10.0.0.1:10911", "op": "remove"}
LOST = COMMON | {"table_name": "reads", "key": "10.0.0.1:9876", "op": "lost", "epoch": "", "revision": 0}
REMOVED = {"op": "remove", "reason": "EXPIRED"}
ROWS = [QUEUE, GROUP, BROKER, CLUSTER, FILTERS, LOST, QUEUE | REMOVED | {"perm": None}, BROKER | REMOVED]


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=arrow_schema(CHANGES))


def test_rows_of_every_table_that_keep_the_rules_have_no_problem() -> None:
    assert problems_of(batch(*ROWS)) is None
    assert problems_of(batch()) is None


@pytest.mark.parametrize(
    ("row", "broken", "problem"),
    [
        (QUEUE, {"table_name": "topics"}, "table_name is none of ours"),
        (QUEUE, {"op": "snapshot"}, "op is none of ours"),
        (LOST, {"op": "put"}, "op is none of ours"),
        (QUEUE, {"namesrv": ""}, "namesrv is empty"),
        (QUEUE, {"epoch": ""}, "epoch is empty"),
        (CLUSTER, {"key": ""}, "key is empty"),
        (CLUSTER, {"revision": -1}, "revision is negative"),
        (CLUSTER, {"changed_at": datetime(1999, 12, 31, tzinfo=UTC)}, "changed_at is before 2000"),
        (QUEUE, {"broker_name": None}, "topic, cluster_name or broker_name is missing"),
        (QUEUE, {"read_queue_nums": 65_536}, "read_queue_nums is missing or out of range"),
        (QUEUE, {"write_queue_nums": -1}, "write_queue_nums is missing or out of range"),
        (QUEUE, {"perm": None}, "perm is missing or out of range"),
        (QUEUE, {"perm": 8}, "perm is missing or out of range"),
        (QUEUE | REMOVED, {"reason": "UNSPECIFIED"}, "a removal does not say why"),
        (GROUP, {"broker_name": ""}, "cluster_name or broker_name is missing"),
        (GROUP, {"broker_addrs": []}, "a group has no addresses"),
        (GROUP, {"broker_addrs": None}, "a group has no addresses"),
        (GROUP | REMOVED, {"reason": None}, "a removal does not say why"),
        (BROKER, {"broker_addr": None}, "cluster_name or broker_addr is missing"),
        (BROKER, {"broker_id": -1}, "broker_id is missing or out of range"),
        (BROKER | REMOVED, {"reason": ""}, "a removal does not say why"),
    ],
)
def test_a_row_that_breaks_a_rule_is_named_among_those_that_do_not(
    row: dict[str, Any], broken: dict[str, Any], problem: str
) -> None:
    problems = problems_of(batch(*ROWS, row | broken, *ROWS))
    assert problems is not None
    assert problems.to_pylist() == [None] * len(ROWS) + [problem] + [None] * len(ROWS)


def test_the_first_rule_that_a_row_breaks_is_told() -> None:
    problems = problems_of(batch(QUEUE | {"perm": 9}, QUEUE | {"perm": 9, "namesrv": ""}))
    assert problems is not None
    assert problems.to_pylist() == ["perm is missing or out of range", "namesrv is empty"]
