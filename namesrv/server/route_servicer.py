"""RouteService: what producers, consumers, tools and the pipeline call."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator

from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.core import fragments
from namesrv.core.errors import InvalidField, Overloaded, TopicNotFound
from namesrv.core.fragments import tag, varint
from namesrv.core.route_info_manager import RouteInfoManager
from namesrv.server import limits, wire
from namesrv.server.rpc import Context
from namesrv.server.table_writer import drive

_ROUTE_TAG = tag(pb.GetTopicRouteResponse.ROUTE_FIELD_NUMBER)


class RouteServicer:
    """Answers look-ups from joined fragments; nothing is encoded here but headers."""

    def __init__(self, manager: RouteInfoManager) -> None:
        self._manager = manager
        self._snapshot_streams = 0

    async def GetTopicRoute(self, request: pb.GetTopicRouteRequest, _context: Context) -> bytes:  # noqa: N802
        """GET_ROUTEINFO_BY_TOPIC, 105."""
        wire.refuse_fields(request, "zone_name")
        topic = request.topic
        route = self._manager.pickup_topic_route_data(topic)
        if route is None:
            wire.check_topic("topic", topic)
            raise TopicNotFound(topic)
        return b"".join((self._manager.header_fragment(), _ROUTE_TAG, varint(len(route)), route))

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

    async def ListTopics(self, request: pb.ListTopicsRequest, _context: Context) -> pb.ListTopicsResponse:  # noqa: N802
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER, 206."""
        size = wire.page_size(request.page_size)
        names = await drive(self._manager.topic_names_after(_last_of_page_before(request.page_token), size + 1))
        page, more = names[:size], len(names) > size
        return pb.ListTopicsResponse(
            header=self._manager.header(), topics=page, next_page_token=_page_token(page[-1]) if more else ""
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


def _page_token(last_name: str) -> str:
    """A token that stays valid while the tables change: it says after which name to go on."""
    return base64.urlsafe_b64encode(last_name.encode()).decode()


def _last_of_page_before(page_token: str) -> str:
    try:
        return base64.b64decode(page_token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise InvalidField("page_token", "is not a next_page_token of this call") from None
