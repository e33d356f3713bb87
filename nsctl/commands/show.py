"""Commands that show what there is, and why: the reasons of a route, and the journals."""

from __future__ import annotations

import heapq
import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from math import inf
from typing import Annotated, Any, NamedTuple

import typer
from namesrv_api.v1 import admin_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv_common.client.namesrv_client import NamesrvClient
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError
from namesrv_common.printable import printable_json
from namesrv_common.topic_names import GroupPattern, application_first, kind_of, listing_order
from nsctl.commands.change import INTENT, PATTERN, groups_named
from nsctl.held import GROUPS, LIVES, TOPICS, GroupKey, all_intents, group_of, in_words, point, tables
from nsctl.output import PERMISSIONS, Row, duration, iso, queues_row, route_rows, row
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


def clusters(session: Session) -> None:
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
        if session.form == "table":
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
        ("intent", intents if session.form == "json" else list(map(in_words, intents)), INTENT),
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


# Why it is so: explanations of routes, and the journals.


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
    if session.form != "table" or (rows and not nobody):
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
    wanted = Wanted(topic, name, frozenset(map(_plain, cause or ())), since, limit)
    columns = ("at=applied_at", "endpoint", "revision", "cause", "caller", "what=summary", "reason=comment")

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


# The journals that ``history`` reads.


class Wanted(NamedTuple):
    """Which entries ``history`` shows."""

    topic: str | None = None
    broker: str | None = None
    causes: frozenset[str] = frozenset()
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
    size = ENTRIES_OF_PAGE if wanted.causes else min(most, ENTRIES_OF_PAGE)
    request = admin_service_pb2.ListAuditEntriesRequest(
        topic=wanted.topic, broker_name=wanted.broker, page_size=size, **bounds
    )
    found: Iterator[Row] = (
        one
        for entry in server.items(server.admin.ListAuditEntries, request, "entries")
        for one in [{"endpoint": str(server.endpoint), **row(entry)}]
        if not wanted.causes or wanted.causes & {_plain(one["cause"]), _plain(one.get("removal_reason", ""))}
    )
    return list(islice(found, most))[::-1]


def in_order(journals: Iterable[Iterable[Row]]) -> list[Row]:
    """Rows of several journals by their time. A journal keeps its own order, also if its clock stepped back."""
    return list(heapq.merge(*journals, key=lambda row: str(row["applied_at"])))


ENTRIES_OF_PAGE = 500
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
