"""Rows of snapshots for Spark and the route log: queues, which stay encoded, and labels of brokers."""

from __future__ import annotations

import pytest
from namesrv_api.v1 import route_data_pb2, route_service_pb2

from route_pipeline import snapshot_rows
from route_pipeline.arrow_schemas import batch_of
from route_pipeline.name_server import SnapshotResponse
from route_pipeline.options import EVERYTHING
from route_pipeline.schemas import BROKERS
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
