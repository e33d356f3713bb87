"""RouteService: what producers, consumers, tools and the pipeline call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.version import __version__
from namesrv.core import fragments
from namesrv.core.errors import LimitExceeded, Overloaded, TopicNotFound
from namesrv.core.fragments import frame, tag, varint
from namesrv.core.records import BrokerData, BrokerKey
from namesrv.core.route_info_manager import RouteInfoManager
from namesrv.server import limits, wire
from namesrv.server.own_stalls import OwnStalls
from namesrv.server.rpc import Context
from namesrv.server.topic_list_calls import TopicListCalls

_ROUTE_TAG = tag(pb.GetTopicRouteResponse.ROUTE_FIELD_NUMBER)
_NOT_FOUND_NUMBER = pb.BatchGetTopicRoutesResponse.TOPICS_NOT_FOUND_FIELD_NUMBER
_NAMED_ROUTE_TAG = tag(pb.BatchGetTopicRoutesResponse.ROUTES_FIELD_NUMBER)
_TOPIC_OF_NAMED_TAG = tag(pb.NamedTopicRoute.TOPIC_FIELD_NUMBER)
_ROUTE_OF_NAMED_TAG = tag(pb.NamedTopicRoute.ROUTE_FIELD_NUMBER)


class RouteServicer(TopicListCalls):
    """Answers look-ups from joined fragments; nothing is encoded here but headers and short answers."""

    def __init__(self, manager: RouteInfoManager, own_stalls: OwnStalls, started_at_millis: int) -> None:
        super().__init__(manager)
        self._own_stalls = own_stalls
        self._started_at_millis = started_at_millis
        self._snapshot_streams = 0

    async def GetTopicRoute(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.GetTopicRouteRequest, _context: Context
    ) -> bytes:
        """GET_ROUTEINFO_BY_TOPIC, 105."""
        zone_name = wire.zone_name(request)
        topic = request.topic
        route = self._manager.pickup_topic_route_data(topic, zone_name)
        if route is None:
            wire.check_topic("topic", topic)
            raise TopicNotFound(topic)
        return b"".join((self._manager.header_fragment(), _ROUTE_TAG, varint(len(route)), route))

    async def BatchGetTopicRoutes(  # noqa: N802
        self, request: pb.BatchGetTopicRoutesRequest, _context: Context
    ) -> bytes:
        """GetTopicRoute many times. Nothing gives way in between, so all routes are of one revision."""
        zone_name = wire.zone_name(request)
        routes, not_found, size = [], [], 0
        for field, topic in wire.batch_topics(request):
            route = self._manager.pickup_topic_route_data(topic, zone_name)
            if route is None:
                wire.check_topic(field, topic)
                not_found.append(frame(_NOT_FOUND_NUMBER, topic.encode()))
                continue
            routes.append(_named_route(topic, route))
            size += len(routes[-1])
            if size > limits.MAX_BATCH_ROUTES_BYTES:
                raise LimitExceeded("bytes of routes in one answer", size, limits.MAX_BATCH_ROUTES_BYTES)
        return b"".join((self._manager.header_fragment(), *routes, *not_found))

    async def GetBrokerClusterInfo(  # noqa: N802
        self, _request: pb.GetBrokerClusterInfoRequest, _context: Context
    ) -> bytes:
        """GET_BROKER_CLUSTER_INFO, 106."""
        tables = self._manager.tables
        number = pb.GetBrokerClusterInfoResponse.CLUSTERS_FIELD_NUMBER
        parts = [self._manager.header_fragment()]
        for cluster_name, broker_names in sorted(tables.cluster_addr_table.items()):
            parts.append(fragments.frame(number, fragments.cluster_data(cluster_name, broker_names)))
        parts += [group.fragment for _, group in sorted(tables.broker_addr_table.items(), key=lambda item: item[0])]
        return b"".join(parts)

    async def GetBrokerMemberGroup(  # noqa: N802
        self, request: pb.GetBrokerMemberGroupRequest, _context: Context
    ) -> pb.GetBrokerMemberGroupResponse:
        """GET_BROKER_MEMBER_GROUP, 901."""
        wire.check_name("cluster_name", request.cluster_name)
        wire.check_name("broker_name", request.broker_name)
        key = BrokerKey(request.cluster_name, request.broker_name)
        group = self._manager.tables.broker_addr_table.get(key) or BrokerData(key, {})
        return pb.GetBrokerMemberGroupResponse(
            header=self._manager.header(),
            broker_data=fragments.broker_data(group),
        )

    async def GetNamesrvStatus(  # noqa: N802
        self, _request: pb.GetNamesrvStatusRequest, _context: Context
    ) -> pb.GetNamesrvStatusResponse:
        """How this name server is."""
        tables = self._manager.tables
        return pb.GetNamesrvStatusResponse(
            header=self._manager.header(),
            version=__version__,
            started_at_millis=self._started_at_millis,
            warm=True,  # it waits for nobody yet, and no guard holds brokers
            live_broker_count=len(tables.broker_live_table),
            topic_count=len(tables.topic_queue_table),
            loop_lag_millis=self._own_stalls.longest_delay() * 1000,
            compacted_revision=self._manager.revision,  # no change log yet: nothing can be read after earlier ones
        )

    async def StreamRouteSnapshot(  # noqa: N802
        self, request: pb.StreamRouteSnapshotRequest, _context: Context
    ) -> AsyncIterator[bytes]:
        """All tables at one revision."""
        wire.refuse_fields(request, "pin_id", "shard", "follow", "resume_after")
        if self._snapshot_streams >= limits.MAX_SNAPSHOT_STREAMS:
            raise Overloaded(f"{self._snapshot_streams} snapshots are being streamed already")
        self._snapshot_streams += 1
        try:
            for message in self._manager.snapshot().messages():
                yield message
                await asyncio.sleep(0)  # a message that the transport takes at once would not give the loop back
        finally:
            self._snapshot_streams -= 1


def _named_route(topic: str, route: bytes) -> bytes:
    """A NamedTopicRoute, framed as the field routes of a BatchGetTopicRoutesResponse."""
    name = topic.encode()
    named = (_TOPIC_OF_NAMED_TAG, varint(len(name)), name, _ROUTE_OF_NAMED_TAG, varint(len(route)))
    length = sum(map(len, named)) + len(route)
    return b"".join((_NAMED_ROUTE_TAG, varint(length), *named, route))
