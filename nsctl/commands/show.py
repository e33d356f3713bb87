"""Commands that show what there is: cluster, brokers, topics, route, watch, watchers, status."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Annotated

import grpc
import typer
from namesrv_api.v1 import admin_service_pb2, route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_internal.v1 import diagnostics_service_pb2

from groundwork.grpc_errors import CallError, RichError
from groundwork.namesrv_client import MAX_BROKERS, STREAM_LIMITS, ListIntake, NamesrvClient, check_count
from groundwork.printable import counted
from groundwork.topic_names import TopicKind as Kind
from groundwork.topic_names import kind_of
from nsctl.output import Format, Row, iso, route_rows, row, seconds
from nsctl.session import Session

PAGE = 10_000
"""Topic names asked for at once: the most that a name server gives."""

GROUPS_PAGE = 2_000
"""Groups asked for at once: the most that a name server gives."""

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


FILTERS = {
    TopicKind.ALL: pb.TOPIC_FILTER_UNSPECIFIED,
    TopicKind.SYSTEM: pb.TOPIC_FILTER_SYSTEM,
    TopicKind.UNIT: pb.TOPIC_FILTER_UNIT,
    TopicKind.UNIT_SUB: pb.TOPIC_FILTER_UNIT_SUB,
    TopicKind.UNIT_SUB_NOT_UNIT: pb.TOPIC_FILTER_UNIT_SUB_UNUNIT,
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
        "doubted=doubted_broker_count",
        "topics=topic_count",
        "started_at",
    )
    session.show(rows, columns)


def _state(status: pb.GetNamesrvStatusResponse) -> str:
    """The state in words."""
    guard = ", guard holds brokers" if status.guard_tripped else ""
    return f"{'ready' if status.warm else 'warming'}{guard}{_doubting(status)}"


def _doubting(status: pb.GetNamesrvStatusResponse) -> str:
    """How long the name server keeps brokers whose channel has ended; empty if it keeps none."""
    if not status.doubted_broker_count:
        return ""
    left = max(0, status.doubt_ends_at_millis - time.time_ns() // 1_000_000) / 1000
    return f", doubts {counted(status.doubted_broker_count, 'broker')} for {left:.0f} s"


def cluster(session: Session) -> None:
    """Clusters, their broker groups and addresses (mqadmin clusterList)."""
    groups = session.servers.first(lambda server: list(groups_by_name(server)))
    session.show([row(group) for group in groups], GROUP)


def groups_by_name(server: NamesrvClient) -> Iterator[route_data_pb2.BrokerData]:
    """The broker groups of one name server, by cluster and name."""
    count = 0
    for page in server.pages("GetBrokerClusterInfo", pb.GetBrokerClusterInfoRequest(page_size=GROUPS_PAGE)):
        assert isinstance(page, pb.GetBrokerClusterInfoResponse)
        count += len(page.broker_datas)
        check_count(server.endpoint, "broker groups", count, MAX_BROKERS)
        yield from page.broker_datas


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


def all_intents(server: NamesrvClient) -> Iterator[admin_service_pb2.Intent]:
    """The intents that are in force at one name server, oldest first."""
    for page in server.pages("ListIntents", admin_service_pb2.ListIntentsRequest()):
        assert isinstance(page, admin_service_pb2.ListIntentsResponse)
        yield from page.intents


def topics(
    session: Session,
    contains: Annotated[str, typer.Argument(metavar="[TEXT]", help="Only topics whose name has this in it.")] = "",
    cluster: Annotated[str | None, typer.Option(help="Only topics of this cluster.")] = None,
    kind: Annotated[TopicKind, typer.Option(help="Which list of the name server.")] = TopicKind.ALL,
    limit: Annotated[int, typer.Option(min=1, help="Names at most.")] = 1_000,
) -> None:
    """Names of topics, those of applications first (mqadmin topicList)."""

    def ask(server: NamesrvClient) -> list[Row]:
        named_after = group_names(server)
        rows: list[Row] = []
        others: list[Row] = []
        for name in topic_names(server, cluster, kind):
            if contains in name:
                its_kind = kind_of(name, named_after)
                (rows if its_kind is Kind.NORMAL else others).append({"topic": name, "kind": str(its_kind)})
                if len(rows) > limit:
                    break
        return (rows + others)[: limit + 1]

    rows = session.servers.first(ask)
    session.show(rows[:limit], ("topic", "kind"))
    if len(rows) > limit:
        session.note(f"there are more than {limit:,}; --limit shows more")


def group_names(server: NamesrvClient) -> frozenset[str]:
    """Names of clusters and broker groups. Each has a topic of its own name."""
    return frozenset(topic_names(server, None, TopicKind.SYSTEM))


def topic_names(server: NamesrvClient, cluster: str | None, kind: TopicKind) -> Iterator[str]:
    """Names of one of a name server's lists."""
    request = pb.ListTopicsRequest(filter=FILTERS[kind], cluster_name=cluster, page_size=PAGE)
    for page in server.pages("ListTopics", request):
        assert isinstance(page, pb.ListTopicsResponse)
        yield from page.topics


