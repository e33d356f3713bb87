"""Commands about the agents beside brokers: how each stands with its name servers, and what it says its broker is."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from broker_agent_api.v1 import broker_agent_service_pb2 as pb
from google.protobuf.message import Message

from nsctl.commands.read import PERMISSIONS
from nsctl.commands.write import DryRun
from nsctl.exit_codes import FOUND
from nsctl.output import Row, iso
from nsctl.session import Session

_STATUS = (
    "agent",
    "broker",
    "id",
    "broker_is",
    "name_server",
    "registered",
    "last_registered_at",
    "last_kind",
    "latency_millis",
    "problem",
)


def status(session: Session) -> None:
    """How agents stand with each of their name servers; exit code 1 if one is not registered somewhere."""
    rows = [row for agent, found in _statuses(session) for row in _status_rows(agent, found)]
    if not all(row["registered"] for row in rows):
        session.found(FOUND)
    session.show(rows, _STATUS)


def events(session: Session) -> None:
    """What name servers said to agents lately, apart from answers: channels, takeovers, lost registrations."""
    rows = [
        {
            "agent": agent,
            "at": iso(event.at_millis),
            "name_server": target.endpoint,
            "event": _name(pb.NamesrvEvent.Kind, event.kind, "KIND_"),
            "detail": event.detail or None,
        }
        for agent, found in _statuses(session)
        for target in found.targets
        for event in target.events
    ]
    session.show(sorted(rows, key=lambda row: str(row["at"])), ("agent", "at", "name_server", "event", "detail"))


def role(
    session: Session,
    broker_id: Annotated[int, typer.Argument(metavar="ID", min=0, help="0 makes it the master, above 0 a slave.")],
    state_version: Annotated[
        int | None, typer.Option(min=0, help="Of the new role; else one above the one in force.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Makes an agent's broker a master or a slave, until its next start."""
    request = pb.ChangeBrokerRoleRequest(broker_id=broker_id, state_version=state_version)
    _change(session, "ChangeBrokerRole", request, lambda found: found.broker_id, broker_id, dry_run=dry_run)


def permission(
    session: Session,
    perm: Annotated[int, typer.Argument(metavar="PERM", min=0, max=7, help="Sum of read 4, write 2, inherit 1.")],
    dry_run: DryRun = False,
) -> None:
    """Changes what an agent's broker allows, until its next start (mqadmin updateBrokerConfig brokerPermission)."""
    request = pb.UpdateBrokerPermissionRequest(perm=perm)
    _change(
        session,
        "UpdateBrokerPermission",
        request,
        lambda found: PERMISSIONS[found.broker_permission],
        PERMISSIONS[perm],
        dry_run=dry_run,
    )


def _change(session: Session, call: str, request: Message, was: Any, to: object, *, dry_run: bool) -> None:
    """Shows what it is, makes the call unless it is a dry run, and how many name servers took it."""
    rows = []
    for agent, found in _statuses(session):
        row: dict[str, Any] = {
            "agent": agent,
            "broker": found.broker_name,
            "was": was(found),
            "to": to,
            "result": "would be done",
            "name_servers": len(found.targets),
        }
        if not dry_run:
            [answer] = session.each(lambda server: server.call(call, request))
            row["result"] = "done" if answer.error is None else f"failed: {answer.error.reason}"
            row["accepted"] = getattr(answer.value, "accepted", None)
        rows.append(row)
    columns = ("agent", "broker", "was", "to", "result", "name_servers", *(() if dry_run else ("accepted",)))
    session.show(rows, columns)


def _statuses(session: Session) -> list[tuple[str, pb.GetAgentStatusResponse]]:
    """Of those that answer; the others are told of."""
    answers = session.each(lambda server: server.call("GetAgentStatus", pb.GetAgentStatusRequest()))
    return [
        (str(answer.endpoint), answer.value)
        for answer in answers
        if isinstance(answer.value, pb.GetAgentStatusResponse)
    ]


def _status_rows(agent: str, found: pb.GetAgentStatusResponse) -> list[Row]:
    broker: dict[str, Any] = {
        "agent": agent,
        "version": found.version,
        "cluster": found.cluster_name,
        "broker": found.broker_name,
        "id": found.broker_id,
        "address": found.broker_addr,
        "permission": PERMISSIONS.get(found.broker_permission, str(found.broker_permission)),
        "master": found.master_addr or None,
        "broker_is": _name(pb.BrokerProbeState, found.broker_probe, "BROKER_PROBE_STATE_").replace(
            "unspecified", "not watched"
        ),
        "topics": found.topic_count,
        "topics_problem": found.topics_problem or None,
        "calls_refused": found.calls_refused,
    }
    rows: list[Row] = [{**broker, **_target_row(target, found)} for target in found.targets]
    return rows or [{**broker, "registered": False, "problem": "its list of name servers is empty"}]


def _target_row(target: pb.NamesrvTargetStatus, found: pb.GetAgentStatusResponse) -> Row:
    is_dead = found.broker_probe == pb.BROKER_PROBE_STATE_DOWN and not target.registered
    dead = "its broker is dead, so it is not registered" if is_dead else ""
    taken = f"{target.broker_id_held_by} holds its id" if target.broker_id_held_by else ""
    return {
        "name_server": target.endpoint,
        "name_server_name": target.namesrv_name or None,
        "registered": target.registered,
        "channel_open": target.channel_open,
        "last_registered_at": iso(target.last_registered_at_millis) or None,
        "last_kind": _name(pb.RegistrationKind, target.last_kind, "REGISTRATION_KIND_").replace("unspecified", "none"),
        "latency_millis": round(target.last_latency_millis, 1) if target.HasField("last_latency_millis") else None,
        "late_answers": target.late_answers,
        "problem": target.last_error or taken or dead or found.topics_problem or None,
    }


def _name(kinds: Any, value: int, prefix: str) -> str:
    """A newer agent may have values that are not known here."""
    name = kinds.Name(value) if value in kinds.values() else str(value)
    return str(name).removeprefix(prefix).lower().replace("_", " ")
