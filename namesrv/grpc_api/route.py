"""The unary calls of RouteService."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from operator import attrgetter
from typing import ClassVar, NamedTuple

from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv import limits
from namesrv.app.access import sharer_of
from namesrv.app.fair_queue import FairLock
from namesrv.app.field_rules import NAME, TOPIC, Row, check, check_all
from namesrv.app.upkeep import digest_page
from namesrv.app.worker import Worker
from namesrv.core import encoding
from namesrv.core.digests import FRONT, DigestedBroker
from namesrv.core.encoding import frame, tag, varint
from namesrv.core.errors import invalid_field, limit_exceeded, registry_warming, topic_not_found
from namesrv.core.model import BrokerData, BrokerKey
from namesrv.core.pace import paced
from namesrv.core.state import RouteState
from namesrv.core.topic_lists import UNIT, UNIT_SUB, NamesAfter
from namesrv.core.warm_up import WarmUp
from namesrv.engines.api import CLUSTERS_DEPENDENCY, may_keep, route_dependencies
from namesrv.grpc_api import streams
from namesrv.grpc_api.handlers import Context
from namesrv.grpc_api.paging import Name, paged
from namesrv.grpc_api.streams import StreamCalls
from namesrv_common.version import __version__

# The calls of RouteService that look routes up.

_ROUTE_TAG = tag(pb.GetTopicRouteResponse.ROUTE_FIELD_NUMBER)
_NOT_FOUND_NUMBER = pb.BatchGetTopicRoutesResponse.TOPICS_NOT_FOUND_FIELD_NUMBER
_WARMING_NUMBER = pb.BatchGetTopicRoutesResponse.TOPICS_WARMING_FIELD_NUMBER
_LEFT_OUT_NUMBER = pb.BatchGetTopicRoutesResponse.TOPICS_LEFT_OUT_FIELD_NUMBER
_NAMED_ROUTE_TAG = tag(pb.BatchGetTopicRoutesResponse.ROUTES_FIELD_NUMBER)
_TOPIC_OF_NAMED_TAG = tag(pb.NamedTopicRoute.TOPIC_FIELD_NUMBER)
_ROUTE_OF_NAMED_TAG = tag(pb.NamedTopicRoute.ROUTE_FIELD_NUMBER)


@dataclass
class LookupCalls:
    """Answers from joined fragments; nothing is encoded here but headers."""

    inline_calls: ClassVar[tuple[str, ...]] = ("GetTopicRoute",)
    """Calls that never wait."""
    keeps_unknown: ClassVar[bool] = True
    """Whether the engine may keep that a topic is unknown."""
    state: RouteState
    warm_up: WarmUp

    async def GetTopicRoute(self, request: pb.GetTopicRouteRequest, context: Context) -> bytes:
        """GET_ROUTEINFO_BY_TOPIC, 105."""
        zone_name = streams.zone_name(request)
        topic = request.topic
        header, route = self.state.header_fragment(), self.state.route(topic, zone_name)
        if route is None:
            check(("topic", topic, TOPIC))
            if not self.warm_up.is_warm():
                raise registry_warming(f"the topic {topic!r}")
            if self.keeps_unknown:
                may_keep(context, request, lambda: [topic])
            raise topic_not_found(topic)
        may_keep(context, request, lambda: route_dependencies(self.state, topic))
        return b"".join((header, _ROUTE_TAG, varint(len(route)), route))

    async def BatchGetTopicRoutes(self, request: pb.BatchGetTopicRoutesRequest, context: Context) -> bytes:
        """GetTopicRoute many times. Nothing yields in between, so all routes from here are of one revision."""
        zone_name = streams.zone_name(request)
        header, asked = self.state.header_fragment(), list(streams.batch_topics(request))
        # Each topic has space for its name from the beginning. Its route overwrites the name if it fits.
        names = sum(len(_name(_NOT_FOUND_NUMBER, topic)) for _, topic in asked)
        free = limits.MAX_BATCH_BYTES - len(header) - LATER_HEADER_BYTES - names
        parts, unknown, left_out = [header], list[Row](), dict[str, int]()
        for place, topic in asked:
            route = self.state.route(topic, zone_name)
            if route is None:
                unknown.append((place, topic, TOPIC))
                continue
            named = _named_route(topic, route)
            more = len(named) - len(_name(_NOT_FOUND_NUMBER, topic))
            if more > free:
                left_out[topic] = len(named)
            else:
                free -= more
                parts.append(named)
        check_all(unknown)
        if len(left_out) == len(asked):
            raise limit_exceeded("bytes of a route in a batch", min(left_out.values()), limits.MAX_BATCH_BYTES)
        is_warm = self.warm_up.is_warm()
        if not unknown or (self.keeps_unknown and is_warm):
            of = partial(route_dependencies, self.state)
            may_keep(context, request, lambda: [one for topic in request.topics for one in of(topic)])
        parts += (_name(_NOT_FOUND_NUMBER if is_warm else _WARMING_NUMBER, topic) for _, topic, _ in unknown)
        parts += (_name(_LEFT_OUT_NUMBER, topic) for topic in left_out)
        return b"".join(parts)


LATER_HEADER_BYTES = 10
"""How much longer a header may become: engines repeat a cached answer with the header of a later revision."""


def _name(field_number: int, topic: str) -> bytes:
    """A topic's name, framed. It has the same length under each of the fields."""
    return frame(field_number, topic.encode())


