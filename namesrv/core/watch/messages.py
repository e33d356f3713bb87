"""The next message of a watch: current routes of topics, joined and framed once for all watches that get the same.

A message is made in one step, and only when all changes up to the current revision have been read. If it leaves nothing
over, it has a bookmark, and all that was sent is then exactly the state at that revision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from namesrv_api.v1 import route_service_pb2

from namesrv.core.encoding import frame, varint
from namesrv.core.state import RouteState
from namesrv.core.watch.affected import Removals
from namesrv.core.watch.hub import RouteWatch, WatchHub

MESSAGE_TOPICS = 500
"""Most topics in a message: encoding them takes a single step of about a millisecond."""

MESSAGE_BYTES = 256 * 1024
"""Size from which on no further topic is put into a message."""

SHARED_BYTES = 8 * 1024 * 1024
"""Most bytes of routes and messages that are kept to be sent to the next watcher of the same topics."""

_RESPONSE = route_service_pb2.WatchTopicRoutesResponse
_CHANGE = route_service_pb2.TopicRouteChange
_BOOKMARKS = [
    b"".join(map(varint, (_RESPONSE.BOOKMARK_FIELD_NUMBER << 3, 1, _RESPONSE.WARM_FIELD_NUMBER << 3, is_warm)))
    + varint(_RESPONSE.REQUEST_COUNT_FIELD_NUMBER << 3)
    for is_warm in (False, True)
]
"""While warming up and afterwards, up to the number of the request messages."""

assert _RESPONSE.HEADER_FIELD_NUMBER == 1, "headers are framed as field 1"


class WatchMessages:
    """Makes the messages of all watches, as of the current revision."""

    def __init__(self, state: RouteState, hub: WatchHub, is_warm: Callable[[], bool]) -> None:
        self._state = state
        self._hub = hub
        self._is_warm = is_warm
        self._revision = -1
        self._shared: dict[tuple[str, str | None], tuple[Removals, bytes]] = {}
        """By topic and zone, those of the current revision: what left the route, and the encoded change."""
        self._joined: dict[tuple[bytes, ...], bytes] = {}
        """Messages of the current revision by their parts: watches with the same changes get one and the same."""
        self._shared_bytes = 0

    def next_message(self, watch: RouteWatch) -> bytes | None:
        """The next message to a watch. None if there is none yet; it will be woken. Raises Refused if it must end."""
        if watch.failure is not None:
            raise watch.failure
        if watch.is_filling:
            return None
        if not self._hub.is_current:
            self._hub.wake_later(watch)
            return None
        changes = self._take_changes(watch)
        if not changes and not watch.bookmark_due:
            return None
        is_all = not watch.pending
        watch.revision = self._state.revision
        watch.bookmark_due = not is_all  # even if the rest then changes nothing
        bookmark = (_BOOKMARKS[self._is_warm()], varint(watch.request_count)) if is_all else ()
        return self._message((*changes, *bookmark))

    def _message(self, parts: tuple[bytes, ...]) -> bytes:
        if self._revision != self._state.revision:  # a bookmark alone
            self._renew()
        joined = self._joined.get(parts)
        if joined is None:
            joined = self._joined[parts] = b"".join((self._state.header_fragment(), *parts))
            self._shared_bytes += len(joined)
        return joined

    def _renew(self) -> None:
        """Forgets what is not of the current revision, or takes too much memory."""
        if self._revision != self._state.revision or self._shared_bytes > SHARED_BYTES:
            self._revision, self._shared_bytes = self._state.revision, 0
            self._shared, self._joined = {}, {}

    def _take_changes(self, watch: RouteWatch) -> list[bytes]:
        """Takes the changes of a message from the pending topics; while warming up, none of an unknown topic."""
        zone_name, is_warm = watch.subscription.zone_name, self._is_warm()
        changes: list[bytes] = []
        size = 0
        while watch.pending and len(changes) < MESSAGE_TOPICS and size < MESSAGE_BYTES:
            topic, removals = self._hub.take_pending(watch)
            if not watch.subscription.has(topic):
                continue  # it was removed while it was pending
            change = self._current(topic, zone_name, removals)
            if change is None and is_warm:
                change = _change(topic, None, ())
            if change is not None:
                changes.append(change)
                size += len(change)
        return changes

    def _current(self, topic: str, zone_name: str | None, removals: Removals) -> bytes | None:
        """A TopicRouteChange, framed as the field changes; None if there is no route, and nothing left it."""
        self._renew()
        shared = self._shared.get((topic, zone_name))
        if shared is not None and shared[0] == removals:
            return shared[1]
        route = self._state.route(topic, zone_name)
        if route is None and not removals:
            return None
        encoded = _change(topic, route, self._of_absent(topic, removals))
        self._shared[topic, zone_name] = removals, encoded
        self._shared_bytes += len(encoded)
        return encoded

    def _of_absent(self, topic: str, removals: Removals) -> list[bytes]:
        """Encodes removals: the last of each broker that is not in the route again.

        The loss of a group's queues of the topic is included also if the group has some again: they may be other
        brokers'.
        """
        if not removals:
            return []
        tables = self._state.tables
        brokers = (queue_data.broker for queue_data in self._state.queue_datas_of(topic))
        addrs = {broker: set(tables.broker_addr_table[broker].addrs.values()) for broker in brokers}
        latest = {(broker, addr): fragment for broker, addr, fragment in removals}
        return [fragment for (broker, addr), fragment in latest.items() if addr not in addrs.get(broker, ())]


def _change(topic: str, route: bytes | None, removals: Sequence[bytes]) -> bytes:
    routes = () if route is None else (frame(_CHANGE.ROUTE_FIELD_NUMBER, route),)
    name = frame(_CHANGE.TOPIC_FIELD_NUMBER, topic.encode())
    return frame(_RESPONSE.CHANGES_FIELD_NUMBER, name, *routes, *removals)
