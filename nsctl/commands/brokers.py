"""Commands that call agents, or the master of a RocketMQ broker group, instead of name servers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any

import typer
from broker_agent_api.v1 import broker_agent_service_pb2 as agent_pb
from broker_agent_api.v1.broker_agent_service_pb2_grpc import BrokerAgentServiceStub

from namesrv_common.client.namesrv_client import Client
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError
from namesrv_common.printable import counted
from namesrv_common.topic_names import listing_order
from nsctl.commands.change import Cluster, DryRun, groups_named
from nsctl.contexts import address
from nsctl.held import LIVES, GroupKey, all_intents, drains, group_of, tables
from nsctl.output import PERMISSIONS, Row, duration, row
from nsctl.rocketmq import Load
from nsctl.session import FOUND, REFUSED, USAGE, Agent, Agents, Ended, RocketmqTlsCa, Session

# Agents: state, role and permission.

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
    rows = [one for agent, found in _statuses(session, agents).items() for one in _status_rows(agent, found)]
    if not all(one["registered"] for one in rows):
        session.found(FOUND)
    session.show(rows, _STATUS)


def events(session: Session, agents: Agents) -> None:
    """What name servers said to agents lately, apart from answers: channels, takeovers, lost registrations."""
    rows = [
        {"agent": agent, "name_server": target.endpoint, **row(event)}
        for agent, found in _statuses(session, agents).items()
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
    change = None if dry_run else (lambda agent: agent.ChangeBrokerRole(request).accepted_count)
    _change(session, agent, lambda found: found.broker_id, broker_id, change)


def permission(
    session: Session,
    agent: Agent,
    perm: Annotated[int, typer.Argument(metavar="PERM", min=0, max=7, help="Sum of read 4, write 2, inherit 1.")],
    dry_run: DryRun = False,
) -> None:
    """Changes what an agent's broker allows, until its next start (mqadmin updateBrokerConfig brokerPermission)."""
    request = agent_pb.UpdateBrokerPermissionRequest(broker_permission=perm)
    change = None if dry_run else (lambda agent: agent.UpdateBrokerPermission(request).accepted_count)
    _change(session, agent, lambda found: PERMISSIONS[found.broker_permission & 7], PERMISSIONS[perm], change)


def _change(
    session: Session,
    agent: str,
    was: Callable[[agent_pb.GetAgentStatusResponse], object],
    to: object,
    change: Callable[[BrokerAgentServiceStub], int] | None,
) -> None:
    """Shows what it is, makes the change unless it is a dry run, and how many name servers took it."""

    def changed(client: Client) -> Row:
        stub = BrokerAgentServiceStub(client.channel)
        found = stub.GetAgentStatus(agent_pb.GetAgentStatusRequest())
        shown: dict[str, Any] = {
            "agent": str(client.endpoint),
            "broker": found.broker_name,
            "was": was(found),
            "to": to,
            "result": "would be done",
            "name_servers": len(found.targets),
        }
        if change is not None:
            try:
                shown |= {"result": "done", "accepted": change(stub)}
            except CallError as error:
                session.failed(error)
                shown |= {"result": f"failed: {error.reason}", "accepted": None}
        return shown

    with session.agents([agent]) as fleet:
        rows = list(session.asked(fleet, changed).values())
    columns = ("agent", "broker", "was", "to", "result", "name_servers", *(() if change is None else ("accepted",)))
    session.show(rows, columns)


def _statuses(session: Session, agents: Sequence[str]) -> dict[str, agent_pb.GetAgentStatusResponse]:
    """The status of agents that answer. Standard error names the others."""
    request = agent_pb.GetAgentStatusRequest()
    with session.agents(agents) as fleet:
        return session.asked(fleet, lambda client: BrokerAgentServiceStub(client.channel).GetAgentStatus(request))


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


# Whether a drained broker is empty yet, so that it can be stopped.

PAUSE_SECONDS = 5.0
"""Pause between two questions with ``--wait``: a broker looks at all queues of all consumer groups for an answer."""

