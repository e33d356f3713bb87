"""Messages of a watch: current routes of topics, joined and framed once for everybody who is sent the same."""

from __future__ import annotations

from collections.abc import Sequence

from namesrv_api.v1 import route_service_pb2

from namesrv.core.records.fragments import tag, varint
from namesrv.core.records.rows import BrokerKey
from namesrv.core.routes.route_info_manager import RouteInfoManager
from namesrv.core.watch.affected_topics import GoneBroker

SHARED_BYTES = 8 * 1024 * 1024
"""Most bytes of routes that are kept to be sent to the next watcher of the same topic."""

_RESPONSE = route_service_pb2.WatchTopicRoutesResponse
_CHANGE = route_service_pb2.TopicRouteChange
_CHANGES_TAG = tag(_RESPONSE.CHANGES_FIELD_NUMBER)
_TOPIC_TAG = tag(_CHANGE.TOPIC_FIELD_NUMBER)
_ROUTE_TAG = tag(_CHANGE.ROUTE_FIELD_NUMBER)
_BOOKMARK = varint(_RESPONSE.BOOKMARK_FIELD_NUMBER << 3) + varint(1)

assert _RESPONSE.HEADER_FIELD_NUMBER == 1, "headers are framed as field 1"


class WatchMessages:
    """Encodes changes of topics as of the current revision."""

    def __init__(self, manager: RouteInfoManager) -> None:
        self._manager = manager
        self._revision = -1
        self._shared: dict[tuple[str, str | None], tuple[tuple[GoneBroker, ...], bytes]] = {}
        """By topic and zone, those of the current revision: what left the route, and the encoded change."""
        self._shared_bytes = 0

    def change(self, topic: str, zone_name: str | None, gone: tuple[GoneBroker, ...]) -> bytes | None:
        """A TopicRouteChange, framed as the field changes; None if there is no route, and nothing left it."""
        if self._revision != self._manager.revision or self._shared_bytes > SHARED_BYTES:
            self._revision, self._shared_bytes = self._manager.revision, 0
            self._shared = {}
        shared = self._shared.get((topic, zone_name))
        if shared is not None and shared[0] == gone:
            return shared[1]
        route = self._manager.pickup_topic_route_data(topic, zone_name)
        if route is None and not gone:
            return None
        encoded = _change(topic, route, self._really_gone(topic, gone) if gone else ())
        self._shared[topic, zone_name] = gone, encoded
        self._shared_bytes += len(encoded)
        return encoded

    def absent(self, topic: str) -> bytes:
        """A TopicRouteChange, framed as the field changes, of a topic that is not there."""
        return _change(topic, None, ())

    def message(self, changes: Sequence[bytes], *, bookmark: bool) -> bytes:
        """A WatchTopicRoutesResponse as of the current revision."""
        return b"".join((self._manager.header_fragment(), *changes, _BOOKMARK if bookmark else b""))

    def _really_gone(self, topic: str, gone: tuple[GoneBroker, ...]) -> list[bytes]:
        """Encoded removals: the last of each broker, and only of those that are not in the route again.

        That a group lost its queues of the topic is said also if it has some again: they may be other brokers'.
        """
        tables = self._manager.tables
        find, groups = tables.queue_datas.by_fragment, tables.broker_addr_table
        addrs: dict[BrokerKey, set[str]] = {}
        for fragment in tables.topic_queue_table.get(topic) or ():
            broker = find[fragment].broker
            addrs[broker] = set(groups[broker].addrs.values())
        latest = {(broker, addr): fragment for broker, addr, fragment in gone}
        return [fragment for (broker, addr), fragment in latest.items() if addr not in addrs.get(broker, ())]


def _change(topic: str, route: bytes | None, removals: Sequence[bytes]) -> bytes:
    name = topic.encode()
    parts = [_TOPIC_TAG, varint(len(name)), name]
    if route is not None:
        parts += (_ROUTE_TAG, varint(len(route)), route)
    parts += removals
    body = b"".join(parts)
    return b"".join((_CHANGES_TAG, varint(len(body)), body))
