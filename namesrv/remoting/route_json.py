"""Routes as RocketMQ's JSON, joined from pieces that are kept.

Most routes are the rows of their queues and groups and nothing else: these are joined by two lookups a row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from namesrv_api.v1 import route_data_pb2

from groundwork.topic_names import SYNC_MEMBER_TOPIC_PREFIX
from namesrv.core.changes import Change
from namesrv.core.model import ORDER_TOPIC_CONFIG, BrokerData, BrokerKey, TopicQueues
from namesrv.core.state import RouteState
from namesrv.engines.api import route_dependencies
from namesrv.remoting.limits import MAX_PIECES

_ROUTE = route_data_pb2.TopicRouteData
_QUEUE_DATAS = _ROUTE.QUEUE_DATAS_FIELD_NUMBER
_BROKER_DATAS = _ROUTE.BROKER_DATAS_FIELD_NUMBER
_ORDER_TOPIC_CONF = _ROUTE.ORDER_TOPIC_CONF_FIELD_NUMBER
_FILTER_SERVERS = _ROUTE.FILTER_SERVERS_FIELD_NUMBER
_SEVEN_BITS = 0x7F


class _Piece(NamedTuple):
    """A row of a route as JSON: of queues or of a group."""

    number: int
    """Of the field of TopicRouteData that it is."""
    cluster_name: str
    name: str
    """Of the broker group."""
    json: bytes
    mapping: tuple[bytes, bytes] | None = None
    """Of a group's queues of a static topic: its mapping, before the topic's name and after it."""


class _Rows:
    """The rows of routes as JSON, by the fragment of queues that the topic table has."""

    def __init__(self) -> None:
        self.queues: dict[bytes, bytes] = {}
        """These queues."""
        self.groups: dict[bytes, bytes] = {}
        """Their group."""

    def route(self, queues: TopicQueues) -> bytes:
        """The route that has these queues. Raises KeyError if some of them are not known."""
        groups, rows = self.groups, self.queues
        return b"".join(
            (
                b'{"brokerDatas":[',
                b",".join([groups[fragment] for fragment in queues]),
                b'],"filterServerTable":{},"queueDatas":[',
                b",".join([rows[fragment] for fragment in queues]),
                b"]}",
            )
        )


class RouteJson:
    """Routes and broker groups of one state, as RocketMQ's clients read them."""

    def __init__(self, state: RouteState, max_pieces: int = MAX_PIECES) -> None:
        self._state = state
        self._max_pieces = max_pieces
        self._pieces: tuple[dict[bytes, _Piece], dict[bytes, _Piece]] = ({}, {})
        """Rows by their fragment: in standard JSON, and with numbers as keys without quotes."""
        self._rows = _Rows(), _Rows()
        self._known_by_name: dict[str, list[bytes]] = {}
        """What is in ``_rows``, by the name of the group."""
        state.change_log.listen(self._on_change)

    def route(self, topic: str, zone_name: str | None = None, *, bare_keys: bool = False) -> bytes | None:
        """A topic's route as a TopicRouteData in JSON (RocketMQ: pickupTopicRouteData); None if there is none.

        Args:
            zone_name: Leaves groups of other zones out where their master is live.
            bare_keys: Numbers as keys have no quotes, as clients before 4.9.4 want them.
        """
        queues = self._state.tables.topic_queue_table.get(topic)
        if queues is None:
            return None
        if zone_name is None and not self._has_more_than_its_rows(topic):
            rows = self._rows[bare_keys]
            try:
                return rows.route(queues)
            except KeyError:
                if self._learn(queues, rows, bare_keys=bare_keys):
                    return rows.route(queues)
        fragments = self._state.route_fragments(topic, zone_name)
        assert fragments is not None, "the topic is there"
        return self._of_fragments(topic, fragments, bare_keys=bare_keys)

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
        groups: list[_Piece] = []
        queues: list[_Piece] = []
        filters: dict[str, bytes] = {}
        order_topic_conf = b""
        find = self._pieces[bare_keys].get
        for fragment in fragments:
            piece = find(fragment)
            if piece is None:
                kind = fragment[0] >> 3
                if kind == _ORDER_TOPIC_CONF:
                    ((_, _, payload),) = _fields(fragment)
                    order_topic_conf = b'"orderTopicConf":' + json.dumps(payload.decode()).encode() + b","
                    continue
                if kind == _FILTER_SERVERS:  # of all brokers of a group
                    filters |= dict(_filter_servers(payload) for _, _, payload in _fields(fragment))
                    continue
                if kind not in {_QUEUE_DATAS, _BROKER_DATAS}:  # of a newer name server whose answer is forwarded
                    continue
                piece = self._piece(fragment, bare_keys=bare_keys)
            (queues if piece.number == _QUEUE_DATAS else groups).append(piece)
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
            yield comma + json.dumps(name).encode() + b":" + self._group(group, bare_keys=bare_keys)
            yield None
        clusters = {cluster: sorted(names) for cluster, names in index.cluster_addr_table.items()}
        yield b'},"clusterAddrTable":' + json.dumps(clusters, separators=(",", ":")).encode() + b"}"

    def member_group(self, key: BrokerKey, *, bare_keys: bool = False) -> bytes:
        """A BrokerMemberGroup in JSON; without members if there is no such group (RocketMQ: getBrokerMemberGroup)."""
        group = self._state.tables.broker_addr_table.get(key)
        addrs = _addrs({} if group is None else group.addrs, bare_keys=bare_keys)
        names = (json.dumps(name).encode() for name in (key.broker_name, key.cluster_name))
        return b'{"brokerMemberGroup":{"brokerAddrs":%b,"brokerName":%b,"cluster":%b}}' % (addrs, *names)

    def _has_more_than_its_rows(self, topic: str) -> bool:
        """Whether the topic's route depends on more than its queues and their groups."""
        if topic.startswith(SYNC_MEMBER_TOPIC_PREFIX):
            return True
        state = self._state
        enabled = state.behaviour.order_message_enable
        return enabled and state.kv_config.get(ORDER_TOPIC_CONFIG, topic) is not None

    def _learn(self, queues: TopicQueues, rows: _Rows, *, bare_keys: bool) -> bool:
        """Has rows know queues and their groups as routes show them now.

        Returns:
            Whether they know all of them. They never know what takes more than joining: filter servers, static topics,
            and names that two clusters have.
        """
        tables, index = self._state.tables, self._state.index
        in_force = index.queue_datas.in_force
        for fragment in queues:
            if fragment in rows.queues:
                continue
            queue_data = index.queue_datas.of(fragment)
            group, name = tables.broker_addr_table[queue_data.broker], queue_data.broker.broker_name
            if group.filter_fragment or queue_data.mapping is not None or len(index.clusters_by_name[name]) > 1:
                return False
            if len(rows.queues) >= self._max_pieces:
                self._forget_rows()
            shown = group.acting_fragment if in_force and group.acting_fragment else group.fragment
            rows.queues[fragment] = self._json(in_force.get(fragment, fragment), bare_keys=bare_keys)
            rows.groups[fragment] = self._json(shown, bare_keys=bare_keys)
            self._known_by_name.setdefault(name, []).append(fragment)
        return queues[0] in rows.queues  # unless all of them are too many

    def _on_change(self, change: Change) -> None:
        for group in change.groups:
            self._forget(group.broker_name)

    def _forget(self, name: str) -> None:
        """A group of the name is shown otherwise from now on, or not at all."""
        for fragment in self._known_by_name.pop(name, ()):
            for rows in self._rows:
                rows.queues.pop(fragment, None)
                rows.groups.pop(fragment, None)

    def _forget_rows(self) -> None:
        self._known_by_name.clear()
        for rows in self._rows:
            rows.queues.clear()
            rows.groups.clear()

    def _group(self, group: BrokerData, *, bare_keys: bool) -> bytes:
        return self._json(group.fragment, bare_keys=bare_keys)

    def _json(self, fragment: bytes, *, bare_keys: bool) -> bytes:
        return (self._pieces[bare_keys].get(fragment) or self._piece(fragment, bare_keys=bare_keys)).json

    def _piece(self, fragment: bytes, *, bare_keys: bool) -> _Piece:
        pieces = self._pieces[bare_keys]
        if len(pieces) >= self._max_pieces:
            pieces.clear()
        ((number, _, payload),) = _fields(fragment)
        piece = pieces[fragment] = (_queue_data if number == _QUEUE_DATAS else _broker_data)(payload, bare_keys)
        return piece

    def _shown_clusters(self, names: Iterable[str]) -> dict[str, str]:
        """The cluster of the group that is shown for each name: the one that registered first."""
        clusters = self._state.index.clusters_by_name
        return {name: next(iter(clusters[name])) for name in names if name in clusters}


