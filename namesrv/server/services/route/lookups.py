"""The calls of RouteService that look routes up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.config import limits
from namesrv.core.encoding import frame, tag, varint
from namesrv.core.errors import LimitExceeded, ProductEnvUnavailable, RegistryWarming, TopicNotFound
from namesrv.core.registrations import RouteInfoManager
from namesrv.core.warm_up import WarmUp
from namesrv.server.rpc.handlers import Context
from namesrv.server.rpc.kept_answers import may_keep, route_tags
from namesrv.server.services import field_rules
from namesrv.server.services.route import requests
from namesrv.server.services.route.cluster_test import ClusterTest, asked_by_cluster_test

_ROUTE_TAG = tag(pb.GetTopicRouteResponse.ROUTE_FIELD_NUMBER)
_NOT_FOUND_NUMBER = pb.BatchGetTopicRoutesResponse.TOPICS_NOT_FOUND_FIELD_NUMBER
_WARMING_NUMBER = pb.BatchGetTopicRoutesResponse.TOPICS_WARMING_FIELD_NUMBER
_NAMED_ROUTE_TAG = tag(pb.BatchGetTopicRoutesResponse.ROUTES_FIELD_NUMBER)
_TOPIC_OF_NAMED_TAG = tag(pb.NamedTopicRoute.TOPIC_FIELD_NUMBER)
_ROUTE_OF_NAMED_TAG = tag(pb.NamedTopicRoute.ROUTE_FIELD_NUMBER)


class LookupCalls:
    """Answers from joined fragments; nothing is encoded here but headers."""

    def __init__(self, manager: RouteInfoManager, warm_up: WarmUp, product_env: ClusterTest | None) -> None:
        self._manager = manager
        self._warm_up = warm_up
        self._product_env = product_env
        self.inline_calls = () if product_env else ("GetTopicRoute",)
        """Calls that never wait."""

    async def GetTopicRoute(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.GetTopicRouteRequest, context: Context
    ) -> bytes:
        """GET_ROUTEINFO_BY_TOPIC, 105."""
        self._check_service()
        zone_name = requests.zone_name(request)
        topic = request.topic
        header, route = self._manager.header_fragment(), self._manager.pickup_topic_route_data(topic, zone_name)
        if route is not None:
            may_keep(context, lambda: route_tags(self._manager, topic))
        else:
            field_rules.check_topic("topic", topic)
            if not self._warm_up.is_warm():
                raise RegistryWarming(f"the topic {topic!r}")
            if self._product_env is None:
                may_keep(context, lambda: [topic])
            product_env = self._product_env_for(context)
            route = await product_env.route(topic, zone_name) if product_env else None
        if route is None:
            raise TopicNotFound(topic)
        return b"".join((header, _ROUTE_TAG, varint(len(route)), route))

    async def BatchGetTopicRoutes(  # noqa: N802
        self, request: pb.BatchGetTopicRoutesRequest, context: Context
    ) -> bytes:
        """GetTopicRoute many times. Nothing gives way in between, so all routes from here are of one revision."""
        self._check_service()
        zone_name = requests.zone_name(request)
        header, batch = self._manager.header_fragment(), _Batch()
        for field, topic in requests.batch_topics(request):
            route = self._manager.pickup_topic_route_data(topic, zone_name)
            if route is None:
                field_rules.check_topic(field, topic)
            batch.add(topic, route)
        unknown, product_env = batch.without_route(), self._product_env_for(context)
        if not unknown or (self._product_env is None and self._warm_up.is_warm()):
            may_keep(context, lambda: [tag for topic in request.topics for tag in route_tags(self._manager, topic)])
        if not self._warm_up.is_warm():
            batch.add_from_elsewhere(unknown, {})
        elif unknown and product_env:
            try:
                elsewhere = await product_env.routes(unknown, zone_name)
            except ProductEnvUnavailable:  # what is known here must not fail with it
                elsewhere = {}
            batch.add_from_elsewhere(unknown, elsewhere)
        return batch.encoded(header)

    def _product_env_for(self, context: Context) -> ClusterTest | None:
        """Whom to ask for unknown topics; nobody if the caller asks for another name server in cluster-test mode."""
        if self._product_env is None or asked_by_cluster_test(context):
            return None
        return self._product_env

    def _check_service(self) -> None:
        """RocketMQ: "name server not ready"."""
        if self._warm_up.must_wait():
            raise RegistryWarming("any route (needWaitForService)")


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
