"""The unary calls of RouteService."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Self

from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.version import __version__
from namesrv import limits
from namesrv.app import field_rules
from namesrv.app.cluster_test import ClusterTest, asked_by_cluster_test
from namesrv.app.digest_pages import digest_page
from namesrv.app.quotas import FairShares
from namesrv.app.stall_detector import StallDetector
from namesrv.app.watches import WatchDispatcher
from namesrv.app.worker import Worker
from namesrv.app.writer import settled
from namesrv.core import encoding
from namesrv.core.digests import FRONT, DigestedBroker, Position
from namesrv.core.encoding import frame, tag, varint
from namesrv.core.errors import (
    InvalidField,
    LimitExceeded,
    ProductEnvUnavailable,
    RegistryWarming,
    TopicNotFound,
)
from namesrv.core.model import BrokerData, BrokerKey
from namesrv.core.pace import paced
from namesrv.core.pins import Pins
from namesrv.core.route_view import RouteView
from namesrv.core.topic_lists import UNIT, UNIT_SUB, NamesAfter
from namesrv.core.warm_up import WarmUp
from namesrv.engines.api import CLUSTERS_DEPENDENCY, may_keep, route_dependencies
from namesrv.grpc_api import streams
from namesrv.grpc_api.handlers import Context
from namesrv.grpc_api.paging import AsksForPage, Page, last_of_page_before, page_of, page_token
from namesrv.grpc_api.streams import SnapshotCalls, WatchCalls

# The calls of RouteService that look routes up.

_ROUTE_TAG = tag(pb.GetTopicRouteResponse.ROUTE_FIELD_NUMBER)
_NOT_FOUND_NUMBER = pb.BatchGetTopicRoutesResponse.TOPICS_NOT_FOUND_FIELD_NUMBER
_WARMING_NUMBER = pb.BatchGetTopicRoutesResponse.TOPICS_WARMING_FIELD_NUMBER
_NAMED_ROUTE_TAG = tag(pb.BatchGetTopicRoutesResponse.ROUTES_FIELD_NUMBER)
_TOPIC_OF_NAMED_TAG = tag(pb.NamedTopicRoute.TOPIC_FIELD_NUMBER)
_ROUTE_OF_NAMED_TAG = tag(pb.NamedTopicRoute.ROUTE_FIELD_NUMBER)


class LookupCalls:
    """Answers from joined fragments; nothing is encoded here but headers."""

    def __init__(self, state: RouteView, warm_up: WarmUp, product_env: ClusterTest | None) -> None:
        self._state = state
        self._warm_up = warm_up
        self._product_env = product_env
        self.inline_calls = () if product_env else ("GetTopicRoute",)
        """Calls that never wait."""

    async def GetTopicRoute(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.GetTopicRouteRequest, context: Context
    ) -> bytes:
        """GET_ROUTEINFO_BY_TOPIC, 105."""
        zone_name = streams.zone_name(request)
        topic = request.topic
        header, route = self._state.header_fragment(), self._state.route(topic, zone_name)
        if route is not None:
            may_keep(context, lambda: route_dependencies(self._state, topic))
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
        zone_name = streams.zone_name(request)
        header, batch = self._state.header_fragment(), _Batch()
        for field, topic in streams.batch_topics(request):
            route = self._state.route(topic, zone_name)
            if route is None:
                field_rules.check_topic(field, topic)
            batch.add(topic, route)
        unknown, product_env = batch.without_route(), self._product_env_for(context)
        if not unknown or (self._product_env is None and self._warm_up.is_warm()):
            may_keep(
                context, lambda: [one for topic in request.topics for one in route_dependencies(self._state, topic)]
            )
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


class _Batch:
    """The answer to a batch while it is put together, in the order asked."""

    def __init__(self) -> None:
        self._routes: dict[str, bytes | None] = {}
        """Each topic's NamedTopicRoute, framed; None if it is not there, or not known yet."""
        self._not_known_yet: list[str] = []
        self._size = 0

    def add(self, topic: str, route: bytes | None) -> None:
        """Adds a topic, or its route from elsewhere. Raises LimitExceeded if the routes are too many bytes."""
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
        return [topic for topic, route in self._routes.items() if route is None]

    def encoded(self, header: bytes) -> bytes:
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


# The calls of RouteService that list topics, in pages.


