"""Commands that call agents: state, role and permission."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from broker_agent_api.v1 import broker_agent_service_pb2 as agent_pb

from nsctl.commands.change import DryRun
from nsctl.output import PERMISSIONS, Row, row
from nsctl.session import FOUND, Agent, AgentClient, Agents, Fleet, Session

_STATUS = (
    "agent",
    "broker=broker_name",
    "id=broker_id",
    "probe=broker_probe",
    "name_server=endpoint",
    "registered",
    "last_registered_at",
    "last_kind",
    "latency_millis=last_latency_millis",
    "problem",
)


def status(session: Session, agents: Agents) -> None:
    """How agents stand with each of their name servers; exit code 1 if one is not registered somewhere."""
    with session.agents(agents) as fleet:
        rows = [one for agent, found in _statuses(session, fleet).items() for one in _status_rows(agent, found)]
    if not all(one["registered"] for one in rows):
        session.found(FOUND)
    session.show(rows, _STATUS)


def events(session: Session, agents: Agents) -> None:
    """What name servers said to agents lately, apart from answers: channels, takeovers, lost registrations."""
    with session.agents(agents) as fleet:
        rows = [
            {"agent": agent, "name_server": target.endpoint, **row(event)}
            for agent, found in _statuses(session, fleet).items()
            for target in found.targets
            for event in target.events
        ]
    session.show(sorted(rows, key=lambda one: str(one["at"])), ("agent", "at", "name_server", "event=kind", "detail"))


def role(
    session: Session,
    agent: Agent,
    broker_id: Annotated[int, typer.Argument(metavar="ID", min=0, help="0 makes it the master, above 0 a slave.")],
    state_version: Annotated[
        int | None, typer.Option(min=0, help="State version of the new role. By default one above the present version.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Makes an agent's broker a master or a slave, until its next start."""
    request = agent_pb.ChangeBrokerRoleRequest(broker_id=broker_id, state_version=state_version)
    change = None if dry_run else (lambda client: client.agent.ChangeBrokerRole(request).accepted_count)
    _change(session, agent, lambda found: found.broker_id, broker_id, change)


def permission(
    session: Session,
    agent: Agent,
    perm: Annotated[int, typer.Argument(metavar="PERM", min=0, max=7, help="Sum of read 4, write 2, inherit 1.")],
    dry_run: DryRun = False,
) -> None:
    """Changes what an agent's broker allows, until its next start (mqadmin updateBrokerConfig brokerPermission)."""
    request = agent_pb.UpdateBrokerPermissionRequest(broker_permission=perm)
    change = None if dry_run else (lambda client: client.agent.UpdateBrokerPermission(request).accepted_count)
    _change(session, agent, lambda found: PERMISSIONS[found.broker_permission & 7], PERMISSIONS[perm], change)


def _change(
    session: Session,
    agent: str,
    was: Callable[[agent_pb.GetAgentStatusResponse], object],
    to: object,
    change: Callable[[AgentClient], int] | None,
) -> None:
    """Shows what it is, makes the change unless it is a dry run, and how many name servers took it."""
    rows = []
    with session.agents([agent]) as fleet:
        for name, found in _statuses(session, fleet).items():
            shown: dict[str, Any] = {
                "agent": name,
                "broker": found.broker_name,
                "was": was(found),
                "to": to,
                "result": "would be done",
                "name_servers": len(found.targets),
            }
            if change is not None:
                answers, errors = fleet.each(change)
                for accepted in answers.values():
                    shown |= {"result": "done", "accepted": accepted}
                for error in errors.values():
                    session.failed(error)
                    shown |= {"result": f"failed: {error.reason}", "accepted": None}
            rows.append(shown)
    columns = ("agent", "broker", "was", "to", "result", "name_servers", *(() if change is None else ("accepted",)))
    session.show(rows, columns)


def _statuses(session: Session, fleet: Fleet[AgentClient]) -> dict[str, agent_pb.GetAgentStatusResponse]:
    """The status of agents that answer. Standard error names the others."""
    return session.asked(fleet, lambda client: client.agent.GetAgentStatus(agent_pb.GetAgentStatusRequest()))


def _status_rows(agent: str, found: agent_pb.GetAgentStatusResponse) -> list[Row]:
    """A row for each name server of an agent."""
    broker = {"agent": agent, **row(found)}
    del broker["targets"]
    rows: list[Row] = [{**broker, **row(target), "problem": _problem(target, found)} for target in found.targets]
    return rows or [{**broker, "registered": False, "problem": "its list of name servers is empty"}]


def _problem(target: agent_pb.NamesrvTargetStatus, found: agent_pb.GetAgentStatusResponse) -> str | None:
    is_dead = found.broker_probe == agent_pb.BROKER_PROBE_STATE_DOWN and not target.registered
    dead = "its broker is dead, so it is not registered" if is_dead else ""
    taken = f"{target.broker_id_held_by} holds its id" if target.broker_id_held_by else ""
    return target.last_error or taken or dead or found.topics_problem or None
