"""Commands about brokers: all that are wanted, and one of them with all that is known of it."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Annotated

import typer
from namesrv_api.v1 import admin_service_pb2, route_data_pb2

from namesrv_common.client.namesrv_client import NamesrvClient
from namesrv_common.grpc_errors import CallError
from namesrv_common.topic_names import listing_order
from nsctl.commands.change import INTENT, in_words
from nsctl.commands.show import QUEUES
from nsctl.held import TOPICS, all_intents, clock_of, live_brokers, tables
from nsctl.output import PERMISSIONS, Format, Row, Silent, queues_row, row
from nsctl.session import REFUSED, Session

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
    silent: Silent = None,
) -> None:
    """Live brokers with the version of their topics and when each was last seen (mqadmin brokerStatus)."""

    def ask(server: NamesrvClient) -> list[Row]:
        before = inf if silent is None else (clock_of(server).theirs - silent) * 1000
        return [row(live) for live in live_brokers(server) if wanted(live, before)]

    def wanted(live: route_data_pb2.BrokerLiveInfo, before: float) -> bool:
        return (
            contains in live.broker_name
            and cluster in (None, live.cluster_name)
            and (live.unconfirmed or not unconfirmed)
            and not (live.has_channel and no_channel)
            and live.last_update_timestamp_millis < before
        )

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
) -> tuple[Sequence[Row], Sequence[Row], Sequence[Row], Sequence[Row], str]:
    """What one name server knows of a group: brokers, topics, intents, history, and why it hides the last two."""
    lives = [
        row(one) for one in live_brokers(server) if one.broker_name == name and cluster in (None, one.cluster_name)
    ]
    topics = _topics_of(server, name, cluster) if lives else []
    request = admin_service_pb2.ListAuditEntriesRequest(broker_name=name, page_size=HISTORY)
    try:
        entries = [row(entry) for entry in server.admin.ListAuditEntries(request).entries]
        intents = [
            row(intent)
            for intent in all_intents(server)
            if intent.broker_name == name and cluster in (None, intent.cluster_name)
        ]
    except CallError as error:
        if error.unreachable:
            raise
        return lives, topics, [], [], error.reason
    return lives, topics, intents, entries, ""


def _topics_of(server: NamesrvClient, name: str, cluster: str | None) -> list[Row]:
    rows: list[Row] = []
    for topic, route in tables(server, TOPICS).routes.items():
        for queues in route.queue_datas:
            if queues.broker_name == name and cluster in (None, queues.cluster_name):
                reported = PERMISSIONS[queues.reported_perm & 7] if queues.HasField("reported_perm") else None
                rows.append({"topic": topic, **queues_row(queues), "reported": reported})
    return sorted(
        rows, key=lambda row: (*listing_order(row["topic"], (name, row["cluster_name"])), row["cluster_name"])
    )
