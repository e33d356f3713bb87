"""RouteService: what producers, consumers, tools and the pipeline call."""

from __future__ import annotations

from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.version import __version__
from namesrv.core.records import fragments
from namesrv.core.records.rows import BrokerData, BrokerKey
from namesrv.core.routes.route_info_manager import RouteInfoManager
from namesrv.core.routes.route_state import Unconfirmed
from namesrv.core.routes.warm_up import WarmUp
from namesrv.core.snapshot.pins import Pins
from namesrv.server.background.stall_detector import StallDetector
from namesrv.server.background.watch_streams import WatchStreams
from namesrv.server.rpc.handlers import Context
from namesrv.server.services import field_rules
from namesrv.server.services.route.cluster_test import ClusterTest
from namesrv.server.services.route.digests import DigestCalls
from namesrv.server.services.route.lookups import LookupCalls
from namesrv.server.services.route.snapshots import SnapshotCalls
from namesrv.server.services.route.topic_lists import TopicListCalls
from namesrv.server.services.route.watches import WatchCalls
from namesrv.server.task_count import TaskCount


class RouteServicer(LookupCalls, TopicListCalls, SnapshotCalls, WatchCalls, DigestCalls):
    """All calls of the service: most are in the classes that it is made of, the others here."""

    def __init__(
        self,
        manager: RouteInfoManager,
        stall_detector: StallDetector,
        warm_up: WarmUp,
        pins: Pins,
        watchers: WatchStreams,
        *,
        product_env: ClusterTest | None,
        started_at_millis: int,
    ) -> None:
        LookupCalls.__init__(self, manager, warm_up, product_env)
        TopicListCalls.__init__(self, manager)
        SnapshotCalls.__init__(self, manager, pins, watchers)
        WatchCalls.__init__(self, manager, warm_up, watchers)
        DigestCalls.__init__(self, manager)
        self._stall_detector = stall_detector
        self._started_at_millis = started_at_millis
        self._tasks = TaskCount()

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
        field_rules.check_name("cluster_name", request.cluster_name)
        field_rules.check_name("broker_name", request.broker_name)
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
            warm=self._warm_up.is_warm(),
            guard_tripped=Unconfirmed.GUARD in self._manager.unconfirmed.values(),
            unconfirmed_broker_count=len(self._manager.unconfirmed),
            live_broker_count=len(tables.broker_live_table),
            topic_count=len(tables.topic_queue_table),
            loop_lag_millis=self._stall_detector.longest_delay() * 1000,
            compacted_revision=self._manager.change_log.compacted_revision,
            task_count=self._tasks.latest(),
        )
