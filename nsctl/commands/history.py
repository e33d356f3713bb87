"""Commands that say why: explain and history."""

from __future__ import annotations

import heapq
import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Annotated, Any, NamedTuple

import typer
from namesrv_api.v1 import admin_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv_common.client.namesrv_client import NamesrvClient
from namesrv_common.endpoints import Endpoint
from namesrv_common.printable import printable_json
from namesrv_common.topic_names import GroupPattern
from nsctl.commands.change import PATTERN, groups_named
from nsctl.held import GroupKey, point, tables
from nsctl.output import Format, Row, duration, row
from nsctl.session import REFUSED, Session


def explain(
    session: Session,
    topic: Annotated[str, typer.Argument(help="Topic name.")],
    broker: Annotated[str | None, typer.Argument(help=f"Only this group, or {PATTERN}.")] = None,
    cluster: Annotated[str | None, typer.Option(help="Cluster of the group.")] = None,
    zone: Annotated[str | None, typer.Option(help="The route for a client in this zone.")] = None,
) -> None:
    """Explains why broker groups are or are not in a topic's route, at each name server."""
    named = None if broker is None else groups_named(broker, cluster)
    group = named if isinstance(named, GroupKey) else GroupKey(cluster or "", "")
    request = admin_service_pb2.ExplainTopicRouteRequest(
        topic=topic, broker_name=group.broker or None, cluster_name=group.cluster or None, zone_name=zone
    )
    rows = [
        {"name_server": answer.header.namesrv_name, **row(why)}
        for answer in session.each(lambda server: server.admin.ExplainTopicRoute(request)).values()
        for why in answer.explanations
        if not isinstance(named, GroupPattern) or named.matches((why.cluster_name, why.broker_name))
    ]
    nobody = broker is None and all(one.get("state") == "TOPIC_UNREPORTED" for one in rows)
    if session.form is not Format.TABLE or (rows and not nobody):
        columns = ("name_server", "cluster=cluster_name", "broker=broker_name", "state", "since", "why=explanation")
        session.show(rows, columns)
    if (nobody or not rows) and not session.exit_code:
        unmatched = f"no broker group of {topic} matches {broker}"
        session.note(unmatched if isinstance(named, GroupPattern) else f"no broker ever reported {topic}", REFUSED)


def history(
    session: Session,
    name: Annotated[str | None, typer.Argument(metavar="[BROKER]", help="Only changes of groups of this name.")] = None,
    *,
    topic: Annotated[str | None, typer.Option(help="Only changes of this topic.")] = None,
    since: Annotated[int | None, duration("--since", "Maximum age, such as 30m, 2h or 7d.")] = None,
    cause: Annotated[
        list[str] | None, typer.Option(help="Only this call, cause or reason of a removal; may be repeated.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Entries of each name server at most, the newest first.")] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", help="Also show new entries, oldest first, until interrupted.")
    ] = False,
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object a line, oldest first.")] = False,
) -> None:
    """Shows changes with their callers and reasons, from the journal of each name server."""
    if follow and session.watch is not None:
        raise typer.BadParameter("--follow shows new entries by itself: leave --watch away")
    wanted = Wanted(topic, name, tuple(map(_plain, cause or ())), since, limit)
    columns = ("at=applied_at", "endpoint", "revision", "cause", "caller", "what=summary", "comment")

    def show(rows: Sequence[Row]) -> None:
        if json_lines:
            for one in rows:
                typer.echo(printable_json(json.dumps(one, ensure_ascii=False)))  # flushes, so pipes get it at once
        elif rows or not follow:
            session.show(rows if follow else rows[::-1], columns)

    if follow:
        follow_journals(session, wanted, show)
    else:
        show(in_order(session.each(lambda server: newest_rows(server, wanted)).values()))


def last_change(session: Session, broker: str) -> int:
    """When the last change of a group was applied anywhere, in milliseconds since the Unix epoch; 0 if unknown."""
    request = admin_service_pb2.ListAuditEntriesRequest(broker_name=broker, page_size=1)
    answers, _ = session.servers.each(
        lambda server: list(islice(server.items(server.admin.ListAuditEntries, request, "entries"), 1))
    )
    return max((one.applied_at_millis for found in answers.values() for one in found), default=0)


# The journals that ``history`` reads.


