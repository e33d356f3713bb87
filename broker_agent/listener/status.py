"""The answer to GetAgentStatus."""

from __future__ import annotations

from broker_agent_api.v1 import broker_agent_service_pb2 as pb

from broker_agent.broker.registration import Registration
from broker_agent.broker_probe import BrokerProbe
from broker_agent.fan_out.broker_outer_api import BrokerOuterAPI
from broker_agent.fan_out.registration_results import Master
from broker_agent.target.calls_in_flight import CallsInFlight
from broker_agent.target.namesrv_target import NamesrvTarget
from groundwork.version import __version__


def agent_status(
    registration: Registration,
    *,
    master: Master | None,
    outer_api: BrokerOuterAPI,
    calls: CallsInFlight,
    probe: BrokerProbe | None,
    topics_problem: str | None,
) -> pb.GetAgentStatusResponse:
    """What would be registered now, and how the name servers are.

    Args:
        registration: What would be registered.
        master: The master, of a slave that knows it.
        outer_api: The name servers.
        calls: The calls under way.
        probe: Who watches the broker; None if nobody does.
        topics_problem: What is wrong with the file of topics; None if nothing is.
    """
    broker, version = registration.broker, registration.version
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
        data_version_counter=version.counter,
        data_version_timestamp_millis=version.timestamp_millis,
        data_version_state=version.state_version,
        broker_permission=broker.permission,
        filter_servers=broker.filter_servers or (),
        master_addr=master.addr if master else None,
        master_ha_server_addr=master.ha_server_addr if master else None,
        broker_probe=state,
        calls_in_flight=calls.count,
        calls_refused=calls.refused,
        topics_problem=topics_problem,
        targets=[_target_status(target, outer_api) for target in outer_api.targets],
    )


def _target_status(target: NamesrvTarget, outer_api: BrokerOuterAPI) -> pb.NamesrvTargetStatus:
    status = target.status()
    status.in_flight = outer_api.in_flight(target)
    return status
