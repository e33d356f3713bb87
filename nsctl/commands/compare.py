"""Commands that compare name servers with each other, or with one of RocketMQ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, NamedTuple

import grpc
import typer
from namesrv_api.v1 import admin_service_pb2, route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_api.v1.admin_service_pb2 import Intent

from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import CallError
from groundwork.namesrv_client import MAX_BROKERS, NamesrvClient, check_count
from groundwork.printable import counted
from groundwork.topic_names import is_application
from nsctl.commands.show import TopicKind, all_intents, all_routes, group_names, groups_by_name, routes_of, topic_names
from nsctl.compare import (
    BrokerKey,
    Difference,
    IntentKey,
    QueuesKey,
    Reported,
    differences,
    in_force,
    intent_key,
    queues,
    reported,
)
from nsctl.output import Format, Row, iso
from nsctl.rocketmq import RocketmqNamesrv
from nsctl.session import FOUND, RocketmqTlsCa, Session
from nsctl.writable import GroupKey

DIGESTS = 2_000
"""Digests asked for at once: the most that a name server gives."""
MOST_DIFFERENCES = 200
"""Brokers, intents and rows of routes that are shown to differ: enough to see what is wrong."""


class Held(NamedTuple):
    """What one name server holds, in short."""

    brokers: dict[BrokerKey, Reported]
    intents: dict[IntentKey, str] | None
    """None if it does not let us read them."""


def held(server: NamesrvClient) -> Held:
    """What a name server holds, in short."""
    intents = readable_intents(server)
    return Held(digests(server), None if intents is None else in_force(intents))


def readable_intents(server: NamesrvClient) -> list[Intent] | None:
    """The intents that are in force at a name server; None if it does not let us read them."""
    try:
        return list(all_intents(server))
    except CallError as error:
        if error.error.code is not grpc.StatusCode.PERMISSION_DENIED:
            raise
        return None


def digests(server: NamesrvClient) -> dict[BrokerKey, Reported]:
    """The digests of all brokers of a name server."""
    found: dict[BrokerKey, Reported] = {}
    for page in server.pages("GetRouteDigest", pb.GetRouteDigestRequest(page_size=DIGESTS)):
        assert isinstance(page, pb.GetRouteDigestResponse)
        found |= reported(page.brokers)
        check_count(server.endpoint, "digests", len(found), MAX_BROKERS)
    return found


def disagreements(found: Sequence[Held]) -> tuple[list[Difference], list[Difference]]:
    """Brokers and intents that are not the same everywhere."""
    brokers = differences([one.brokers for one in found])
    return brokers, differences([one.intents for one in found], "not in force")


def diff(session: Session) -> None:
    """Do all name servers agree? Says which brokers and topics differ, and since when; exit code 1 if any do."""
    answers = {str(answer.endpoint): answer.value for answer in session.each(held) if answer.value is not None}
    if len(answers) < len(session.servers.all):
        session.note("only those that answered are compared")
    if any(one.intents is None for one in answers.values()):
        session.note("intents are compared of those name servers only that let you read them")
    brokers, intents = disagreements(list(answers.values()))
    everywhere = [{broker[:2] for broker in one.brokers} for one in answers.values()]
    groups = {broker[:2] for broker, _ in brokers}.intersection(*everywhere)
    routes = {str(one.endpoint): one.value for one in session.servers.each(_queues)} if groups else {}
    topics = _applications_first(
        row for row in differences([routes.get(one) for one in answers]) if row.subject[:2] in groups
    )
    shown = [{**row, "since": _since(session, str(row["broker"]))} for row in _rows(brokers, answers)]
    parts = (
        ("broker", shown, (*BrokerKey._fields, "since", *answers)),
        ("intent", _rows(intents, answers), (*IntentKey._fields, *answers)),
        ("topic", _rows(topics, answers), (*QueuesKey._fields, *answers)),
    )
    _show(session, parts, f"between {counted(len(answers), 'name server')}")


def _applications_first(found: Iterable[Difference]) -> list[Difference]:
    """Rows of routes that differ. No more than ``MOST_DIFFERENCES`` of them are shown."""
    return sorted(found, key=lambda row: (not is_application(row.subject.topic, row.subject[:2]), row.subject))


def _rows(found: Sequence[Difference], where: Iterable[str]) -> list[dict[str, object]]:
    return [{**subject._asdict(), **dict(zip(where, said, strict=True))} for subject, said in found[:MOST_DIFFERENCES]]


Part = tuple[str, Sequence[Row], Sequence[str]]
"""Kind, rows and columns."""


def _show(session: Session, parts: Sequence[Part], between: str, planned: Part | None = None) -> None:
    """Shows what differs, and says whether anything does.

    Args:
        session: The command.
        parts: What differs; any row makes the exit code 1.
        between: What was compared.
        planned: What differs because of intents in force.
    """
    titled = [(f"{part}s that differ", rows, columns) for part, rows, columns in parts]
    if session.form is Format.TABLE:
        session.show_parts([*titled, ("differences that are planned", *planned[1:])] if planned else titled)
    else:
        session.show_parts([*parts, planned] if planned else parts)
    most = max(len(rows) for _, rows, _ in parts)
    if most:
        session.found(FOUND)
    some = f" (of each kind {most:,} at most)" if most == MOST_DIFFERENCES else ""
    what = "differences" if most else "only planned differences" if planned and planned[1] else "no difference"
    session.note(f"{what} {between}{some}")


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


def _queues(server: NamesrvClient) -> dict[QueuesKey, str]:
    return {key: said for named in all_routes(server) for key, said in queues(named.topic, named.route).items()}


# The command that compares with a name server of RocketMQ, for fleets that run both side by side. It has no digests.
# A topic of an application is in the comparison, and no other: each broker makes its own by itself.

ROCKETMQ = ("here", "rocketmq")
CLIENTS = "clients_of_rocketmq"
"""What clients of the other name server do."""
SHOWN_TOPICS = 3
"""Topics that are named with a broker or a decision."""
NOT_THERE = "not there"


class Fleet(NamedTuple):
    """What a name server shows: here or of RocketMQ."""

    groups: dict[GroupKey, str]
    """Addresses of each group."""
    rows: dict[QueuesKey, str]
    """Rows of routes as clients get them."""

    def topics_of(self, group: GroupKey) -> list[str]:
        """Topics on a group."""
        return [row.topic for row in self.rows if row[:2] == group]


class Here(NamedTuple):
    """What one of our name servers shows, and why it may differ."""

    fleet: Fleet
    names: frozenset[str]
    """All topics of applications."""
    reported: dict[QueuesKey, str]
    """Rows of routes as brokers report them."""
    intents: list[Intent] | None
    """None if it does not let us read them."""


class Explained(NamedTuple):
    """Rows that differ because of an operator's decision, and that decision."""

    intent: Intent
    topics: list[str]


