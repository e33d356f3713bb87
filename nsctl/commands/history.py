"""Commands that say why: explain and history; and the clock and removal reasons that other commands need, too."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Annotated, NamedTuple

import typer
from namesrv_api.v1 import admin_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.endpoints import Endpoint
from groundwork.namesrv_client import NamesrvClient
from groundwork.printable import printable_json
from nsctl.output import Row, Since, row
from nsctl.session import Session

# What the journal's entries say of brokers that left.


def reason_of(entry: admin_service_pb2.AuditEntry) -> str:
    """Why brokers left, as alerts and metrics name it; empty if none did."""
    return str(row(entry).get("removal_reason", ""))


# The clock of a name server beside ours: times that it tells are by its own.


class Clock(NamedTuple):
    """A name server's clock beside ours, seconds since the Unix epoch."""

    began: float
    """By our clock, before the name server was asked."""
    theirs: float
    """By the name server's clock, when it answered."""
    ended: float
    """By our clock, when its answer was here."""

    @property
    def skew(self) -> float:
        """How far the two are apart at least, in seconds."""
        return max(self.began - self.theirs, self.theirs - self.ended)


def clock_of(server: NamesrvClient) -> Clock:
    """Asks a name server for its time, by the header of a snapshot that is taken now."""
    began = time.time()
    request = pb.StreamRouteSnapshotRequest(tables=[pb.ROUTE_TABLE_CLUSTERS])  # the smallest
    header = next(server.stream("StreamRouteSnapshot", request, server.timeout_seconds))
    assert isinstance(header, pb.StreamRouteSnapshotResponse)
    return Clock(began, header.snapshot_header.taken_at_millis / 1000, time.time())


# Commands that say why: explain, history.


def explain(
    session: Session,
    topic: Annotated[str, typer.Argument(help="Topic name.")],
    broker: Annotated[str | None, typer.Argument(help="Only this group.")] = None,
    cluster: Annotated[str | None, typer.Option(help="Cluster of the group.")] = None,
    zone: Annotated[str | None, typer.Option(help="As a reader in this zone gets it.")] = None,
) -> None:
    """Why broker groups are or are not in a topic's route, at each name server."""
    request = admin_service_pb2.ExplainTopicRouteRequest(
        topic=topic, broker_name=broker, cluster_name=cluster, zone_name=zone
    )
    rows: list[Row] = []
    for answer in session.each(lambda server: server.call("ExplainTopicRoute", request)):
        value = answer.value
        if isinstance(value, admin_service_pb2.ExplainTopicRouteResponse):
            rows += [{"name_server": value.header.namesrv_name, **row(why)} for why in value.explanations]
    columns = ("name_server", "cluster=cluster_name", "broker=broker_name", "in_route", "since", "why=explanation")
    session.show(rows, columns)


FOLLOW_SECONDS = 1.0
"""Pause between two looks for new entries."""
MOST_NEW_ENTRIES = 100_000
"""Entries of a name server that are shown of one look: as many as it holds in memory."""


class Position(NamedTuple):
    """A place in a journal: epochs of a name server sort as texts."""

    epoch: str
    revision: int


def history(
    session: Session,
    name: Annotated[
        str | None, typer.Argument(metavar="[BROKER]", help="Only what is about groups of this name.")
    ] = None,
    *,
    topic: Annotated[str | None, typer.Option(help="Only what is about this topic.")] = None,
    broker: Annotated[str | None, typer.Option(help="The same as BROKER.")] = None,
    since: Since = None,
    cause: Annotated[
        list[str] | None, typer.Option(help="Only this call, cause or reason of a removal; may be repeated.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Entries of each name server at most, the newest first.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", help="Then show new entries as they come, oldest first.")] = False,
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object a line, oldest first.")] = False,
) -> None:
    """What changed, who did it and why, from the journal of each name server."""
    if name is not None and broker not in (None, name):
        raise typer.BadParameter(f"BROKER is {name}, and --broker is {broker}")
    causes = [_plain(one) for one in cause or ()]

    def ask(server: NamesrvClient, seen: Position | None) -> list[admin_service_pb2.AuditEntry]:
        """Entries newer than those that were shown, or the newest ones, oldest first."""
        request = admin_service_pb2.ListAuditEntriesRequest(
            topic=topic,
            broker_name=name or broker,
            # The journal's times are by the clock of its name server.
            from_millis=None if since is None else int((clock_of(server).theirs - since) * 1000),
            page_size=500 if causes else min(limit, 500),
        )
        newer = takewhile(lambda entry: seen is None or _position(entry) > seen, entries(server, request))
        found = (entry for entry in newer if not causes or _is_of(entry, causes))
        return list(islice(found, limit if seen is None else MOST_NEW_ENTRIES))[::-1]

    seen: dict[Endpoint, Position] = {}
    while True:
        rows: list[Row] = []
        for answer in session.each(lambda server: ask(server, seen.get(server.endpoint))):
            found = answer.value or []
            rows += [{"endpoint": str(answer.endpoint), **row(entry)} for entry in found]
            if found:
                seen[answer.endpoint] = _position(found[-1])
        _show_entries(session, rows, json_lines=json_lines, newest_first=not follow)
        if not follow:
            return
        time.sleep(FOLLOW_SECONDS)


def _position(entry: admin_service_pb2.AuditEntry) -> Position:
    return Position(entry.epoch, entry.revision)


def _show_entries(session: Session, rows: list[Row], *, json_lines: bool, newest_first: bool) -> None:
    rows.sort(key=lambda row: str(row["applied_at"]), reverse=newest_first and not json_lines)
    if json_lines:
        for one in rows:
            typer.echo(printable_json(json.dumps(one, ensure_ascii=False)))
    elif rows or newest_first:
        session.show(rows, ("at=applied_at", "endpoint", "revision", "cause", "caller", "what=summary", "comment"))


def _is_of(entry: admin_service_pb2.AuditEntry, causes: list[str]) -> bool:
    return _plain(entry.cause) in causes or _plain(reason_of(entry)) in causes


def _plain(cause: str) -> str:
    """``channel end``, ``CHANNEL_END`` and ``Channel-End`` are the same."""
    return re.sub(r"[\s_-]", "", cause).lower()


def entries(
    server: NamesrvClient, request: admin_service_pb2.ListAuditEntriesRequest
) -> Iterator[admin_service_pb2.AuditEntry]:
    """Entries of the journal of one name server, newest first."""
    for page in server.pages("ListAuditEntries", request):
        assert isinstance(page, admin_service_pb2.ListAuditEntriesResponse)
        yield from page.entries
