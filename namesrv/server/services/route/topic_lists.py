"""The calls of RouteService that list topics, in pages."""

from __future__ import annotations

from functools import partial

from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.core.errors import ListDisabled
from namesrv.core.registrations import RouteInfoManager
from namesrv.core.topic_lists import UNIT, UNIT_SUB
from namesrv.server.rpc.handlers import Context
from namesrv.server.services import field_rules
from namesrv.server.services.paging import page_of


class TopicListCalls:
    """The lists: names are made in the core in steps, answers here."""

    def __init__(self, manager: RouteInfoManager) -> None:
        self._manager = manager
        self._lists = manager.topic_lists

    async def ListTopics(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.ListTopicsRequest, _context: Context
    ) -> pb.ListTopicsResponse:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER, 206."""
        self._check_enabled("enableAllTopicList", enabled=self._manager.behaviour.enable_all_topic_list)
        names, token = await page_of(request, self._lists.all_after)
        return pb.ListTopicsResponse(header=self._manager.header(), topics=names, next_page_token=token)

    async def ListTopicsByCluster(  # noqa: N802
        self, request: pb.ListTopicsByClusterRequest, _context: Context
    ) -> pb.ListTopicsByClusterResponse:
        """GET_TOPICS_BY_CLUSTER, 224."""
        field_rules.check_name("cluster_name", request.cluster_name)
        self._check_topic_list_enabled()
        names, token = await page_of(request, partial(self._lists.of_cluster_after, request.cluster_name))
        return pb.ListTopicsByClusterResponse(header=self._manager.header(), topics=names, next_page_token=token)

    async def ListSystemTopics(  # noqa: N802
        self, request: pb.ListSystemTopicsRequest, _context: Context
    ) -> pb.ListSystemTopicsResponse:
        """GET_SYSTEM_TOPIC_LIST_FROM_NS, 304."""
        names, token = await page_of(request, self._lists.system_after)
        return pb.ListSystemTopicsResponse(
            header=self._manager.header(),
            topics=names,
            next_page_token=token,
            broker_addr=self._lists.broker_addr(),
        )

    async def ListUnitTopics(  # noqa: N802
        self, request: pb.ListUnitTopicsRequest, _context: Context
    ) -> pb.ListUnitTopicsResponse:
        """GET_UNIT_TOPIC_LIST, 311."""
        self._check_topic_list_enabled()
        names, token = await page_of(request, partial(self._lists.with_flags_after, UNIT, 0))
        return pb.ListUnitTopicsResponse(header=self._manager.header(), topics=names, next_page_token=token)

    async def ListUnitSubTopics(  # noqa: N802
        self, request: pb.ListUnitSubTopicsRequest, _context: Context
    ) -> pb.ListUnitSubTopicsResponse:
        """GET_HAS_UNIT_SUB_TOPIC_LIST, 312."""
        self._check_topic_list_enabled()
        names, token = await page_of(request, partial(self._lists.with_flags_after, UNIT_SUB, 0))
        return pb.ListUnitSubTopicsResponse(header=self._manager.header(), topics=names, next_page_token=token)

    async def ListUnitSubUnunitTopics(  # noqa: N802
        self, request: pb.ListUnitSubUnunitTopicsRequest, _context: Context
    ) -> pb.ListUnitSubUnunitTopicsResponse:
        """GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, 313."""
        self._check_topic_list_enabled()
        names, token = await page_of(request, partial(self._lists.with_flags_after, UNIT_SUB, UNIT))
        return pb.ListUnitSubUnunitTopicsResponse(header=self._manager.header(), topics=names, next_page_token=token)

    def _check_topic_list_enabled(self) -> None:
        self._check_enabled("enableTopicList", enabled=self._manager.behaviour.enable_topic_list)

    @staticmethod
    def _check_enabled(key: str, *, enabled: bool) -> None:
        """RocketMQ: SYSTEM_ERROR "disable"."""
        if not enabled:
            raise ListDisabled(key)
