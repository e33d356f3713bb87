"""Routes as RocketMQ's JSON, joined from rows that are kept."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from namesrv_api.v1 import route_data_pb2

from namesrv.core.model import BrokerKey
from namesrv.core.state import RouteState
from namesrv.engines.api import route_dependencies
from namesrv.remoting.limits import MAX_ROWS

_ROUTE = route_data_pb2.TopicRouteData
_QUEUE_DATAS = _ROUTE.QUEUE_DATAS_FIELD_NUMBER
_BROKER_DATAS = _ROUTE.BROKER_DATAS_FIELD_NUMBER
_ORDER_TOPIC_CONF = _ROUTE.ORDER_TOPIC_CONF_FIELD_NUMBER
_FILTER_SERVERS = _ROUTE.FILTER_SERVERS_FIELD_NUMBER
_SEVEN_BITS = 0x7F


class _Row(NamedTuple):
    """A row of a route as JSON: of queues or of a group."""

    cluster_name: str
    name: str
    """Of the broker group."""
    json: bytes
    mapping: tuple[bytes, bytes] | None = None
    """Of a group's queues of a static topic: its mapping, before the topic's name and after it."""


class RouteJson:
    """Routes and broker groups of one state, as RocketMQ's clients read them."""

    def __init__(self, state: RouteState) -> None:
        self._state = state

    def route(self, topic: str, zone_name: str | None = None, *, bare_keys: bool = False) -> bytes | None:
        """A topic's route as a TopicRouteData in JSON (RocketMQ: pickupTopicRouteData); None if there is none.

        Args:
            zone_name: Leaves groups of other zones out where their master is live.
            bare_keys: Numbers as keys have no quotes, as clients before 4.9.4 want them.
        """
        fragments = self._state.route_fragments(topic, zone_name)
        return None if fragments is None else self._of_fragments(topic, fragments, bare_keys=bare_keys)

    def dependencies(self, topic: str) -> list[str] | None:
        """What a topic's route depends on. None if it also depends on groups of other clusters, which share a name."""
        queue_datas, names = self._state.queue_datas_of(topic), self._state.index.clusters_by_name
        if any(len(names[queue_data.broker.broker_name]) > 1 for queue_data in queue_datas):
            return None
        return route_dependencies(self._state, topic)

    def of_encoded(self, topic: str, route: bytes, *, bare_keys: bool = False) -> bytes:
        return self._of_fragments(topic, (field for _, field, _ in _fields(route)), bare_keys=bare_keys)

    def _of_fragments(self, topic: str, fragments: Iterable[bytes], *, bare_keys: bool) -> bytes:
        """The same of the fields of the message."""
        groups: list[_Row] = []
        queues: list[_Row] = []
        filters: dict[str, bytes] = {}
        order_topic_conf = b""
        for fragment in fragments:
            kind = fragment[0] >> 3
            if kind == _QUEUE_DATAS:
                queues.append(_queue_data(fragment, bare_keys))
            elif kind == _BROKER_DATAS:
                groups.append(_broker_data(fragment, bare_keys))
            elif kind == _FILTER_SERVERS:  # of all brokers of a group
                filters |= dict(_filter_servers(payload) for _, _, payload in _fields(fragment))
            elif kind == _ORDER_TOPIC_CONF:  # a newer name server, whose answer is forwarded, may have other fields
                ((_, _, payload),) = _fields(fragment)
                order_topic_conf = b'"orderTopicConf":' + json.dumps(payload.decode()).encode() + b","
        if len({group.name for group in groups}) < len(groups):
            shown = self._shown_clusters(group.name for group in groups)
            groups = [group for group in groups if shown.get(group.name) == group.cluster_name]
            queues = [queue for queue in queues if shown.get(queue.name) == queue.cluster_name]
        mappings = [queue.mapping for queue in queues if queue.mapping is not None]
        return b"".join(
            (
                b'{"brokerDatas":[',
                _joined(groups),
                b'],"filterServerTable":{',
                b",".join(filters.values()),
                b"},",
                order_topic_conf,
                b'"queueDatas":[',
                _joined(queues),
                b"]",
                _mappings(topic, mappings) if mappings else b"",
                b"}",
            )
        )

    def cluster_info(self, *, bare_keys: bool = False) -> Iterator[bytes | None]:
        """A ClusterInfo in parts, with None where the caller may yield (RocketMQ: getAllClusterInfo)."""
        index, groups = self._state.index, self._state.tables.broker_addr_table
        shown = self._shown_clusters(index.clusters_by_name)
        yield b'{"brokerAddrTable":{'
        for count, (name, cluster_name) in enumerate(shown.items()):
            comma, group = b"," if count else b"", groups[BrokerKey(cluster_name, name)]
            yield comma + json.dumps(name).encode() + b":" + _broker_data(group.fragment, bare_keys).json
            yield None
        clusters = {cluster: sorted(names) for cluster, names in index.cluster_addr_table.items()}
        yield b'},"clusterAddrTable":' + json.dumps(clusters, separators=(",", ":")).encode() + b"}"

    def member_group(self, key: BrokerKey, *, bare_keys: bool = False) -> bytes:
        """A BrokerMemberGroup in JSON; without members if there is no such group (RocketMQ: getBrokerMemberGroup)."""
        group = self._state.tables.broker_addr_table.get(key)
        addrs = _addrs({} if group is None else group.addrs, bare_keys=bare_keys)
        names = (json.dumps(name).encode() for name in (key.broker_name, key.cluster_name))
        return b'{"brokerMemberGroup":{"brokerAddrs":%b,"brokerName":%b,"cluster":%b}}' % (addrs, *names)

    def _shown_clusters(self, names: Iterable[str]) -> dict[str, str]:
        """The cluster of the group that is shown for each name: the one that registered first."""
        clusters = self._state.index.clusters_by_name
        return {name: next(iter(clusters[name])) for name in names if name in clusters}


