"""The command ``nsctl drained``: whether a drained broker is empty yet, so that it can be stopped."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping
from typing import Annotated

import typer

from namesrv_common.endpoints import Endpoint
from namesrv_common.printable import counted
from namesrv_common.topic_names import listing_order
from nsctl.commands.change import groups_named
from nsctl.contexts import address
from nsctl.held import LIVES, GroupKey, all_intents, drains, group_of, tables
from nsctl.output import Row, duration
from nsctl.rocketmq import Load
from nsctl.session import FOUND, REFUSED, USAGE, Ended, RocketmqTlsCa, Session

PAUSE_SECONDS = 5.0
"""Pause between two questions with ``--wait``: a broker looks at all queues of all consumer groups for an answer."""
MASTER_ID = 0

Wait = Annotated[int | None, duration("--wait", "Longest time to wait until it is empty, such as 30m, 2h or 7d.")]


def drained(
    session: Session,
    broker: Annotated[str, typer.Argument(help="Name of the broker group, BROKER or CLUSTER/BROKER.")],
    *,
    cluster: Annotated[str | None, typer.Option(help="Cluster, where two have a group of that name.")] = None,
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
        rows = _rows(lags, load, named, ignore or ())
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


def _rows(lags: Mapping[tuple[str, str], int], load: Load, named: GroupKey, ignored: Collection[str]) -> list[Row]:
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
            if live.broker_id == MASTER_ID and named.matches(group_of(live))
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
    if yes or (at_terminal() and typer.confirm(f"Call {registered}, which registered as {named.broker}?", err=True)):
        return registered
    text = f"{registered} registered as {named.broker} and was not called; allow it with --broker-addr {registered}"
    raise Ended(text, USAGE)


def at_terminal() -> bool:
    """Whether somebody can answer a question."""
    return sys.stdin.isatty()
