"""Labels of brokers in the tables of Spark and of the route log."""

from __future__ import annotations

from namesrv_api.v1 import route_data_pb2, route_service_pb2

from route_pipeline.arrow_schemas import batch_of
from route_pipeline.schemas import BROKERS
from route_pipeline.snapshot_rows import BrokerRows


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
