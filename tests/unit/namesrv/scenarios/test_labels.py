"""Labels of brokers in requests. RocketMQ has none."""

from __future__ import annotations

from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from namesrv.core.errors import Reason
from namesrv.grpc_api.registration import read_registration
from namesrv_common.topic_names import MAX_LABELS, Labels
from tests.support.core_fleet import A
from tests.support.refusals import refuses


def read(labels: dict[str, str] | None) -> Labels | None:
    """The labels of a request."""
    request = pb.RegisterBrokerRequest(
        broker=route_data_pb2.BrokerIdentity(cluster_name="c", broker_name="b", broker_id=0, broker_addr=A),
        data_version=route_data_pb2.DataVersion(timestamp_millis=1, counter=1),
        labels=None if labels is None else pb.BrokerLabels(labels=labels),
    )
    return read_registration(request).labels


def test_labels_of_a_request_are_absent_empty_or_checked() -> None:
    most = {f"key-{number:02}": "v" for number in range(MAX_LABELS)}
    assert (read(None), read({}), read(most)) == (None, (), tuple(most.items()))
    with refuses(Reason.LIMIT_EXCEEDED) as caught:
        read({**most, "one-more": ""})
    assert caught.value.metadata == {"name": "labels of a broker", "value": "17", "limit": "16"}
    with refuses(Reason.INVALID_FIELD, match=r"labels\.labels: has the key 'rack', whose value has 64 characters"):
        read({"rack": "v" * 64})