Wait = Annotated[int | None, duration("--wait", "Longest time to wait until it is empty, such as 30m, 2h or 7d.")]


def drain_status(
    session: Session,
    broker: Annotated[str, typer.Argument(help="Name of the broker group, BROKER or CLUSTER/BROKER.")],
    *,
    cluster: Cluster = None,
    broker_addr: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address of its master. By default the registered one.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Call the registered address without confirmation.")] = False,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="GROUP", help="Consumer group to leave out, because it never consumes. May be repeated."),
    ] = None,
    wait: Wait = None,
    rocketmq_tls_ca: RocketmqTlsCa = None,
) -> None:
    """Is a broker of RocketMQ empty yet? Asks its master for messages that wait; exit code 1 if there are any."""
    named = groups_named(broker, cluster)
    if not isinstance(named, GroupKey):
        raise typer.BadParameter(f"{broker} is a pattern: name one broker group")
    master_at = _address(session, named, broker_addr, yes=yes)
    deadline = time.monotonic() + (wait or 0)
    while True:
        with session.rocketmq(master_at, rocketmq_tls_ca) as master:
            lags, load = master.lags(named.broker), master.load()
        rows = _waiting(lags, load, named, ignore or ())
        left = deadline - time.monotonic()
        if not rows or left <= 0:
            break
        time.sleep(min(PAUSE_SECONDS, left))
    session.show(rows, ("what", "consumer_group=group", "topic", "messages"))
    who, messages = f"{named.broker} at {master_at}", sum(row["messages"] for row in rows)
    session.note(f"{who}: {counted(messages, 'message')} left" if messages else f"{who} is empty", FOUND if rows else 0)
    if load.written_per_second is None:
        session.note(f"{who} has just started and does not know yet whether it is written to; ask again in 10 s")
    elif load.written_per_second:
        rate = f"{load.written_per_second:,.1f} messages per second"
        session.note(f"{who} was written to during the last 10 s: {rate}")
    # Producers get it as writable there. Name servers that hide their intents are left out.
    answers, _ = session.servers.each(lambda server: drains(all_intents(server)))
    for endpoint, groups in answers.items():
        if not any(map(named.matches, groups)):
            session.note(f"{endpoint}: {named.broker} is not drained there")


def _waiting(lags: Mapping[tuple[str, str], int], load: Load, named: GroupKey, ignored: Collection[str]) -> list[Row]:
    """The messages on a broker that somebody waits for, topics of applications first."""
    rows: list[Row] = [
        {"what": "consumer", "group": group, "topic": topic, "messages": lag}
        for (group, topic), lag in lags.items()
        if group not in ignored
    ]
    rows.sort(key=lambda row: (*listing_order(row["topic"], named), row["group"]))
    rows += [{"what": "delay", "messages": load.delayed}, {"what": "timer", "messages": load.timed}]
    return [row for row in rows if row["messages"]]


def _address(session: Session, named: GroupKey, given: str | None, *, yes: bool) -> Endpoint:
    """The address to call. Raises Ended if there is none to be called.

    The operator names or confirms it: a registration may say any address, and the operator's machine calls it.
    """
    if given is not None:
        return address(given)
    found = sorted(
        {
            live.broker_addr
            for held in session.each(lambda server: tables(server, LIVES)).values()
            for live in held.lives.values()
            if live.broker_id == 0 and named.matches(group_of(live))
        }
    )
    if len(found) != 1:
        told = f"has several: {', '.join(found)}" if found else "has none that is registered"
        text = f"{named.broker} is asked at its master, and {told}; name it with --broker-addr HOST:PORT"
        raise Ended(text, USAGE if found else REFUSED)
    try:
        registered = Endpoint.parse(found[0])
    except ValueError as error:
        raise Ended(f"{named.broker} registered an address that cannot be called: {error}", REFUSED) from error
    question = f"Call {registered}, which registered as {named.broker}?"
    if yes or (sys.stdin.isatty() and typer.confirm(question, err=True)):
        return registered
    text = f"{registered} registered as {named.broker} and was not called; allow it with --broker-addr {registered}"
    raise Ended(text, USAGE)
