"""Commands that show what there is: cluster, brokers, topics, route, watch, watchers, status."""

from __future__ import annotations

import time
from collections.abc import Iterator
from enum import StrEnum
from itertools import islice
from typing import Annotated

import typer
from namesrv_api.v1 import admin_service_pb2, route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.namesrv_client import MAX_BROKERS, STREAM_LIMITS, ListIntake, NamesrvClient, check_count
from nsctl.output import Format, Row, iso, route_rows, row
from nsctl.session import Session

PAGE = 10_000
"""Topic names asked for at once: the most that a name server gives."""

BATCH = 500
"""Routes asked for at once."""

GROUP = ("cluster=cluster_name", "broker=broker_name", "addresses=broker_addrs", "unconfirmed=unconfirmed_broker_ids")
QUEUES = ("read_queues=read_queue_nums", "write_queues=write_queue_nums", "permission")


class TopicKind(StrEnum):
    """Which topics."""

    ALL = "all"
    SYSTEM = "system"
    UNIT = "unit"
    UNIT_SUB = "unit-sub"
    UNIT_SUB_NOT_UNIT = "unit-sub-not-unit"


LISTS = {
    TopicKind.ALL: ("ListTopics", pb.ListTopicsRequest),
    TopicKind.SYSTEM: ("ListSystemTopics", pb.ListSystemTopicsRequest),
    TopicKind.UNIT: ("ListUnitTopics", pb.ListUnitTopicsRequest),
    TopicKind.UNIT_SUB: ("ListUnitSubTopics", pb.ListUnitSubTopicsRequest),
    TopicKind.UNIT_SUB_NOT_UNIT: ("ListUnitSubUnunitTopics", pb.ListUnitSubUnunitTopicsRequest),
}


def status(session: Session) -> None:
    """How each name server is: warm, guard, revision, counts."""
    rows: list[Row] = []
    for answer in session.servers.each(lambda server: server.call("GetNamesrvStatus", pb.GetNamesrvStatusRequest())):
        if not isinstance(answer.value, pb.GetNamesrvStatusResponse):
            assert answer.error is not None
            session.failed(answer.error)
            rows.append({"endpoint": str(answer.endpoint), "state": "unreachable"})
            continue
        rows.append({"endpoint": str(answer.endpoint), "state": _state(answer.value), **row(answer.value)})
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
    """The state in words, with the leader of a read-only copy."""
    guard = ", guard holds brokers" if status.guard_tripped else ""
    return f"{'ready' if status.warm else 'warming'}{guard}{_following(status)}"


def _following(status: pb.GetNamesrvStatusResponse) -> str:
    """Whom a read-only copy follows; empty for a name server of its own."""
    replica = status.replica
    if not status.HasField("replica"):
        return ""
    if replica.leader_connected:
        return f", copy of {replica.leader}"
    age = f"{replica.behind_millis / 1000:,.0f} s old" if replica.HasField("behind_millis") else "empty"
    return f", copy of {replica.leader}, {age}: {replica.problem}"


def cluster(session: Session) -> None:
    """Clusters, their broker groups and addresses (mqadmin clusterList)."""
    answer = session.servers.first(lambda server: server.call("GetBrokerClusterInfo", pb.GetBrokerClusterInfoRequest()))
    assert isinstance(answer, pb.GetBrokerClusterInfoResponse)
    rows = [row(group) for group in answer.broker_datas]
    session.show(rows, GROUP)


def live_brokers(server: NamesrvClient) -> Iterator[route_data_pb2.BrokerLiveInfo]:
    """The live brokers of one name server, by cluster, name and id."""
    request = pb.StreamRouteSnapshotRequest(tables=[pb.ROUTE_TABLE_LIVE_BROKERS])
    lives: list[route_data_pb2.BrokerLiveInfo] = []
    for message in server.stream("StreamRouteSnapshot", request, server.timeout_seconds):
        assert isinstance(message, pb.StreamRouteSnapshotResponse)
        lives += message.chunk.live_brokers
        check_count(server.endpoint, "live brokers", len(lives), MAX_BROKERS)
    return iter(sorted(lives, key=lambda live: (live.cluster_name, live.broker_name, live.broker_id)))


def broker_groups(server: NamesrvClient) -> Iterator[route_data_pb2.BrokerData]:
    """The broker groups of one name server, in the order in which they came."""
    request = pb.StreamRouteSnapshotRequest(tables=[pb.ROUTE_TABLE_BROKER_GROUPS])
    for message in server.stream("StreamRouteSnapshot", request, server.timeout_seconds):
        assert isinstance(message, pb.StreamRouteSnapshotResponse)
        yield from message.chunk.broker_datas


def topics(
    session: Session,
    contains: Annotated[str, typer.Argument(metavar="[TEXT]", help="Only topics whose name has this in it.")] = "",
    cluster: Annotated[str | None, typer.Option(help="Only topics of this cluster.")] = None,
    kind: Annotated[TopicKind, typer.Option(help="Which list of the name server.")] = TopicKind.ALL,
    limit: Annotated[int, typer.Option(min=1, help="Names at most.")] = 1_000,
) -> None:
    """Names of topics, sorted (mqadmin topicList)."""

    def ask(server: NamesrvClient) -> list[str]:
        return list(islice((name for name in topic_names(server, cluster, kind) if contains in name), limit + 1))

    names = session.servers.first(ask)
    session.show([{"topic": name} for name in names[:limit]], ("topic",))
    if len(names) > limit:
        session.note(f"there are more than {limit:,}; --limit shows more")


def topic_names(server: NamesrvClient, cluster: str | None, kind: TopicKind) -> Iterator[str]:
    """Names of one of a name server's lists."""
    if cluster is not None:
        pages = server.pages("ListTopicsByCluster", pb.ListTopicsByClusterRequest(cluster_name=cluster, page_size=PAGE))
    else:
        call, request = LISTS[kind]
        pages = server.pages(call, request(page_size=PAGE))
    for page in pages:
        yield from page.topics  # type: ignore[attr-defined]


def all_routes(server: NamesrvClient) -> Iterator[pb.NamedTopicRoute]:
    """The routes of all topics of a name server, as readers get them."""
    names = list(topic_names(server, None, TopicKind.ALL))
    intake = ListIntake(server.endpoint, "BatchGetTopicRoutes", STREAM_LIMITS)
    for start in range(0, len(names), BATCH):
        answer = server.call("BatchGetTopicRoutes", pb.BatchGetTopicRoutesRequest(topics=names[start : start + BATCH]))
        assert isinstance(answer, pb.BatchGetTopicRoutesResponse)
        intake.take(answer)
        yield from answer.routes


def route(
    session: Session,
    topic: Annotated[str, typer.Argument(help="Topic name.")],
    zone: Annotated[str | None, typer.Option(help="As a reader in this zone gets it.")] = None,
) -> None:
    """Where a topic lives (mqadmin topicRoute)."""
    request = pb.GetTopicRouteRequest(topic=topic, zone_name=zone)
    answer = session.servers.first(lambda server: server.call("GetTopicRoute", request))
    assert isinstance(answer, pb.GetTopicRouteResponse)
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
    for message in server.stream("WatchTopicRoutes", request, None):
        assert isinstance(message, pb.WatchTopicRoutesResponse)
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
    """Who watches what, at which revision, and how far behind, at each name server."""
    rows = session.rows_of_pages("ListWatchers", admin_service_pb2.ListWatchersRequest(), "watchers")
    columns = ("endpoint", "peer", "call", "topics=topic_count", "prefixes=topic_prefixes", "revision", "events_behind")
    session.show(rows, (*columns, "opened_at"))
