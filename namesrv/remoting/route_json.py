"""Routes as RocketMQ's JSON, joined from rows that are kept."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1.route_data_pb2 import TopicRouteData as _Route

from namesrv.core.model import BrokerKey
from namesrv.core.pace import Sliced
from namesrv.core.state import RouteState
from namesrv.remoting.limits import MAX_ROWS
from namesrv.remoting.wire import to_json

GROUP_SLICE = 100
"""Groups that are encoded before yielding: less than a millisecond."""


class _Row(NamedTuple):
    """A row of a route as JSON: of queues or of a group."""

    cluster_name: str
    name: str
    """Of the broker group."""
    json: bytes
    mapping: tuple[bytes, bytes] | None = None
    """Of a group's queues of a static topic: its mapping, before the topic's name and after it."""


class RouteJson:
    """Routes and broker groups as RocketMQ's clients read them. Numbers as keys have quotes, or are bare."""

    def __init__(self, state: RouteState) -> None:
        self._state = state

    def route(self, topic: str, zone_name: str | None = None, *, bare_keys: bool = False) -> bytes | None:
        """A topic's route as a TopicRouteData in JSON (RocketMQ: pickupTopicRouteData); None if there is none.

        A zone name leaves groups of other zones out where their master is live.
        """
        fragments = self._state.route_fragments(topic, zone_name)
        return None if fragments is None else self._of_fragments(topic, fragments, bare_keys=bare_keys)

    def of_message(self, topic: str, route: _Route, *, bare_keys: bool = False) -> bytes:
        """The same of a route that another name server sent."""
        parts = [_Route(queue_datas=[row]) for row in route.queue_datas]
        parts += (_Route(broker_datas=[row]) for row in route.broker_datas)
        parts += (_Route(filter_servers=[row]) for row in route.filter_servers)
        if route.HasField("order_topic_conf"):
            parts.append(_Route(order_topic_conf=route.order_topic_conf))
        return self._of_fragments(topic, (part.SerializeToString() for part in parts), bare_keys=bare_keys)

    def _of_fragments(self, topic: str, fragments: Iterable[bytes], *, bare_keys: bool) -> bytes:
        """The same of the fields of the message."""
        groups: list[_Row] = []
        queues: list[_Row] = []
        others = _Route()
        for fragment in fragments:
            match fragment[0] >> 3:
                case _Route.QUEUE_DATAS_FIELD_NUMBER:
                    queues.append(_queue_data(fragment, bare_keys))
                case _Route.BROKER_DATAS_FIELD_NUMBER:
                    groups.append(_broker_data(fragment, bare_keys))
                case _:
                    others.MergeFromString(fragment)
        if len({group.name for group in groups}) < len(groups):
            clusters, present = self._state.index.clusters_by_name, {(row.name, row.cluster_name) for row in groups}
            shown: dict[str, str] = {}
            for row in groups:  # the cluster that registered first, of those in this route
                first = (name for name in clusters.get(row.name, ()) if (row.name, name) in present)
                shown.setdefault(row.name, next(first, row.cluster_name))
            groups = [group for group in groups if shown[group.name] == group.cluster_name]
            queues = [queue for queue in queues if shown.get(queue.name) == queue.cluster_name]
        order = b""
        if others.HasField("order_topic_conf"):
            order = b'"orderTopicConf":%b,' % to_json(others.order_topic_conf)
        name = to_json(topic)
        mappings = b",".join(
            before + name + after for before, after in filter(None, (queue.mapping for queue in queues))
        )
        return b'{"brokerDatas":[%b],"filterServerTable":%b,%b"queueDatas":[%b]%b}' % (
            b",".join([group.json for group in groups]),
            to_json({row.broker_addr: list(row.filter_servers) for row in others.filter_servers}),
            order,
            b",".join([queue.json for queue in queues]),
            b',"topicQueueMappingByBroker":{%b}' % mappings if mappings else b"",
        )

    def cluster_info(self, *, bare_keys: bool = False) -> Sliced[bytes]:
        """A ClusterInfo, from the tables of each step (RocketMQ: getAllClusterInfo)."""
        index, groups = self._state.index, self._state.tables.broker_addr_table
        rows: list[bytes] = []
        first = {name: next(iter(clusters)) for name, clusters in index.clusters_by_name.items()}  # that registered
        for name, cluster_name in first.items():
            group = groups[BrokerKey(cluster_name, name)]
            rows.append(b"%b:%b" % (to_json(name), _broker_data(group.fragment, bare_keys).json))
            if len(rows) % GROUP_SLICE == 0:
                yield
        names_of = {cluster: sorted(names) for cluster, names in index.cluster_addr_table.items()}
        return b'{"brokerAddrTable":{%b},"clusterAddrTable":%b}' % (b",".join(rows), to_json(names_of))

    def member_group(self, key: BrokerKey, *, bare_keys: bool = False) -> bytes:
        """A BrokerMemberGroup in JSON; without members if there is no such group (RocketMQ: getBrokerMemberGroup)."""
        group = self._state.tables.broker_addr_table.get(key)
        addrs = _addrs({} if group is None else group.addrs, bare_keys=bare_keys)
        names = (to_json(name) for name in (key.broker_name, key.cluster_name))
        return b'{"brokerMemberGroup":{"brokerAddrs":%b,"brokerName":%b,"cluster":%b}}' % (addrs, *names)