def _joined(rows: list[_Row]) -> bytes:
    return b",".join([row.json for row in rows])


def _fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Number, whole field and payload of each field of a message that has fields with a length only."""
    at = 0
    while at < len(message):
        begin, number = at, message[at] >> 3
        at += 1
        length = shift = 0
        while True:
            byte = message[at]
            at += 1
            length |= (byte & _SEVEN_BITS) << shift
            if byte <= _SEVEN_BITS:
                break
            shift += 7
        end = at + length
        yield number, message[begin:end], message[at:end]
        at = end


def _dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


@lru_cache(MAX_ROWS)
def _queue_data(fragment: bytes, bare_keys: bool) -> _Row:
    ((_, _, payload),) = _fields(fragment)
    row = route_data_pb2.QueueData.FromString(payload)
    values = {
        "brokerName": row.broker_name,
        "perm": row.perm,
        "readQueueNums": row.read_queue_nums,
        "topicSysFlag": row.topic_sys_flag,
        "writeQueueNums": row.write_queue_nums,
    }
    mapping = _mapping(row, bare_keys=bare_keys) if row.HasField("mapping") else None
    return _Row(row.cluster_name, row.broker_name, _dumps(values), mapping)


def _mapping(row: route_data_pb2.QueueData, *, bare_keys: bool) -> tuple[bytes, bytes]:
    """A group's TopicQueueMappingInfo under its name, before the topic's name and after it."""
    mapping = row.mapping
    form = "%d:%d" if bare_keys else '"%d":%d'
    queues = zip(mapping.topic_queue_ids, mapping.broker_queue_ids, strict=True)
    ids = ",".join(form % queue for queue in queues)
    name, rest = _dumps(row.broker_name), {"dirty": mapping.dirty, "epoch": mapping.epoch, "scope": mapping.scope}
    before = b'%b:{"bname":%b,"currIdMap":{%b},%b,"topic":' % (name, name, ids.encode(), _dumps(rest)[1:-1])
    return before, b',"totalQueues":%d}' % mapping.total_queue_nums


def _mappings(topic: str, mappings: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The field topicQueueMappingByBroker, which a static topic's route has."""
    name = _dumps(topic)
    return b',"topicQueueMappingByBroker":{%b}' % b",".join(before + name + after for before, after in mappings)


@lru_cache(MAX_ROWS)
def _broker_data(fragment: bytes, bare_keys: bool) -> _Row:
    ((_, _, payload),) = _fields(fragment)
    row = route_data_pb2.BrokerData.FromString(payload)
    addrs = _addrs({member.broker_id: member.broker_addr for member in row.broker_addrs}, bare_keys=bare_keys)
    values: dict[str, object] = {
        "brokerName": row.broker_name,
        "cluster": row.cluster_name,
        "enableActingMaster": row.enable_acting_master,
    }
    if row.HasField("zone_name"):
        values["zoneName"] = row.zone_name
    encoded = b'{"brokerAddrs":%b,%b' % (addrs, _dumps(values)[1:])
    return _Row(row.cluster_name, row.broker_name, encoded)


def _filter_servers(payload: bytes) -> tuple[str, bytes]:
    """A broker's address, and its filter servers under it."""
    row = route_data_pb2.FilterServerData.FromString(payload)
    return row.broker_addr, _dumps({row.broker_addr: list(row.filter_servers)})[1:-1]


def _addrs(addrs: Mapping[int, str], *, bare_keys: bool) -> bytes:
    form = "%d:%s" if bare_keys else '"%d":%s'
    members = (form % (broker_id, json.dumps(addrs[broker_id])) for broker_id in sorted(addrs))
    return f"{{{','.join(members)}}}".encode()