class Wanted(NamedTuple):
    """Which entries ``history`` shows."""

    topic: str | None = None
    broker: str | None = None
    causes: tuple[str, ...] = ()
    """As ``_plain`` writes them, or empty for all."""
    since: int | None = None
    """Age of the oldest one in seconds, or None for any."""
    limit: int = 50
    """Entries of each name server that are shown at first."""


def newest_rows(server: NamesrvClient, wanted: Wanted) -> list[Row]:
    """The newest entries of one name server, oldest first."""
    if wanted.since is None:
        return _rows(server, wanted, wanted.limit)
    # The journal's times are by the clock of its name server, which comes with each table: this one is small.
    clock = tables(server, pb.ROUTE_TABLE_CLUSTERS).clock
    return _rows(server, wanted, wanted.limit, from_millis=clock.millis_before(wanted.since))


def _rows(server: NamesrvClient, wanted: Wanted, most: int, **bounds: Any) -> list[Row]:
    """At most so many of the newest entries of one name server within bounds, oldest first."""
    size = PAGE if wanted.causes else min(most, PAGE)
    request = admin_service_pb2.ListAuditEntriesRequest(
        topic=wanted.topic, broker_name=wanted.broker, page_size=size, **bounds
    )
    causes = set(wanted.causes)
    found: Iterator[Row] = (
        one
        for entry in server.items(server.admin.ListAuditEntries, request, "entries")
        for one in [{"endpoint": str(server.endpoint), **row(entry)}]
        if not causes or causes & {_plain(one["cause"]), _plain(one.get("removal_reason", ""))}
    )
    return list(islice(found, most))[::-1]


def in_order(journals: Iterable[Iterable[Row]]) -> list[Row]:
    """Rows of several journals by their time. A journal keeps its own order, also if its clock stepped back."""
    return list(heapq.merge(*journals, key=lambda row: str(row["applied_at"])))


PAGE = 500
"""Entries of a page: the most that a name server puts into one."""
FOLLOW_SECONDS = 1.0
"""Pause between two looks for new entries."""
MOST_NEW_ENTRIES = 100_000
"""Entries of a name server that are shown of one look: as many as it holds in memory."""


def follow_journals(
    session: Session, wanted: Wanted, show: Callable[[Sequence[Row]], None], sleep: Callable[[float], None] = time.sleep
) -> None:
    """Shows the newest entries of all name servers, and then new ones as they come, until interrupted.

    A name server that goes away is waited for. Ends at once if none answers at first.
    """
    seen: dict[Endpoint, tuple[str, int]] = {}
    away: Collection[Endpoint] = ()
    with suppress(KeyboardInterrupt):
        while True:
            answers, errors = session.servers.each(lambda server: _new_rows(session, server, wanted, seen))
            for error in [error for endpoint, error in errors.items() if endpoint not in away]:
                session.failed(error)
            for endpoint in [endpoint for endpoint in answers if endpoint in away]:
                session.note(f"{endpoint} answers again")
            away = errors
            if not away:
                session.exit_code = 0
            show(in_order(answers.values()))
            if not seen:
                return
            sleep(FOLLOW_SECONDS)


def _new_rows(
    session: Session, server: NamesrvClient, wanted: Wanted, seen: dict[Endpoint, tuple[str, int]]
) -> list[Row]:
    """Entries that are new since the look before, oldest first; at first the newest ones. Raises CallError.

    Args:
        seen: Epoch and revision of the newest entry that was looked at, of each name server. Epochs sort as texts.
    """
    now = point(server.route.GetNamesrvStatus(pb.GetNamesrvStatusRequest()))
    if (after := seen.get(server.endpoint)) is None:
        rows = newest_rows(server, wanted)
    else:
        # Without a data directory, a clock that was set back makes the next epoch an earlier one.
        epoch, revision = after if after <= now else (now[0], 0)
        bounds = {"after_epoch": epoch, "after_revision": revision}
        rows = [] if after == now else _rows(server, wanted, MOST_NEW_ENTRIES + 1, **bounds)
        if len(rows) > MOST_NEW_ENTRIES:
            session.note(f"{server.endpoint}: more than {MOST_NEW_ENTRIES:,} new entries: the oldest are left out")
            rows = rows[-MOST_NEW_ENTRIES:]
    seen[server.endpoint] = max([now, *((row["epoch"], row["revision"]) for row in rows[-1:])])
    return rows


def _plain(cause: str) -> str:
    """``channel end``, ``CHANNEL_END`` and ``Channel-End`` are the same."""
    return re.sub(r"[\s_-]", "", cause).lower()
