"""The pieces of encoded protobuf that answers are joined from: encoded once when a row changes, joined at each lookup.

A protobuf message is the concatenation of its fields, so an answer is a join of framed pieces. The same piece serves
several messages because they give the field the same number; the asserts below hold that together.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from namesrv_api.v1 import admin_service_pb2, route_data_pb2, route_service_pb2

from namesrv.core.model import (
    BrokerData,
    BrokerKey,
    BrokerLiveInfo,
    Doubted,
    Intent,
    LiveKey,
    QueueNumbers,
    RemovalReason,
    StaticMapping,
)
from namesrv.core.pace import yield_point

_LENGTH_DELIMITED = 2

_ROUTE = route_data_pb2.TopicRouteData
_MAPPING = route_data_pb2.StaticTopicMapping
_CHUNK = route_service_pb2.SnapshotChunk
_CLUSTER_INFO = route_service_pb2.GetBrokerClusterInfoResponse
_CHANGED_NUMBER = "the wire contract gives one field two numbers"
assert _ROUTE.QUEUE_DATAS_FIELD_NUMBER == route_service_pb2.TopicQueues.QUEUE_DATAS_FIELD_NUMBER, _CHANGED_NUMBER
assert _ROUTE.BROKER_DATAS_FIELD_NUMBER == _CHUNK.BROKER_DATAS_FIELD_NUMBER, _CHANGED_NUMBER
assert _ROUTE.BROKER_DATAS_FIELD_NUMBER == _CLUSTER_INFO.BROKER_DATAS_FIELD_NUMBER, _CHANGED_NUMBER
assert _ROUTE.FILTER_SERVERS_FIELD_NUMBER == _CHUNK.FILTER_SERVERS_FIELD_NUMBER, _CHANGED_NUMBER


def varint(value: int) -> bytes:
    """A non-negative number in protobuf's base-128 encoding."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_SHORT = tuple(varint(number) for number in range(1 << 14))
"""Lengths are nearly always below 16 Ki: encoding one is then an index."""


@cache
def tag(field_number: int) -> bytes:
    """The tag that a length-delimited field starts with."""
    return varint(field_number << 3 | _LENGTH_DELIMITED)


def frame(field_number: int, *parts: bytes) -> bytes:
    """A payload, in parts, as one length-delimited field of a message."""
    payload = b"".join(parts)
    length = _SHORT[len(payload)] if len(payload) < len(_SHORT) else varint(len(payload))
    return b"".join((tag(field_number), length, payload))


def queue_data_fragment(
    broker: BrokerKey, numbers: QueueNumbers, mapping: bytes = b"", reported_perm: int | None = None
) -> bytes:
    """A QueueData, framed as the field queue_datas. A mapping must be framed as ``mapping_field`` makes it."""
    read_queue_nums, write_queue_nums, perm, topic_sys_flag = numbers
    message = route_data_pb2.QueueData(
        broker_name=broker.broker_name,
        cluster_name=broker.cluster_name,
        read_queue_nums=read_queue_nums,
        write_queue_nums=write_queue_nums,
        perm=perm,
        topic_sys_flag=topic_sys_flag,
        reported_perm=reported_perm,
    )
    # The mapping is the field with the highest number.
    return frame(_ROUTE.QUEUE_DATAS_FIELD_NUMBER, message.SerializeToString(), mapping)


def mapping_field(mapping: StaticMapping) -> bytes:
    """A static topic's mapping, framed as the field mapping of a QueueData.

    A topic may have tens of thousands of queues: encoding them takes milliseconds, and is done once.
    """
    scope, total_queues, epoch, is_dirty, queue_ids = mapping
    head = _MAPPING(scope=scope, total_queue_nums=total_queues, epoch=epoch, dirty=is_dirty)
    # The lists are the last two fields, so the parts are the message.
    parts = [head.SerializeToString()]
    yield_point()
    parts.append(_MAPPING(topic_queue_ids=[queue for queue, _ in queue_ids]).SerializeToString())
    yield_point()
    parts.append(_MAPPING(broker_queue_ids=[queue for _, queue in queue_ids]).SerializeToString())
    yield_point()
    return frame(route_data_pb2.QueueData.MAPPING_FIELD_NUMBER, *parts)