def compare_rocketmq(
    session: Session,
    rocketmq: Annotated[str, typer.Argument(help="Name server of RocketMQ, HOST:PORT. It is only asked.")],
    *,
    rocketmq_tls_ca: RocketmqTlsCa = None,
) -> None:
    """Does a name server of RocketMQ show the same? Exit code 1 for a difference that no intent in force explains."""
    try:
        endpoint = Endpoint.parse(rocketmq)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    tls = session.rocketmq_tls(rocketmq_tls_ca)
    here = session.servers.first(_here)
    with RocketmqNamesrv(endpoint, session.timeout_seconds, tls) as theirs:
        there, names = _there(theirs, here)
    both = here.fleet.groups.keys() & there.groups.keys()
    differing = [row for row in differences([here.fleet.rows, there.rows]) if row.subject[:2] in both]
    planned, topics = _explained(differing, here)
    brokers = differences([here.fleet.groups, there.groups])
    parts = (
        ("broker", [_broker_row(one, here.fleet, there) for one in brokers], (*GroupKey._fields, *ROCKETMQ, CLIENTS)),
        ("topic", _rows(_applications_first(topics), ROCKETMQ), (*QueuesKey._fields, *ROCKETMQ)),
    )
    between = f"between here and {endpoint} in {counted(len(names), 'topic')}"
    planned_rows = [_planned_row(one) for one in planned]
    columns = (*IntentKey._fields, "until", "why", CLIENTS)
    _show(session, parts, between, planned=("planned", planned_rows, columns))
    if here.intents is None and topics:
        session.note("you may not read the intents in force: some of these differences may be planned")