def _joined(pieces: list[_Piece]) -> bytes:
    return b",".join([piece.json for piece in pieces])


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


def _queue_data(payload: bytes, bare_keys: bool) -> _Piece:
    row = route_data_pb2.QueueData.FromString(payload)
    values = {
        "brokerName": row.broker_name,
        "perm": row.perm,
        "readQueueNums": row.read_queue_nums,
        "topicSysFlag": row.topic_sys_flag,
        "writeQueueNums": row.write_queue_nums,
    }
    mapping = _mapping(row, bare_keys=bare_keys) if row.HasField("mapping") else None
    return _Piece(_QUEUE_DATAS, row.cluster_name, row.broker_name, _dumps(values), mapping)


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


def _broker_data(payload: bytes, bare_keys: bool) -> _Piece:
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
    return _Piece(_BROKER_DATAS, row.cluster_name, row.broker_name, encoded)


def _filter_servers(payload: bytes) -> tuple[str, bytes]:
    """A broker's address, and its filter servers under it."""
    row = route_data_pb2.FilterServerData.FromString(payload)
    return row.broker_addr, _dumps({row.broker_addr: list(row.filter_servers)})[1:-1]


def _addrs(addrs: Mapping[int, str], *, bare_keys: bool) -> bytes:
    form = "%d:%s" if bare_keys else '"%d":%s'
    members = (form % (broker_id, json.dumps(addrs[broker_id])) for broker_id in sorted(addrs))
    return f"{{{','.join(members)}}}".encode()