@lru_cache(MAX_ROWS)
def _queue_data(fragment: bytes, bare_keys: bool) -> _Row:
    (row,) = _Route.FromString(fragment).queue_datas
    values = {
        "brokerName": row.broker_name,
        "perm": row.perm,
        "readQueueNums": row.read_queue_nums,
        "topicSysFlag": row.topic_sys_flag,
        "writeQueueNums": row.write_queue_nums,
    }
    mapping = _mapping(row, bare_keys=bare_keys) if row.HasField("mapping") else None
    return _Row(row.cluster_name, row.broker_name, to_json(values), mapping)


def _mapping(row: route_data_pb2.QueueData, *, bare_keys: bool) -> tuple[bytes, bytes]:
    """A group's TopicQueueMappingInfo under its name, before the topic's name and after it."""
    mapping = row.mapping
    form = "%d:%d" if bare_keys else '"%d":%d'
    queues = zip(mapping.topic_queue_ids, mapping.broker_queue_ids, strict=True)
    ids = ",".join(form % queue for queue in queues)
    name, rest = to_json(row.broker_name), {"dirty": mapping.dirty, "epoch": mapping.epoch, "scope": mapping.scope}
    before = b'%b:{"bname":%b,"currIdMap":{%b},%b,"topic":' % (name, name, ids.encode(), to_json(rest)[1:-1])
    return before, b',"totalQueues":%d}' % mapping.total_queue_nums


@lru_cache(MAX_ROWS)
def _broker_data(fragment: bytes, bare_keys: bool) -> _Row:
    (row,) = _Route.FromString(fragment).broker_datas
    addrs = _addrs({member.broker_id: member.broker_addr for member in row.broker_addrs}, bare_keys=bare_keys)
    values: dict[str, object] = {
        "brokerName": row.broker_name,
        "cluster": row.cluster_name,
        "enableActingMaster": row.enable_acting_master,
    }
    if row.HasField("zone_name"):
        values["zoneName"] = row.zone_name
    encoded = b'{"brokerAddrs":%b,%b' % (addrs, to_json(values)[1:])
    return _Row(row.cluster_name, row.broker_name, encoded)


def _addrs(addrs: Mapping[int, str], *, bare_keys: bool) -> bytes:
    form = "%d:%s" if bare_keys else '"%d":%s'
    members = (form % (broker_id, json.dumps(addrs[broker_id])) for broker_id in sorted(addrs))
    return f"{{{','.join(members)}}}".encode()