def all_routes(server: NamesrvClient) -> Iterator[pb.NamedTopicRoute]:
    """The routes of all topics of a name server, as readers get them."""
    yield from routes_of(server, topic_names(server, None, TopicKind.ALL))


def routes_of(server: NamesrvClient, topics: Iterable[str]) -> Iterator[pb.NamedTopicRoute]:
    """The routes of some topics of a name server, as readers get them.

    Raises:
        CallError: An answer has none of the topics.
    """
    names = list(topics)
    intake = ListIntake(server.endpoint, "BatchGetTopicRoutes", STREAM_LIMITS)
    names.reverse()
    while names:
        asked = names[-BATCH:]
        answer = server.call("BatchGetTopicRoutes", pb.BatchGetTopicRoutesRequest(topics=reversed(asked)))
        assert isinstance(answer, pb.BatchGetTopicRoutesResponse)
        intake.take(answer)
        if len(answer.topics_left_out) >= len(asked):
            raise CallError(server.endpoint, RichError(grpc.StatusCode.INTERNAL, "leaves all topics of a batch out"))
        yield from answer.routes
        names[-BATCH:] = reversed(answer.topics_left_out)


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


def clients(
    session: Session,
    record: Annotated[
        int | None,
        typer.Option("--record", parser=seconds, metavar="DURATION", help="First record for 30m, 2h or 7d from now."),
    ] = None,
    stop: Annotated[bool, typer.Option("--stop", help="First end the recording. The list stays.")] = False,
) -> None:
    """Which clients look topics up, at each name server. A name server records them only while you ask for it."""
    request = diagnostics_service_pb2.ListClientsRequest()
    if stop or record is not None:
        request.record_millis = 0 if stop else (record or 0) * 1000
    rows: list[Row] = []
    for answer in session.each(lambda server: server.call("ListClients", request)):
        told = answer.value
        if not isinstance(told, diagnostics_service_pb2.ListClientsResponse):
            continue
        where = str(answer.endpoint)
        rows += [{"endpoint": where, **row(client)} for client in told.clients]
        session.note(f"{where}: {_recording(told)}")
    columns = ("endpoint", "protocol", "address", "caller", "lookups=lookup_count", "last_at", "last_topic")
    session.show(rows, columns)


def _recording(told: diagnostics_service_pb2.ListClientsResponse) -> str:
    """Since when lookups are recorded, and until when, in words."""
    if not told.HasField("began_at_millis"):
        return "records no clients; `nsctl clients --record 1h` starts it"
    more = f"; {told.left_out_count:,} are left out" if told.left_out_count else ""
    until = "records until" if told.recording else "recorded until"
    return f"{until} {iso(told.ends_at_millis)}, since {iso(told.began_at_millis)}{more}"


def watchers(session: Session) -> None:
    """Who watches what, at which revision, and how far behind, at each name server."""
    rows = session.rows_of_pages("ListWatchers", admin_service_pb2.ListWatchersRequest(), "watchers")
    columns = ("endpoint", "peer", "call", "topics=topic_count", "prefixes=topic_prefixes", "revision", "events_behind")
    session.show(rows, (*columns, "opened_at"))