class TopicListCalls:
    """The lists: each is taken in one step of the event loop, and read on a thread."""

    def __init__(self, state: RouteView, reader: Worker) -> None:
        self._state = state
        self._lists = state.topic_lists
        self._reader = reader

    async def _page(self, request: AsksForPage, taken: Callable[[], NamesAfter]) -> Page:
        await settled(self._state)
        return await page_of(request, taken(), self._reader)

    async def ListTopics(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.ListTopicsRequest, _context: Context
    ) -> pb.ListTopicsResponse:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER, 206."""
        names, token = await self._page(request, self._lists.all)
        return pb.ListTopicsResponse(header=self._state.header(), topics=names, next_page_token=token)

    async def ListTopicsByCluster(  # noqa: N802
        self, request: pb.ListTopicsByClusterRequest, _context: Context
    ) -> pb.ListTopicsByClusterResponse:
        """GET_TOPICS_BY_CLUSTER, 224."""
        field_rules.check_name("cluster_name", request.cluster_name)
        names, token = await self._page(request, partial(self._lists.of_cluster, request.cluster_name))
        return pb.ListTopicsByClusterResponse(header=self._state.header(), topics=names, next_page_token=token)

    async def ListSystemTopics(  # noqa: N802
        self, request: pb.ListSystemTopicsRequest, _context: Context
    ) -> pb.ListSystemTopicsResponse:
        """GET_SYSTEM_TOPIC_LIST_FROM_NS, 304."""
        names, token = await self._page(request, self._lists.system)
        return pb.ListSystemTopicsResponse(
            header=self._state.header(),
            topics=names,
            next_page_token=token,
            broker_addr=self._lists.broker_addr(),
        )

    async def ListUnitTopics(  # noqa: N802
        self, request: pb.ListUnitTopicsRequest, _context: Context
    ) -> pb.ListUnitTopicsResponse:
        """GET_UNIT_TOPIC_LIST, 311."""
        names, token = await self._page(request, partial(self._lists.with_flags, UNIT, 0))
        return pb.ListUnitTopicsResponse(header=self._state.header(), topics=names, next_page_token=token)

    async def ListUnitSubTopics(  # noqa: N802
        self, request: pb.ListUnitSubTopicsRequest, _context: Context
    ) -> pb.ListUnitSubTopicsResponse:
        """GET_HAS_UNIT_SUB_TOPIC_LIST, 312."""
        names, token = await self._page(request, partial(self._lists.with_flags, UNIT_SUB, 0))
        return pb.ListUnitSubTopicsResponse(header=self._state.header(), topics=names, next_page_token=token)

    async def ListUnitSubUnunitTopics(  # noqa: N802
        self, request: pb.ListUnitSubUnunitTopicsRequest, _context: Context
    ) -> pb.ListUnitSubUnunitTopicsResponse:
        """GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, 313."""
        names, token = await self._page(request, partial(self._lists.with_flags, UNIT_SUB, UNIT))
        return pb.ListUnitSubUnunitTopicsResponse(header=self._state.header(), topics=names, next_page_token=token)


# The call of RouteService that tells digests of what each broker reports, in pages.

_ID = re.compile(r"[0-9]{1,19}")
"""A broker id in a page token."""


class DigestCalls:
    """Digests are computed on a thread, where they are not known yet."""

    def __init__(self, state: RouteView, reader: Worker) -> None:
        self._state = state
        self._reader = reader

    async def GetRouteDigest(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.GetRouteDigestRequest, _context: Context
    ) -> pb.GetRouteDigestResponse:
        """What each broker reports, as 32 bytes; RocketMQ has nothing like it."""
        size = min(field_rules.page_size(request.page_size), limits.MAX_DIGEST_PAGE_SIZE)
        after = _position_of_token(request.page_token)
        # One more than fits tells whether there is a next page.
        found = await digest_page(self._state.digests, self._reader, after, size + 1)
        header = self._state.header()  # of the moment of the page
        return pb.GetRouteDigestResponse(
            header=header,
            brokers=await self._reader.run(partial(_messages, found[:size])),
            next_page_token=_token_of(found[size - 1]) if len(found) > size else "",
        )


def _messages(brokers: list[DigestedBroker]) -> list[pb.BrokerDigest]:
    messages = []
    for live, digest in paced(brokers):
        version = live.data_version
        messages.append(
            pb.BrokerDigest(
                cluster_name=live.broker.cluster_name,
                broker_name=live.broker.broker_name,
                broker_id=live.broker_id,
                broker_addr=live.broker_addr,
                data_version=route_data_pb2.DataVersion(
                    timestamp_millis=version.timestamp_millis,
                    counter=version.counter,
                    state_version=version.state_version,
                ),
                digest=digest,
            )
        )
    return messages


def _token_of(broker: DigestedBroker) -> str:
    return page_token("\n".join(map(str, broker.position)))


def _position_of_token(token: str) -> Position:
    """Where to go on; the front for the first page. Raises InvalidField."""
    if not token:
        return FRONT
    cluster_name, _, rest = last_of_page_before(token).partition("\n")
    broker_name, _, broker_id = rest.partition("\n")
    if not (cluster_name and broker_name and _ID.fullmatch(broker_id)):
        raise InvalidField("page_token", "is not a next_page_token of this call")
    return Position(cluster_name, broker_name, int(broker_id))


# The calls of RouteService about broker groups and clusters.


class BrokerGroupCalls:
    """Answers from fragments of the tables."""

    def __init__(self, state: RouteView) -> None:
        self._state = state

    async def GetBrokerClusterInfo(  # noqa: N802 - calls have the names of the wire contract
        self, _request: pb.GetBrokerClusterInfoRequest, context: Context
    ) -> bytes:
        """GET_BROKER_CLUSTER_INFO, 106."""
        may_keep(context, lambda: [CLUSTERS_DEPENDENCY])
        tables = self._state.tables
        number = pb.GetBrokerClusterInfoResponse.CLUSTERS_FIELD_NUMBER
        parts = [self._state.header_fragment()]
        for cluster_name, broker_names in sorted(tables.cluster_addr_table.items()):
            parts.append(encoding.frame(number, encoding.cluster_data(cluster_name, broker_names)))
        parts += [group.fragment for _, group in sorted(tables.broker_addr_table.items(), key=lambda item: item[0])]
        return b"".join(parts)

    async def GetBrokerMemberGroup(  # noqa: N802
        self, request: pb.GetBrokerMemberGroupRequest, _context: Context
    ) -> pb.GetBrokerMemberGroupResponse:
        """GET_BROKER_MEMBER_GROUP, 901."""
        field_rules.check_name("cluster_name", request.cluster_name)
        field_rules.check_name("broker_name", request.broker_name)
        key = BrokerKey(request.cluster_name, request.broker_name)
        group = self._state.tables.broker_addr_table.get(key) or BrokerData(key, {})
        return pb.GetBrokerMemberGroupResponse(
            header=self._state.header(),
            broker_data=encoding.broker_data(group),
        )


# A count of the event loop's tasks.

COUNT_SECONDS = 1.0
"""Shortest time between two counts: one takes 3 ms with 10,000 tasks, and callers may ask for the status again and
again.
"""


class TaskCount:
    """Counts the tasks of the event loop, at most once in ``COUNT_SECONDS``."""

    def __init__(self) -> None:
        self._counted_at = -math.inf
        self._count = 0

    def latest(self) -> int:
        """How many there are, or were within the last second. Call it on the event loop."""
        now = asyncio.get_running_loop().time()
        if now - self._counted_at >= COUNT_SECONDS:
            self._counted_at, self._count = now, len(asyncio.all_tasks())
        return self._count


# The call of RouteService that tells how the name server is.


class StatusCalls:
    """Counts what is there."""

    def __init__(
        self,
        state: RouteView,
        stall_detector: StallDetector,
        warm_up: WarmUp,
        *,
        started_at_millis: int,
        engine: str,
        engine_because: str,
        data_dir_problem: Callable[[], str | None],
    ) -> None:
        self._state = state
        self._stall_detector = stall_detector
        self._warm_up = warm_up
        self._started_at_millis = started_at_millis
        self._engine = engine
        self._engine_because = engine_because
        self._data_dir_problem = data_dir_problem
        self._tasks = TaskCount()

    async def GetNamesrvStatus(  # noqa: N802 - calls have the names of the wire contract
        self, _request: pb.GetNamesrvStatusRequest, _context: Context
    ) -> pb.GetNamesrvStatusResponse:
        tables = self._state.tables
        guarded, guard_ends_at = self._state.guarded()
        return pb.GetNamesrvStatusResponse(
            header=self._state.header(),
            version=__version__,
            started_at_millis=self._started_at_millis,
            warm=self._warm_up.is_warm(),
            guard_tripped=guarded > 0,
            unconfirmed_broker_count=len(self._state.unconfirmed),
            live_broker_count=len(tables.broker_live_table),
            topic_count=len(tables.topic_queue_table),
            loop_lag_millis=self._stall_detector.longest_delay() * 1000,
            compacted_revision=self._state.change_log.compacted_revision,
            task_count=self._tasks.latest(),
            engine=self._engine,
            engine_because=self._engine_because,
            data_dir_problem=self._data_dir_problem(),
            guarded_broker_count=guarded,
            guard_ends_at_millis=guard_ends_at,
        )


# RouteService: what producers, consumers, tools and the pipeline call.


class RouteServicer(NamedTuple):
    """All calls of the service, by subject."""

    lookups: LookupCalls
    topic_lists: TopicListCalls
    snapshots: SnapshotCalls
    watches: WatchCalls
    digests: DigestCalls
    broker_groups: BrokerGroupCalls
    status: StatusCalls

    @classmethod
    def of(
        cls,
        state: RouteView,
        stall_detector: StallDetector,
        warm_up: WarmUp,
        pins: Pins,
        watchers: WatchDispatcher,
        *,
        reader: Worker,
        shares: FairShares,
        product_env: ClusterTest | None,
        started_at_millis: int,
        engine: str,
        engine_because: str,
        data_dir_problem: Callable[[], str | None],
    ) -> Self:
        return cls(
            LookupCalls(state, warm_up, product_env),
            TopicListCalls(state, reader),
            SnapshotCalls(state, pins, watchers, reader, shares.snapshot_streams),
            WatchCalls(state, warm_up, watchers, reader),
            DigestCalls(state, reader),
            BrokerGroupCalls(state),
            StatusCalls(
                state,
                stall_detector,
                warm_up,
                started_at_millis=started_at_millis,
                engine=engine,
                engine_because=engine_because,
                data_dir_problem=data_dir_problem,
            ),
        )
