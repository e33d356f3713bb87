"""BrokerAgentService: the agent's status, and the calls by which an operator changes the broker."""

from __future__ import annotations

from collections.abc import Callable

from broker_agent_api.v1 import broker_agent_service_pb2 as pb

from broker_agent.broker_outer_api import BrokerOuterAPI, Master
from broker_agent.broker_probe import BrokerProbe
from broker_agent.name_server import NamesrvTarget
from broker_agent.registration import Registration
from broker_agent.topics.topic_service import version_message
from namesrv_common.errors import invalid_field
from namesrv_common.topic_names import MAX_PERM
from namesrv_common.version import __version__

_MAX_INT64 = 2**63 - 1


class BrokerAgentServicer:
    """Checks requests, has them done, answers."""

    def __init__(
        self,
        status: Callable[[], pb.GetAgentStatusResponse],
        change_broker_role: Callable[[int, int | None], tuple[int, int, int]],
        update_broker_permission: Callable[[int], tuple[int, int]],
    ) -> None:
        self._status = status
        self._change_broker_role = change_broker_role
        self._update_broker_permission = update_broker_permission

    def GetAgentStatus(self, _request: pb.GetAgentStatusRequest, _context: object) -> pb.GetAgentStatusResponse:
        return self._status()

    def ChangeBrokerRole(self, request: pb.ChangeBrokerRoleRequest, _context: object) -> pb.ChangeBrokerRoleResponse:
        if not request.HasField("broker_id"):
            raise invalid_field("broker_id", "is missing; 0 is the master, above 0 a slave")
        if request.broker_id < 0:
            raise invalid_field("broker_id", f"is {request.broker_id}, must be 0 to {_MAX_INT64}")
        wanted = request.state_version if request.HasField("state_version") else None
        try:
            state_version, accepted, targets = self._change_broker_role(request.broker_id, wanted)
        except ValueError as error:
            raise invalid_field("state_version", str(error)) from error
        return pb.ChangeBrokerRoleResponse(state_version=state_version, accepted_count=accepted, target_count=targets)

    def UpdateBrokerPermission(
        self, request: pb.UpdateBrokerPermissionRequest, _context: object
    ) -> pb.UpdateBrokerPermissionResponse:
        if not request.HasField("broker_permission"):
            raise invalid_field("broker_permission", f"is missing; write the permission bits, 0 to {MAX_PERM}")
        if not 0 <= request.broker_permission <= MAX_PERM:
            raise invalid_field("broker_permission", f"is {request.broker_permission}, must be 0 to {MAX_PERM}")
        accepted, targets = self._update_broker_permission(request.broker_permission)
        return pb.UpdateBrokerPermissionResponse(accepted_count=accepted, target_count=targets)


# The answer to GetAgentStatus.


def agent_status(
    registration: Registration,
    *,
    master: Master | None,
    outer_api: BrokerOuterAPI,
    probe: BrokerProbe | None,
    topics_problem: str | None,
) -> pb.GetAgentStatusResponse:
    """What would be registered now, and how the name servers are."""
    broker = registration.broker
    state = pb.BROKER_PROBE_STATE_UNSPECIFIED
    if probe is not None:
        state = pb.BROKER_PROBE_STATE_UP if probe.is_up else pb.BROKER_PROBE_STATE_DOWN
    return pb.GetAgentStatusResponse(
        version=__version__,
        cluster_name=broker.cluster_name,
        broker_name=broker.broker_name,
        broker_id=broker.broker_id,
        broker_addr=broker.broker_addr,
        ha_server_addr=broker.ha_server_addr,
        topic_count=len(registration.table.topics),
        data_version=version_message(registration.version),
        broker_permission=broker.permission,
        filter_servers=broker.filter_servers or (),
        master_addr=master.addr if master else None,
        master_ha_server_addr=master.ha_server_addr if master else None,
        broker_probe=state,
        topics_problem=topics_problem,
        targets=[_target_status(target, outer_api) for target in outer_api.targets],
    )


def _target_status(target: NamesrvTarget, outer_api: BrokerOuterAPI) -> pb.NamesrvTargetStatus:
    status = target.status()
    status.in_flight = outer_api.in_flight(target)
    return status
