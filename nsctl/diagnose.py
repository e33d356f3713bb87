"""Commands that say why: explain, history, diff."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import typer
from namesrv_api.v1 import admin_service_pb2, route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.namesrv_client.blocking import NamesrvClient
from nsctl.exit_codes import FOUND
from nsctl.output import Format, Row, iso
from nsctl.read import TopicKind, route_rows, topic_names
from nsctl.session import Session

DIGESTS = 2_000
"""Digests asked for at once: the most that a name server gives."""

BATCH = 500
"""Routes asked for at once when two name servers are compared topic by topic."""


MOST_DIFFERENCES = 200
"""Brokers, and topics, that are shown to differ: enough to see what is wrong."""

Digests = dict[tuple[str, str, int, str], tuple[bytes, int]]
"""Digest and counter of its version for each broker (cluster, name, id, address)."""


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
            rows += [
                {
                    "name_server": value.header.namesrv_name,
                    "cluster": why.cluster_name,
                    "broker": why.broker_name,
                    "in_route": why.in_route,
                    "since": iso(why.since_millis),
                    "why": why.explanation,
                }
                for why in value.explanations
            ]
    session.show(rows, ("name_server", "cluster", "broker", "in_route", "since", "why"))


def history(
    session: Session,
    topic: Annotated[str | None, typer.Option(help="Only what is about this topic.")] = None,
    broker: Annotated[str | None, typer.Option(help="Only what is about groups of this name.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Entries of each name server at most, the newest first.")] = 50,
) -> None:
    """What changed, who did it and why, from the journal of each name server."""

    def ask(server: NamesrvClient) -> list[Row]:
        request = admin_service_pb2.ListAuditEntriesRequest(topic=topic, broker_name=broker, page_size=min(limit, 500))
        return [_audit_row(server, entry) for entry in islice(_entries(server, request), limit)]

    rows = [row for answer in session.each(ask) for row in answer.value or ()]
    rows.sort(key=lambda row: str(row["at"]), reverse=True)
    session.show(rows, ("at", "endpoint", "revision", "cause", "caller", "what", "comment"))


def _entries(
    server: NamesrvClient, request: admin_service_pb2.ListAuditEntriesRequest
) -> Iterator[admin_service_pb2.AuditEntry]:
    for page in server.pages("ListAuditEntries", request):
        assert isinstance(page, admin_service_pb2.ListAuditEntriesResponse)
        yield from page.entries


def _audit_row(server: NamesrvClient, entry: admin_service_pb2.AuditEntry) -> Row:
    return {
        "at": iso(entry.applied_at_millis),
        "endpoint": str(server.endpoint),
        "revision": entry.revision,
        "cause": entry.cause,
        "caller": entry.caller,
        "what": entry.summary,
        "comment": entry.comment,
    }


def diff(session: Session) -> None:
    """Do all name servers agree? Says which brokers and topics differ, and since when; exit code 1 if any do."""
    answers = [answer for answer in session.each(_digests) if answer.value is not None]
    if len(answers) < len(session.servers.all):
        session.note("only those that answered are compared")
    digests = {str(answer.endpoint): answer.value or {} for answer in answers}
    brokers = list(islice(_differing_brokers(session, digests), MOST_DIFFERENCES))
    topics = list(islice(_differing_topics(session), MOST_DIFFERENCES))
    if session.form is not Format.TABLE:
        session.show([{"kind": "broker", **row} for row in brokers] + [{"kind": "topic", **row} for row in topics], ())
    if brokers and session.form is Format.TABLE:
        session.show(brokers, ("cluster", "broker", "id", "address", "since", *digests), "brokers that differ")
    if topics and session.form is Format.TABLE:
        session.show(topics, ("topic", *digests), "topics that differ")
    if brokers or topics:
        session.found(FOUND)
        shown = " (the first ones)" if MOST_DIFFERENCES in (len(brokers), len(topics)) else ""
        session.note(f"differences between {len(answers)} name servers{shown}")
    else:
        session.note(f"no difference between {len(answers)} name servers")


def _digests(server: NamesrvClient) -> Digests:
    found: Digests = {}
    for page in server.pages("GetRouteDigest", pb.GetRouteDigestRequest(page_size=DIGESTS)):
        assert isinstance(page, pb.GetRouteDigestResponse)
        for row in page.brokers:
            found[row.cluster_name, row.broker_name, row.broker_id, row.broker_addr] = (
                row.digest,
                row.data_version.counter,
            )
    return found


def _differing_brokers(session: Session, digests: dict[str, Digests]) -> Iterator[Row]:
    """Brokers that are not everywhere, or do not report the same everywhere."""
    for broker in sorted(set().union(*digests.values())):
        seen = {where: of.get(broker) for where, of in digests.items()}
        if len(set(seen.values())) > 1:
            cluster, name, broker_id, addr = broker
            row = {"cluster": cluster, "broker": name, "id": broker_id, "address": addr, "since": _since(session, name)}
            yield {**row, **{where: _said(value) for where, value in seen.items()}}


def _since(session: Session, broker: str) -> str:
    """When the last change of a group was applied anywhere: the difference cannot be younger. Empty if not known."""
    request = admin_service_pb2.ListAuditEntriesRequest(broker_name=broker, page_size=1)
    answers = session.servers.each(lambda server: server.call("ListAuditEntries", request))
    entries = [
        entry.applied_at_millis
        for answer in answers
        if isinstance(answer.value, admin_service_pb2.ListAuditEntriesResponse)
        for entry in answer.value.entries
    ]
    return iso(max(entries, default=None))


def _said(value: tuple[bytes, int] | None) -> str:
    return "not there" if value is None else f"version {value[1]}, {value[0].hex()[:8]}"


def _differing_topics(session: Session) -> Iterator[Row]:
    """Topics whose route is not the same everywhere, as far as the name servers answer."""
    answers = session.servers.each(all_routes)
    routes = {str(answer.endpoint): answer.value for answer in answers if answer.value is not None}
    for topic in sorted(set().union(*routes.values())):
        seen = {where: of.get(topic, "no route") for where, of in routes.items()}
        if len(set(seen.values())) > 1:
            yield {"topic": topic, **seen}


def all_routes(server: NamesrvClient) -> dict[str, str]:
    """The routes of all topics of a name server, in short."""
    names = list(topic_names(server, None, TopicKind.ALL))
    found: dict[str, str] = {}
    for start in range(0, len(names), BATCH):
        answer = server.call("BatchGetTopicRoutes", pb.BatchGetTopicRoutesRequest(topics=names[start : start + BATCH]))
        assert isinstance(answer, pb.BatchGetTopicRoutesResponse)
        for named in answer.routes:
            found[named.topic] = in_short(named.route)
    return found


def in_short(route: route_data_pb2.TopicRouteData) -> str:
    """A route in a line: permission, queues and addresses of each group."""
    return "; ".join(
        f"{row['broker']} {row['permission']} {row['read_queues']}/{row['write_queues']} {', '.join(row['addresses'])}"
        for row in route_rows(route)
    )