def _here(server: NamesrvClient) -> Here:
    groups = _addresses(groups_by_name(server))
    rows: dict[QueuesKey, str] = {}
    as_reported: dict[QueuesKey, str] = {}
    named_after = group_names(server)
    names = frozenset(name for name in topic_names(server, None, TopicKind.ALL) if is_application(name, named_after))
    for named in routes_of(server, names):
        rows |= queues(named.topic, named.route)
        as_reported |= queues(named.topic, named.route, as_reported=True)
    return Here(Fleet(groups, rows), names, as_reported, readable_intents(server))


def _there(server: RocketmqNamesrv, here: Here) -> tuple[Fleet, frozenset[str]]:
    """What it shows, and the topics of both."""
    groups = _addresses(server.groups())
    named_after = {name for group in (*groups, *here.fleet.groups) for name in group}
    names = here.names.union(name for name in server.topics() if is_application(name, named_after))
    routes = ((topic, server.route(topic)) for topic in names)
    rows = {key: said for topic, route in routes if route for key, said in queues(topic, route).items()}
    return Fleet(groups, rows), names


def _addresses(groups: Iterable[route_data_pb2.BrokerData]) -> dict[GroupKey, str]:
    return {
        GroupKey(group.cluster_name, group.broker_name): ", ".join(
            f"{broker.broker_id}: {broker.broker_addr}" for broker in group.broker_addrs
        )
        for group in groups
    }


def _explained(found: Sequence[Difference], here: Here) -> tuple[list[Explained], list[Difference]]:
    """The rows that intents in force explain, by intent, and the others."""
    by_key = {(one.kind, one.cluster_name, one.broker_name, one.topic): one for one in here.intents or ()}
    explained: dict[tuple[int, str, str, str], Explained] = {}
    others: list[Difference] = []
    for row in found:
        keys = [key for key in _intents_for(row, here) if key in by_key]
        if keys:
            explained.setdefault(keys[0], Explained(by_key[keys[0]], [])).topics.append(row.subject.topic)
        else:
            others.append(row)
    return list(explained.values()), others


def _intents_for(row: Difference, here: Here) -> Iterator[tuple[int, str, str, str]]:
    """The intents that would explain a row: without one, both would show the same."""
    cluster, broker, topic = row.subject
    ours, theirs = row.said
    if ours == NOT_THERE:
        yield Intent.KIND_TOPIC_HOLD, cluster, "", topic
        yield Intent.KIND_TOPIC_HOLD, "", "", topic
    elif theirs == here.reported.get(row.subject):
        yield Intent.KIND_WIPE_WRITE_PERM, cluster, broker, ""
        yield Intent.KIND_ADD_WRITE_PERM, cluster, broker, ""


def _broker_row(found: Difference, here: Fleet, there: Fleet) -> Row:
    ours, theirs = found.said
    group = found.subject
    if theirs == NOT_THERE:
        seen = f"do not use it: {_named(here.topics_of(group))}"
    elif ours == NOT_THERE:
        seen = f"use it: {_named(there.topics_of(group))}"
    else:
        seen = f"call {theirs}"
    return {**group._asdict(), "here": ours, "rocketmq": theirs, CLIENTS: seen}


def _planned_row(explained: Explained) -> Row:
    intent = explained.intent
    if intent.kind == Intent.KIND_TOPIC_HOLD:
        seen = f"still find {intent.topic}"
    elif intent.kind == Intent.KIND_WIPE_WRITE_PERM:
        seen = f"keep writing to {intent.broker_name}: {_named(explained.topics)}"
    else:
        seen = f"cannot write to {intent.broker_name}: {_named(explained.topics)}"
    until = iso(intent.ends_at_millis) if intent.HasField("ends_at_millis") else ""
    return {**intent_key(intent)._asdict(), "until": until, "why": intent.comment, CLIENTS: seen}


def _named(topics: Sequence[str]) -> str:
    if not topics:
        return "no topic of an application"
    more = ", ..." if len(topics) > SHOWN_TOPICS else ""
    return f"{counted(len(topics), 'topic')} ({', '.join(sorted(topics)[:SHOWN_TOPICS])}{more})"
