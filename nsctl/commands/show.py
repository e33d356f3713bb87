"""Commands that show what there is: cluster, brokers, one broker, topics, route, watch, watchers, status."""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import islice
from math import inf
from typing import Annotated

import typer
from namesrv_api.v1 import admin_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv_common.client.namesrv_client import NamesrvClient
from namesrv_common.grpc_errors import CallError
from namesrv_common.topic_names import application_first, kind_of, listing_order
from nsctl.commands.change import INTENT, in_words
from nsctl.held import GROUPS, LIVES, TOPICS, GroupKey, all_intents, group_of, tables
from nsctl.output import PERMISSIONS, Format, Row, duration, iso, queues_row, route_rows, row
from nsctl.session import REFUSED, Session

PAGE = 10_000
"""Topic names asked for at once: the most that a name server gives."""

GROUP = (
    "cluster=cluster_name",
    "broker=broker_name",
    "addresses=broker_addrs",
    "unconfirmed_ids=unconfirmed_broker_ids",
)
QUEUES = ("read_queues=read_queue_nums", "write_queues=write_queue_nums", "permission")
ROUTE = (*GROUP[:2], *QUEUES, *GROUP[2:])


def status(session: Session) -> None:
    """Shows the state of each name server: warm-up, guard, revision, counts."""
    rows: list[Row] = []
    found = session.each(lambda server: server.route.GetNamesrvStatus(pb.GetNamesrvStatusRequest()))
    for endpoint in (str(server.endpoint) for server in session.servers):
        if (told := found.get(endpoint)) is None:
            rows.append({"endpoint": endpoint, "state": "unreachable"})
        else:
            state = f"{'ready' if told.warm else 'warming'}{', guard holds brokers' if told.guard_tripped else ''}"
            rows.append({"endpoint": endpoint, "state": state, **row(told)})
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
        names = [name for name in server.items(server.route.ListTopics, request, "topics") if contains in name]
        names = application_first(names, named_after)
        return [{"topic": name, "kind": str(kind_of(name, named_after))} for name in names]

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
    title = f"{topic} as of revision {answer.header.revision:,} of {answer.header.namesrv_name}"
    session.show(route_rows(answer.route), ROUTE, title)


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
    with suppress(KeyboardInterrupt):
        session.servers.first(lambda server: _show_changes(session, server, request, limit))


def _show_changes(
    session: Session, server: NamesrvClient, request: pb.WatchTopicRoutesRequest, limit: int | None
) -> None:
    messages = server.stream(server.route.WatchTopicRoutes, iter([request]), None)
    changes = ((message.header.revision, change) for message in messages for change in message.changes)
    for revision, change in islice(changes, limit):
        at, told = iso(time.time_ns() // 1_000_000), row(change)
        if session.form is Format.TABLE:
            left = [f"{gone['broker_name']} {gone['broker_addr']} {gone.get('reason')}" for gone in told["removals"]]
            rows = route_rows(change.route)
            how = f"{'' if rows else ': no route'}{'; left: ' if left else ''}{', '.join(left)}"
            title = f"{at} {change.topic} at revision {revision:,}{how}"
            session.show(rows, ROUTE, title)
        else:
            session.show([{"at": at, "revision": revision, **told}], ())


def watchers(session: Session) -> None:
    """Lists watches at each name server, with their topics, revision and delay."""
    request = admin_service_pb2.ListWatchersRequest()
    rows = session.rows(lambda server: server.items(server.admin.ListWatchers, request, "watchers"))
    columns = ("endpoint", "peer", "call", "topics=topic_count", "prefixes=topic_prefixes", "revision", "events_behind")
    session.show(rows, (*columns, "opened_at"))


HISTORY = 5
"""Entries of the journal that the page of a broker shows."""
LIVE = (
    "cluster=cluster_name",
    "broker=broker_name",
    "id=broker_id",
    "address=broker_addr",
    "labels",
    "version=data_version.counter",
    "last_heard_of=last_update_timestamp",
    "channel=has_channel",
)


def brokers(
    session: Session,
    contains: Annotated[str, typer.Argument(metavar="[TEXT]", help="Only groups whose name contains this.")] = "",
    *,
    cluster: Annotated[str | None, typer.Option(help="Only brokers of this cluster.")] = None,
    unconfirmed: Annotated[bool, typer.Option("--unconfirmed", help="Only unconfirmed brokers.")] = False,
    no_channel: Annotated[bool, typer.Option("--no-channel", help="Only brokers without a channel.")] = False,
    silent: Annotated[int | None, duration("--silent", "Only brokers that are silent for longer.")] = None,
) -> None:
    """Live brokers with the version of their topics and when each was last seen (mqadmin brokerStatus)."""

    def ask(server: NamesrvClient) -> list[Row]:
        held = tables(server, LIVES)
        before = inf if silent is None else (held.clock.theirs - silent) * 1000
        return [
            row(live)
            for live in held.lives.values()
            if contains in live.broker_name
            and cluster in (None, live.cluster_name)
            and (live.unconfirmed or not unconfirmed)
            and not (live.has_channel and no_channel)
            and live.last_update_timestamp_millis < before
        ]

    rows = session.servers.first(ask)
    session.show(rows, (*LIVE, "timeout_millis=heartbeat_timeout_millis", "unconfirmed"))


def broker(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="BROKER", help="Name of the broker group.")],
    cluster: Annotated[str | None, typer.Option(help="Cluster, where two have a group of that name.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Topics at most.")] = 100,
) -> None:
    """Shows one broker group: its brokers, intents, topics and latest changes."""
    lives, topics, intents, entries, problem = session.servers.first(lambda server: _page(server, name, cluster))
    if not lives:
        session.note(f"no live broker is called {name}; `nsctl history {name}` shows whether there was one", REFUSED)
    if problem:
        session.note(f"intents and history are left out: {problem}")
    parts = (
        ("broker", lives, LIVE),
        ("intent", intents if session.form is Format.JSON else list(map(in_words, intents)), INTENT),
        ("topic", topics[:limit], ("topic", *QUEUES, "reported")),
        ("history", entries, ("at=applied_at", "revision", "cause", "reason=removal_reason", "what=summary")),
    )
    session.show_parts(parts)
    if len(topics) > limit:
        session.note(f"it has {len(topics):,} topics; --limit shows more")


def _page(
    server: NamesrvClient, name: str, cluster: str | None
) -> tuple[list[Row], list[Row], list[Row], list[Row], str]:
    """What one name server knows of a group: brokers, topics, intents, history, and why it hides the last two."""
    named = GroupKey(cluster or "", name)
    lives: list[Row] = [row(one) for one in tables(server, LIVES).lives.values() if named.matches(group_of(one))]
    topics: list[Row] = [
        {
            "topic": topic,
            **queues_row(queues),
            "reported": PERMISSIONS[queues.reported_perm & 7] if queues.HasField("reported_perm") else None,
        }
        for topic, route in (tables(server, TOPICS).routes if lives else {}).items()
        for queues in route.queue_datas
        if named.matches(group_of(queues))
    ]
    topics.sort(key=lambda row: (*listing_order(row["topic"], (name, row["cluster_name"])), row["cluster_name"]))
    request = admin_service_pb2.ListAuditEntriesRequest(broker_name=name, page_size=HISTORY)
    try:
        entries: list[Row] = [row(entry) for entry in server.admin.ListAuditEntries(request).entries]
        intents: list[Row] = [row(intent) for intent in all_intents(server) if named.matches(group_of(intent))]
    except CallError as error:
        if error.unreachable:
            raise
        return lives, topics, [], [], error.reason
    return lives, topics, intents, entries, ""
