"""Commands that show what there is: cluster, brokers, topics, route, watch, watchers, status."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated

import typer
from namesrv_api.v1 import admin_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv_common.client.namesrv_client import NamesrvClient
from namesrv_common.topic_names import application_first, kind_of
from nsctl.held import GROUPS, tables
from nsctl.output import Format, Row, iso, route_rows, row
from nsctl.session import Session

PAGE = 10_000
"""Topic names asked for at once: the most that a name server gives."""

GROUP = (
    "cluster=cluster_name",
    "broker=broker_name",
    "addresses=broker_addrs",
    "unconfirmed_ids=unconfirmed_broker_ids",
)
QUEUES = ("read_queues=read_queue_nums", "write_queues=write_queue_nums", "permission")

SILENT: Row = {"state": "unreachable"}


def status(session: Session) -> None:
    """Shows the state of each name server: warm-up, guard, revision, counts."""
    rows: list[Row] = []
    found = session.each(lambda server: server.route.GetNamesrvStatus(pb.GetNamesrvStatusRequest()))
    for endpoint in (str(server.endpoint) for server in session.servers.all):
        told = {"state": _state(found[endpoint]), **row(found[endpoint])} if endpoint in found else SILENT
        rows.append({"endpoint": endpoint, **told})
    columns = (
        "endpoint",
        "name=header.namesrv_name",
        "state",
        "version",
        "revision=header.revision",
        "brokers=live_broker_count",
        "unconfirmed=unconfirmed_broker_count",
        "topics=topic_count",
        "started_at",
    )
    session.show(rows, columns)


def _state(status: pb.GetNamesrvStatusResponse) -> str:
    """The state in words."""
    guard = ", guard holds brokers" if status.guard_tripped else ""
    return f"{'ready' if status.warm else 'warming'}{guard}"


def cluster(session: Session) -> None:
    """Lists clusters, their broker groups and addresses (mqadmin clusterList)."""
    groups = session.servers.first(lambda server: tables(server, GROUPS).groups)
    session.show([row(group) for _, group in sorted(groups.items())], GROUP)


def topics(
    session: Session,
    contains: Annotated[str, typer.Argument(metavar="[TEXT]", help="Only topics whose name contains this.")] = "",
    cluster: Annotated[str | None, typer.Option(help="Only topics of this cluster.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Names at most.")] = 1_000,
) -> None:
    """Lists topic names, those of applications first (mqadmin topicList)."""
    request = pb.ListTopicsRequest(cluster_name=cluster, page_size=PAGE)

    def ask(server: NamesrvClient) -> list[Row]:
        named_after = tables(server, GROUPS).named
        pages = server.pages(server.route.ListTopics, request)
        names = [name for page in pages for name in page.topics if contains in name]
        kinds = {name: str(kind_of(name, named_after)) for name in application_first(names, named_after)}
        return [{"topic": name, "kind": kind} for name, kind in kinds.items()]

    rows = session.servers.first(ask)
    session.show(rows[:limit], ("topic", "kind"))
    if len(rows) > limit:
        session.note(f"there are more than {limit:,}; --limit shows more")


def route(
    session: Session,
    topic: Annotated[str, typer.Argument(help="Topic name.")],
    zone: Annotated[str | None, typer.Option(help="The route for a client in this zone.")] = None,
) -> None:
    """Shows the route of a topic (mqadmin topicRoute)."""
    request = pb.GetTopicRouteRequest(topic=topic, zone_name=zone)
    answer = session.servers.first(lambda server: server.route.GetTopicRoute(request))
    session.show(
        route_rows(answer.route),
        (*GROUP[:2], *QUEUES, *GROUP[2:]),
        f"{topic} as of revision {answer.header.revision:,} of {answer.header.namesrv_name}",
    )


def watch(
    session: Session,
    topics: Annotated[list[str], typer.Argument(help="Topic names; a '*' at the end stands for any ending.")],
    limit: Annotated[int | None, typer.Option(min=1, help="End after so many changes.")] = None,
) -> None:
    """Shows routes and each of their changes as they happen, until interrupted."""
    request = pb.WatchTopicRoutesRequest(
        topics=[topic for topic in topics if not topic.endswith("*")],
        topic_prefixes=[topic[:-1] for topic in topics if topic.endswith("*")],
    )
    try:
        session.servers.first(lambda server: _show_changes(session, server, request, limit))
    except KeyboardInterrupt:
        return


def _show_changes(
    session: Session, server: NamesrvClient, request: pb.WatchTopicRoutesRequest, limit: int | None
) -> None:
    shown = 0
    for message in server.stream(server.route.WatchTopicRoutes, iter([request]), None):
        for change in message.changes:
            at, revision, told = iso(time.time_ns() // 1_000_000), message.header.revision, row(change)
            if session.form is Format.TABLE:
                left = [
                    f"{gone['broker_name']} {gone['broker_addr']} {gone.get('reason')}" for gone in told["removals"]
                ]
                rows = route_rows(change.route)
                how = f"{'' if rows else ': no route'}{'; left: ' if left else ''}{', '.join(left)}"
                title = f"{at} {change.topic} at revision {revision:,}{how}"
                session.show(rows, (*GROUP[:2], *QUEUES, *GROUP[2:]), title)
            else:
                session.show([{"at": at, "revision": revision, **told}], ())
            shown += 1
            if shown == limit:
                return


def watchers(session: Session) -> None:
    """Lists watches at each name server, with their topics, revision and delay."""

    def ask(server: NamesrvClient) -> Iterator[admin_service_pb2.Watcher]:
        for page in server.pages(server.admin.ListWatchers, admin_service_pb2.ListWatchersRequest()):
            yield from page.watchers

    rows = session.rows(ask)
    columns = ("endpoint", "peer", "call", "topics=topic_count", "prefixes=topic_prefixes", "revision", "events_behind")
    session.show(rows, (*columns, "opened_at"))