def broker_data_fragment(group: BrokerData) -> bytes:
    """A BrokerData, framed as the field broker_datas."""
    # The same rows must give the same bytes, and a map has no order of its own.
    return frame(_ROUTE.BROKER_DATAS_FIELD_NUMBER, broker_data(group).SerializeToString(deterministic=True))


def broker_data(group: BrokerData) -> route_data_pb2.BrokerData:
    message = route_data_pb2.BrokerData(
        cluster_name=group.key.cluster_name,
        broker_name=group.key.broker_name,
        broker_addrs=[
            route_data_pb2.BrokerAddr(broker_id=one.broker_id, broker_addr=one.broker_addr, labels=dict(one.labels))
            for one in group.members
        ],
        zone_name=group.zone_name,
        unconfirmed_broker_ids=[member.broker_id for member in group.unconfirmed],
    )
    if group.enable_acting_master is not None:
        message.enable_acting_master = group.enable_acting_master
    return message


def filter_servers_fragment(key: LiveKey, filter_servers: Iterable[str]) -> bytes:
    """A FilterServerData, framed as the field filter_servers."""
    return frame(_ROUTE.FILTER_SERVERS_FIELD_NUMBER, filter_server_data(key, filter_servers).SerializeToString())


def filter_server_data(key: LiveKey, filter_servers: Iterable[str]) -> route_data_pb2.FilterServerData:
    cluster_name, broker_addr = key
    return route_data_pb2.FilterServerData(
        cluster_name=cluster_name, broker_addr=broker_addr, filter_servers=filter_servers
    )


def cluster_data(cluster_name: str, broker_names: Iterable[str]) -> route_data_pb2.ClusterData:
    return route_data_pb2.ClusterData(cluster_name=cluster_name, broker_names=sorted(broker_names))


def broker_live_info(
    live: BrokerLiveInfo, last_update_millis: int, doubted: Doubted | None = None
) -> route_data_pb2.BrokerLiveInfo:
    version = live.data_version
    return route_data_pb2.BrokerLiveInfo(
        cluster_name=live.broker.cluster_name,
        broker_name=live.broker.broker_name,
        broker_id=live.broker_id,
        broker_addr=live.broker_addr,
        ha_server_addr=live.ha_server_addr,
        data_version=route_data_pb2.DataVersion(
            timestamp_millis=version.timestamp_millis, counter=version.counter, state_version=version.state_version
        ),
        last_update_timestamp_millis=last_update_millis,
        generation=live.generation,
        has_channel=live.channel_id is not None,
        heartbeat_timeout_millis=round(live.timeout_seconds * 1000),
        unconfirmed=live.unconfirmed,
        topic_by_topic=live.topic_by_topic,
        labels=dict(live.labels),
        doubt_ends_at_millis=None if doubted is None else doubted.ends_at_millis,
        doubt_reason=None if doubted is None else route_data_pb2.DoubtReason.Name(doubted.why.value),
    )


def broker_removal(
    broker: BrokerKey, broker_id: int | None, broker_addr: str, reason: RemovalReason | None
) -> route_service_pb2.BrokerRemoval:
    """A broker that has left; without id and address, a group that has lost queues."""
    return route_service_pb2.BrokerRemoval(
        cluster_name=broker.cluster_name,
        broker_name=broker.broker_name,
        broker_id=broker_id,
        broker_addr=broker_addr,
        reason=removal_reason(reason),
    )


def removal_reason(reason: RemovalReason | None) -> str | None:
    """The wire's name of a reason, which is what the generated classes are typed for."""
    return reason and route_data_pb2.RemovalReason.Name(reason.value)


def intent_message(intent: Intent) -> admin_service_pb2.Intent:
    message = admin_service_pb2.Intent(
        kind=admin_service_pb2.Intent.Kind.Name(intent.kind.value),
        cluster_name=intent.key.cluster_name,
        caller=intent.caller,
        since_millis=intent.since_millis,
        comment=intent.comment,
        ends_at_millis=intent.ends_at_millis,
    )
    if isinstance(intent.key, BrokerKey):
        message.broker_name = intent.key.broker_name
    else:
        message.topic = intent.key.topic
    return message
