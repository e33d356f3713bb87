"""RouteService: what producers, consumers, tools and the pipeline call."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence

from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.version import __version__
from namesrv.core import fragments
from namesrv.core.errors import LimitExceeded, ProductEnvUnavailable, TopicNotFound
from namesrv.core.fragments import frame, tag, varint
from namesrv.core.pins import Pins
from namesrv.core.records import BrokerData, BrokerKey
from namesrv.core.route_info_manager import RouteInfoManager
from namesrv.server import limits, wire
from namesrv.server.own_stalls import OwnStalls
from namesrv.server.product_env import ProductEnv, asked_by_cluster_test
from namesrv.server.rpc import Context
from namesrv.server.snapshot_calls import SnapshotCalls
from namesrv.server.topic_list_calls import TopicListCalls

_ROUTE_TAG = tag(pb.GetTopicRouteResponse.ROUTE_FIELD_NUMBER)
_NOT_FOUND_NUMBER = pb.BatchGetTopicRoutesResponse.TOPICS_NOT_FOUND_FIELD_NUMBER
_WARMING_NUMBER = pb.BatchGetTopicRoutesResponse.TOPICS_WARMING_FIELD_NUMBER
_NAMED_ROUTE_TAG = tag(pb.BatchGetTopicRoutesResponse.ROUTES_FIELD_NUMBER)
_TOPIC_OF_NAMED_TAG = tag(pb.NamedTopicRoute.TOPIC_FIELD_NUMBER)
_ROUTE_OF_NAMED_TAG = tag(pb.NamedTopicRoute.ROUTE_FIELD_NUMBER)


class RouteServicer(TopicListCalls, SnapshotCalls):
    """Answers look-ups from joined fragments; nothing is encoded here but headers and short answers."""

    def __init__(
        self,
        manager: RouteInfoManager,
        own_stalls: OwnStalls,
        started_at_millis: int,
        product_env: ProductEnv | None = None,
        pins: Pins | None = None,
    ) -> None:
        TopicListCalls.__init__(self, manager)
        if pins is None:
            pins = Pins(time.monotonic, lambda: secrets.token_urlsafe(18))
        SnapshotCalls.__init__(self, manager, pins)
        self._own_stalls = own_stalls
        self._started_at_millis = started_at_millis
        self._product_env = product_env

    async def GetTopicRoute(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.GetTopicRouteRequest, context: Context
    ) -> bytes:
        """GET_ROUTEINFO_BY_TOPIC, 105."""
        zone_name = wire.zone_name(request)
        topic = request.topic
        header, route = self._manager.header_fragment(), self._manager.pickup_topic_route_data(topic, zone_name)
        if route is None:
            wire.check_topic("topic", topic)
            product_env = self._product_env_for(context)
            route = await product_env.route(topic, zone_name) if product_env else None
        if route is None:
            raise TopicNotFound(topic)
        return b"".join((header, _ROUTE_TAG, varint(len(route)), route))

    async def BatchGetTopicRoutes(  # noqa: N802
        self, request: pb.BatchGetTopicRoutesRequest, context: Context
    ) -> bytes:
        """GetTopicRoute many times. Nothing gives way in between, so all routes from here are of one revision."""
        zone_name = wire.zone_name(request)
        header, batch = self._manager.header_fragment(), _Batch()
        for field, topic in wire.batch_topics(request):
            route = self._manager.pickup_topic_route_data(topic, zone_name)
            if route is None:
                wire.check_topic(field, topic)
            batch.add(topic, route)
        unknown, product_env = batch.without_route(), self._product_env_for(context)
        if unknown and product_env:
            try:
                elsewhere = await product_env.routes(unknown, zone_name)
            except ProductEnvUnavailable:  # what is known here must not fail with it
                elsewhere = {}
            batch.add_from_elsewhere(unknown, elsewhere)
        return batch.encoded(header)

    def _product_env_for(self, context: Context) -> ProductEnv | None:
        """Whom to ask for unknown topics; nobody if the caller asks for another name server in cluster-test mode."""
        if self._product_env is None or asked_by_cluster_test(context):
            return None
        return self._product_env

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


class _Batch:
    """The answer to a batch while it is put together, in the order asked."""

    def __init__(self) -> None:
        self._routes: dict[str, bytes | None] = {}
        """Each topic's NamedTopicRoute, framed; None if it is not there, or not known yet."""
        self._not_known_yet: list[str] = []
        self._size = 0

    def add(self, topic: str, route: bytes | None) -> None:
        """Adds a topic, or the route that was found for it elsewhere.

        Raises:
            LimitExceeded: The routes are too many bytes.
        """
        named = self._routes[topic] = None if route is None else _named_route(topic, route)
        self._size += len(named or b"")
        if self._size > limits.MAX_BATCH_ROUTES_BYTES:
            raise LimitExceeded("bytes of routes in one answer", self._size, limits.MAX_BATCH_ROUTES_BYTES)

    def add_from_elsewhere(self, topics: Sequence[str], told: Mapping[str, bytes | None]) -> None:
        """Adds what the product environment told about topics; those that it told nothing about are not known yet."""
        for topic in topics:
            self.add(topic, told.get(topic))
        self._not_known_yet = [topic for topic in topics if topic not in told]

    def without_route(self) -> list[str]:
        """Topics that have no route so far."""
        return [topic for topic, route in self._routes.items() if route is None]

    def encoded(self, header: bytes) -> bytes:
        """The BatchGetTopicRoutesResponse."""
        routes = (route for route in self._routes.values() if route is not None)
        not_known_yet = set(self._not_known_yet)
        not_found = (topic for topic in self.without_route() if topic not in not_known_yet)
        named = [frame(_NOT_FOUND_NUMBER, topic.encode()) for topic in not_found]
        named += [frame(_WARMING_NUMBER, topic.encode()) for topic in self._not_known_yet]
        return b"".join((header, *routes, *named))


def _named_route(topic: str, route: bytes) -> bytes:
    """A NamedTopicRoute, framed as the field routes of a BatchGetTopicRoutesResponse."""
    name = topic.encode()
    named = (_TOPIC_OF_NAMED_TAG, varint(len(name)), name, _ROUTE_OF_NAMED_TAG, varint(len(route)))
    length = sum(map(len, named)) + len(route)
    return b"".join((_NAMED_ROUTE_TAG, varint(length), *named, route))
