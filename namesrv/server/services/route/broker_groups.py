"""The calls of RouteService about broker groups and clusters."""

from __future__ import annotations

from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.core import encoding
from namesrv.core.model import BrokerData, BrokerKey
from namesrv.core.registrations import RouteInfoManager
from namesrv.server.rpc.handlers import Context
from namesrv.server.rpc.kept_answers import CLUSTERS_TAG, may_keep
from namesrv.server.services import field_rules


class BrokerGroupCalls:
    """Answers from fragments of the tables."""

    def __init__(self, manager: RouteInfoManager) -> None:
        self._manager = manager

    async def GetBrokerClusterInfo(  # noqa: N802 - calls have the names of the wire contract
        self, _request: pb.GetBrokerClusterInfoRequest, context: Context
    ) -> bytes:
        """GET_BROKER_CLUSTER_INFO, 106."""
        may_keep(context, lambda: [CLUSTERS_TAG])
        tables = self._manager.tables
        number = pb.GetBrokerClusterInfoResponse.CLUSTERS_FIELD_NUMBER
        parts = [self._manager.header_fragment()]
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
        group = self._manager.tables.broker_addr_table.get(key) or BrokerData(key, {})
        return pb.GetBrokerMemberGroupResponse(
            header=self._manager.header(),
            broker_data=encoding.broker_data(group),
        )