def _named_route(topic: str, route: bytes) -> bytes:
    """A NamedTopicRoute, framed as the field routes of a BatchGetTopicRoutesResponse."""
    name = topic.encode()
    named = (_TOPIC_OF_NAMED_TAG, varint(len(name)), name, _ROUTE_OF_NAMED_TAG, varint(len(route)))
    length = sum(map(len, named)) + len(route)
    return b"".join((_NAMED_ROUTE_TAG, varint(length), *named, route))


# The calls of RouteService that list what the tables hold, and tell how the name server is.

_FLAGS = {
    pb.TOPIC_FILTER_UNIT: (UNIT, 0),
    pb.TOPIC_FILTER_UNIT_SUB: (UNIT_SUB, 0),
    pb.TOPIC_FILTER_UNIT_SUB_UNUNIT: (UNIT_SUB, UNIT),
}
"""Flag bits that topics of a filter have, and flag bits that they do not have."""


@dataclass
class TableCalls:
    """Answers from the tables. Long lists and digests are taken in one step of the event loop, and made on a thread."""

    state: RouteState
    warm_up: WarmUp
    reader: Worker
    started_at_millis: int
    data_dir_problem: Callable[[], str | None]

    def __post_init__(self) -> None:
        # Held while a page of topics is made: a list that is taken may share every row with the tables.
        self._listing = FairLock()

    async def ListTopics(self, request: pb.ListTopicsRequest, context: Context) -> pb.ListTopicsResponse:
        """The lists of RocketMQ's requests 206, 224, 304, 311, 312 and 313."""
        asked, take, owner = paged(request, Name("")), self._list_of(request), sharer_of(context).name
        async with self._listing.held_for(owner):
            work = partial(take(), asked.after.name, asked.limit)
            names, token = asked.cut(await self.reader.run(work, owner), Name)
        system = request.filter == pb.TOPIC_FILTER_SYSTEM
        return pb.ListTopicsResponse(
            header=self.state.header(),
            topics=names,
            next_page_token=token,
            broker_addr=self.state.topic_lists.broker_addr() if system else None,
        )

    def _list_of(self, request: pb.ListTopicsRequest) -> Callable[[], NamesAfter]:
        """Takes the list that a request names. Raises INVALID_FIELD."""
        if request.HasField("cluster_name"):
            if request.filter != pb.TOPIC_FILTER_UNSPECIFIED:
                raise invalid_field("cluster_name", "is set, and so is filter, which selects from all clusters")
            check(("cluster_name", request.cluster_name, NAME))
            return partial(self.state.topic_lists.of_cluster, request.cluster_name)
        if request.filter == pb.TOPIC_FILTER_UNSPECIFIED:
            return self.state.topic_lists.all
        if request.filter == pb.TOPIC_FILTER_SYSTEM:
            return self.state.topic_lists.system
        if request.filter not in _FLAGS:
            highest = max(pb.TopicFilter.values())
            raise invalid_field("filter", f"is {request.filter}, must be a TopicFilter, 0 to {highest}")
        return partial(self.state.topic_lists.with_flags, *_FLAGS[request.filter])

    async def GetRouteDigest(self, request: pb.GetRouteDigestRequest, context: Context) -> pb.GetRouteDigestResponse:
        """What each broker reports, as 32 bytes; RocketMQ has nothing like it."""
        asked, owner = paged(request, FRONT, most=limits.MAX_DIGEST_PAGE_SIZE), sharer_of(context).name
        found = await digest_page(self.state.digests, self.reader, asked.after, asked.limit, owner)
        header = self.state.header()  # of the moment of the page
        brokers, token = asked.cut(found, attrgetter("position"))
        messages = await self.reader.run(partial(_messages, brokers), owner)
        return pb.GetRouteDigestResponse(header=header, brokers=messages, next_page_token=token)

    async def GetBrokerClusterInfo(self, request: pb.GetBrokerClusterInfoRequest, context: Context) -> bytes:
        """GET_BROKER_CLUSTER_INFO, 106."""
        asked = paged(request, BrokerKey("", ""), most=limits.MAX_GROUP_PAGE_SIZE)
        may_keep(context, request, lambda: [CLUSTERS_DEPENDENCY])
        table = self.state.tables.broker_addr_table
        found = heapq.nsmallest(asked.limit, (key for key in table if key > asked.after))
        page, token = asked.cut(found, BrokerKey._make, _groups_that_fit(table, found))
        parts = [self.state.header_fragment(), *(table[key].fragment for key in page)]
        if token:
            parts.append(frame(pb.GetBrokerClusterInfoResponse.NEXT_PAGE_TOKEN_FIELD_NUMBER, token.encode()))
        return b"".join(parts)

    async def GetBrokerMemberGroup(
        self, request: pb.GetBrokerMemberGroupRequest, _context: Context
    ) -> pb.GetBrokerMemberGroupResponse:
        """GET_BROKER_MEMBER_GROUP, 901."""
        check(("cluster_name", request.cluster_name, NAME), ("broker_name", request.broker_name, NAME))
        key = BrokerKey(request.cluster_name, request.broker_name)
        group = self.state.tables.broker_addr_table.get(key) or BrokerData(key)
        return pb.GetBrokerMemberGroupResponse(header=self.state.header(), broker_data=encoding.broker_data(group))

    async def GetNamesrvStatus(
        self, _request: pb.GetNamesrvStatusRequest, _context: Context
    ) -> pb.GetNamesrvStatusResponse:
        tables = self.state.tables
        guarded, guard_ends_at = self.state.guarded()
        doubts = self.state.channel_doubts().values()
        return pb.GetNamesrvStatusResponse(
            header=self.state.header(),
            version=__version__,
            started_at_millis=self.started_at_millis,
            warm=self.warm_up.is_warm(),
            guard_tripped=guarded > 0,
            unconfirmed_broker_count=len(self.state.unconfirmed),
            live_broker_count=len(tables.broker_live_table),
            topic_count=len(tables.topic_queue_table),
            compacted_revision=self.state.change_log.compacted_revision,
            data_dir_problem=self.data_dir_problem(),
            guarded_broker_count=guarded,
            guard_ends_at_millis=guard_ends_at,
            doubted_broker_count=len(doubts),
            doubt_ends_at_millis=max((doubted.ends_at_millis for doubted in doubts), default=None),
        )


def _messages(brokers: Sequence[DigestedBroker]) -> list[pb.BrokerDigest]:
    return [
        pb.BrokerDigest(
            cluster_name=live.broker.cluster_name,
            broker_name=live.broker.broker_name,
            broker_id=live.broker_id,
            broker_addr=live.broker_addr,
            data_version=route_data_pb2.DataVersion(**asdict(live.data_version)),
            digest=digest,
        )
        for live, digest in paced(brokers)
    ]


def _groups_that_fit(table: Mapping[BrokerKey, BrokerData], keys: Sequence[BrokerKey]) -> int:
    """Counts the groups up to the one with which a page has its bytes."""
    size = 0
    for count, key in enumerate(keys, 1):
        size += len(table[key].fragment)
        if size >= limits.GROUP_PAGE_BYTES:
            return count
    return len(keys)


# RouteService: what producers, consumers, tools and the pipeline call.


class RouteServicer(NamedTuple):
    """All calls of the service, by subject."""

    lookups: LookupCalls
    tables: TableCalls
    streams: StreamCalls
