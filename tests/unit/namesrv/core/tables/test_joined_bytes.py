"""Pieces joined by hand parse to exactly the message that generated code encodes, whatever the values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from namesrv_api.v1 import route_data_pb2, route_service_pb2

from namesrv.core import encoding
from namesrv.core.model import BrokerData, BrokerKey, Member
from namesrv.core.snapshot import topic_row
from tests.support.core_fleet import addrs_of

_TEXTS = st.text(st.characters(codec="utf-8"), max_size=300)
_NUMBERS = st.integers(0, 2**31 - 1)


@given(st.integers(0, 2**64 - 1))
def test_varints_are_protobufs(value: int) -> None:
    message = route_data_pb2.NamesrvHeader(revision=value - 2**64 if value >= 2**63 else value)
    assert message.SerializeToString() == bytes([3 << 3]) + encoding.varint(value)


@given(_TEXTS, _TEXTS, st.lists(_NUMBERS, min_size=4, max_size=4))
def test_a_queue_data_fragment_is_a_field_of_the_route(cluster: str, name: str, numbers: list[int]) -> None:
    read, write, perm, flag = numbers
    fragment = encoding.queue_data_fragment(BrokerKey(cluster, name), (read, write, perm, flag))
    expected = route_data_pb2.TopicRouteData()
    expected.queue_datas.add(
        broker_name=name, cluster_name=cluster, read_queue_nums=read, write_queue_nums=write, perm=perm,
        topic_sys_flag=flag,
    )  # fmt: skip
    assert fragment == expected.SerializeToString()


@given(
    _TEXTS, _TEXTS, st.dictionaries(st.integers(0, 2**63 - 1), _TEXTS, max_size=20), st.none() | _TEXTS,
    st.none() | st.booleans(),
)  # fmt: skip
def test_a_broker_data_fragment_is_a_field_of_the_route(
    cluster: str, name: str, addrs: dict[int, str], zone: str | None, acting: bool | None
) -> None:
    members = tuple(Member(broker_id, addr) for broker_id, addr in sorted(addrs.items()))
    fragment = encoding.broker_data_fragment(BrokerData(BrokerKey(cluster, name), members, zone, acting))
    parsed = route_data_pb2.TopicRouteData.FromString(fragment)
    assert len(parsed.broker_datas) == 1
    group = parsed.broker_datas[0]
    assert (group.cluster_name, group.broker_name, addrs_of(group)) == (cluster, name, addrs)
    assert group.HasField("zone_name") == (zone is not None)
    assert group.zone_name == (zone or "")
    assert group.HasField("enable_acting_master") == (acting is not None)
    assert group.enable_acting_master == bool(acting)


@given(st.text("abc%_-", min_size=1, max_size=127), st.integers(0, 400))
def test_a_topic_row_is_a_field_of_a_snapshot_chunk(topic: str, width: int) -> None:
    brokers = [BrokerKey("cluster", f"broker-{number}") for number in range(width)]
    queues = tuple(encoding.queue_data_fragment(broker, (4, 4, 6, 0)) for broker in brokers)
    parsed = route_service_pb2.SnapshotChunk.FromString(topic_row(topic, queues))
    assert [row.topic for row in parsed.topics] == [topic]
    assert [queue.broker_name for queue in parsed.topics[0].queue_datas] == [broker.broker_name for broker in brokers]
