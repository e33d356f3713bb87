"""Broker groups as people name them in commands: one by its name, or several by a pattern."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, NamedTuple

import typer

from namesrv_common.client.namesrv_client import NamesrvClient
from namesrv_common.topic_names import GroupPattern, application_first, is_application
from nsctl.held import GROUPS, TOPICS, all_intents, tables
from nsctl.session import REFUSED, Session
from nsctl.writable import GroupKey, drains, group_of, lacks_writable_queue

PATTERN = "CLUSTER/BROKER with * for any characters"
Brokers = Annotated[str, typer.Argument(metavar="BROKER", help=f"Name of the broker group, or {PATTERN}.")]


class Named(NamedTuple):
    """One broker group as it was named."""

    cluster: str | None
    broker: str


def groups_named(broker: str, cluster: str | None) -> Named | GroupPattern:
    """Reads the name of a group, or a pattern. The notation of patterns is that of permits.

    Args:
        broker: ``BROKER``, ``CLUSTER/BROKER``, or either with stars; a pattern without a cluster is of every cluster.
        cluster: The option ``--cluster``.

    Raises:
        typer.BadParameter: It is neither, or the cluster is named twice.
    """
    if "/" not in broker and "*" not in broker:
        return Named(cluster, broker)
    if "/" in broker and cluster is not None:
        raise typer.BadParameter(f"{broker} names a cluster, and --cluster does too")
    text = broker if "/" in broker else f"{'*' if cluster is None else cluster}/{broker}"
    try:
        pattern = GroupPattern.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return pattern if "*" in text else Named(*text.split("/"))


def registered(server: NamesrvClient) -> Iterable[GroupKey]:
    """The groups of one name server."""
    return tables(server, GROUPS).groups


def drained(server: NamesrvClient) -> Iterable[GroupKey]:
    """The groups that are drained at one name server; they need not be registered."""
    return drains(all_intents(server))


def groups_of(
    session: Session, named: Named | GroupPattern, ask: Callable[[NamesrvClient], Iterable[GroupKey]], kind: str
) -> list[Named]:
    """The group that was named, or all that match at some name server, sorted. Reports if there are none."""
    if isinstance(named, Named):
        return [named]
    answers = session.each(lambda server: list(ask(server)))
    found = sorted({group for groups in answers.values() for group in groups if named.matches(group)})
    if not found:
        session.note(f"no {kind} matches {named.text}", REFUSED)
    return [Named(*group) for group in found]


class Effect(NamedTuple):
    """What it would mean at one name server to drain some groups together."""

    topics: dict[GroupKey, list[str]]
    """Topics of each of the groups, those of applications first."""
    losing: list[str]
    """Topics of applications that would lose their last writable queue. Each drain alone may leave them one."""


def effect(server: NamesrvClient, groups: Iterable[Named]) -> Effect:
    """Asks one name server for its routes, and says what draining some groups together would mean."""
    held = tables(server, GROUPS, TOPICS)
    topics: dict[GroupKey, list[str]] = {GroupKey(group.cluster or "", group.broker): [] for group in groups}
    losing: list[str] = []
    for topic, route in held.routes.items():
        touched = topics.keys() & set(map(group_of, route.queue_datas))
        for group in touched:
            topics[group].append(topic)
        if (
            touched
            and is_application(topic, held.named)
            and not lacks_writable_queue(route)
            and lacks_writable_queue(route, drained=topics)
        ):
            losing.append(topic)
    in_order = {group: application_first(names, held.named) for group, names in topics.items()}
    return Effect(in_order, sorted(losing))
