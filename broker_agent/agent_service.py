"""BrokerAgentService: the agent's status, and the calls by which an operator changes the broker."""

from __future__ import annotations

from dataclasses import dataclass

import structlog
from broker_agent_api.v1 import broker_agent_service_pb2 as pb

from broker_agent.broker_outer_api import BrokerOuterAPI, RegistrationResults
from broker_agent.broker_probe import BrokerProbe
from broker_agent.errors import checked
from broker_agent.registration import CurrentBroker
from broker_agent.topics.manager import TopicConfigManager
from broker_agent.topics.topic_service import version_message
from namesrv_common.errors import invalid_field
from namesrv_common.topic_names import MAX_PERM
from namesrv_common.version import __version__

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(eq=False)
class BrokerAgentServicer:
    """Checks requests, changes the broker and registers it at once, answers."""

    current: CurrentBroker
    topic_configs: TopicConfigManager
    outer_api: BrokerOuterAPI
    results: RegistrationResults
    probe: BrokerProbe | None
    """None if nothing probes the broker."""

    def GetAgentStatus(self, _request: pb.GetAgentStatusRequest, _context: object) -> pb.GetAgentStatusResponse:
        """What would be registered now, and how the name servers are."""
        registration, master, probed = self.current.registration(), self.results.master, self.probe
        broker = registration.broker
        state = pb.BROKER_PROBE_STATE_UNSPECIFIED
        if probed is not None:
            state = pb.BROKER_PROBE_STATE_UP if probed.is_up else pb.BROKER_PROBE_STATE_DOWN
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
            filter_servers=broker.filter_servers,
            master_addr=master.addr if master else None,
            master_ha_server_addr=master.ha_server_addr if master else None,
            broker_probe=state,
            topics_problem=self.topic_configs.problem,
            labels=dict(broker.labels),
            targets=self.outer_api.statuses(),
        )

    def ChangeBrokerRole(self, request: pb.ChangeBrokerRoleRequest, _context: object) -> pb.ChangeBrokerRoleResponse:
        if not request.HasField("broker_id"):
            raise invalid_field("broker_id", "is missing; 0 is the master, above 0 a slave")
        if request.broker_id < 0:
            raise invalid_field("broker_id", f"is {request.broker_id}, must be 0 to {2**63 - 1}")
        wanted = request.state_version if request.HasField("state_version") else None
        in_force = checked("state_version", self.current.change_role, request.broker_id, wanted)
        self.results.forget_master()
        _log.info("broker_role_changed", broker_id=request.broker_id, state_version=in_force)
        targets = self.outer_api.targets
        for target in targets:
            target.state.claim_id()
        return pb.ChangeBrokerRoleResponse(
            state_version=in_force, accepted_count=self._register(), target_count=len(targets)
        )

    def UpdateBrokerPermission(
        self, request: pb.UpdateBrokerPermissionRequest, _context: object
    ) -> pb.UpdateBrokerPermissionResponse:
        permission = request.broker_permission
        if not request.HasField("broker_permission"):
            raise invalid_field("broker_permission", f"is missing; write the permission bits, 0 to {MAX_PERM}")
        if not 0 <= permission <= MAX_PERM:
            raise invalid_field("broker_permission", f"is {permission}, must be 0 to {MAX_PERM}")
        self.current.change_permission(permission)
        _log.info("broker_permission_changed", permission=permission)
        targets = len(self.outer_api.targets)
        return pb.UpdateBrokerPermissionResponse(accepted_count=self._register(), target_count=targets)

    def _register(self) -> int:
        """Registers the broker. Returns how many name servers have accepted in time."""
        return len(self.outer_api.register_broker_all(force=False, after_others=True))
