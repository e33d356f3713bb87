"""Commands that compare name servers with each other, or with one of RocketMQ."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import typer
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1.admin_service_pb2 import Intent

from namesrv_common.grpc_errors import CallError
from namesrv_common.printable import counted
from namesrv_common.topic_names import is_application
from nsctl.commands.show import Wanted, newest_rows
from nsctl.contexts import address
from nsctl.findings import first_few
from nsctl.held import LIVES, TOPICS, BrokerKey, GroupKey, Held, Tables, group_of, intent_key, read, shown_value, tables
from nsctl.output import PERMISSIONS, Row, iso
from nsctl.rocketmq import RocketmqClient
from nsctl.session import FOUND, REFUSED, RocketmqTlsCa, Session

# What is not the same everywhere.

FIELDS = {
    "broker": BrokerKey._fields,
    "intent": ("intent", "cluster", "broker", "topic"),
    "kv": ("namespace", "key"),
    "setting": ("setting",),
    "topic": ("cluster", "broker", "topic"),
}
"""What is compared between name servers, by kind: the names of the parts of its keys, which are tuples."""


def queues(
    topic: str, told: Iterable[route_data_pb2.QueueData], *, as_reported: bool = False
) -> dict[tuple[str, str, str], str]:
    """The rows of a route: permission, read queues and write queues of each group.

    Args:
        as_reported: Whether permissions are those that brokers report, and not those that readers get.
    """
    found: dict[tuple[str, str, str], str] = {}
    for one in told:
        perm = one.reported_perm if as_reported and one.HasField("reported_perm") else one.perm
        said = f"{PERMISSIONS[perm & 7]} {one.read_queue_nums}/{one.write_queue_nums}"
        found[one.cluster_name, one.broker_name, topic] = said
    return found


def rows_of(held: Tables) -> dict[tuple[str, str, str], str]:
    """The rows of all routes."""
    return {key: said for topic, told in held.routes.items() for key, said in queues(topic, told.queue_datas).items()}


class Difference(NamedTuple):
    """Something that is not the same everywhere."""

    subject: Any
    """A key of what was compared."""
    said: tuple[str | None, ...]
    """What each name server says, in the order in which they were given; None of one that is not compared."""


ABSENT = "not there"


def differences(held: Sequence[Mapping[Any, object] | None]) -> list[Difference]:
    """What is not the same everywhere, sorted.

    Args:
        held: What each name server holds; None of one that is not compared.
    """
    members = [set(one.items()) for one in held if one is not None]
    differing = members[0].union(*members) - members[0].intersection(*members) if members else set()
    return [
        Difference(subject, tuple(None if one is None else str(one.get(subject, ABSENT)) for one in held))
        for subject in sorted({subject for subject, _ in differing})
    ]


def disagreements(found: Sequence[Held | None]) -> dict[str, list[Difference]]:
    """What the name servers of a fleet do not hold alike, by kind. None stands for one that is not compared."""
    kinds = {"broker": "digests", "intent": "ends", "kv": "kv", "setting": "settings"}
    told = {kind: differences([getattr(one, name, None) for one in found]) for kind, name in kinds.items()}
    return {kind: differing for kind, differing in told.items() if differing}


# The command that compares name servers with each other.

MOST_DIFFERENCES = 200
"""Things of each kind that are shown to differ: enough to see what is wrong."""


def diff(session: Session) -> None:
    """Do all name servers agree? Says what differs, and since when; exit code 1 if anything does."""
    helds = session.each(lambda server: read(server, wanted=[LIVES]))
    if len(helds) < len(session.servers):
        session.note("only those that answered are compared")
    if any(one.refusal for one in helds.values()):
        session.note("intents, KV configuration and settings are compared only where you may read them", REFUSED)
    found = disagreements(list(helds.values()))
    everywhere = [{key[:2] for key in one.tables.lives} for one in helds.values()]
    groups = {one.subject[:2] for one in found.get("broker", ())}.intersection(*everywhere)
    if groups:  # a fleet may have 100,000 topics
        answers, _ = session.servers.each(lambda server: rows_of(tables(server, TOPICS)))
        routes = {str(endpoint): answer for endpoint, answer in answers.items()}
        rows = differences([routes.get(name) for name in helds])
        found["topic"] = _applications_first(row for row in rows if row.subject[:2] in groups)
    parts = []
    for kind, differing in found.items():
        shown, columns = _rows(kind, differing, helds)
        if kind == "broker":
            shown = [{**row, "since": _last_change(session, str(row["broker"]))} for row in shown]
            columns = (*FIELDS[kind], "since", *helds)
        parts.append((kind, shown, columns))
    _show(session, parts, f"between {counted(len(helds), 'name server')}")


def _last_change(session: Session, broker: str) -> str:
    """When the last change of a group was applied anywhere; empty if unknown."""
    answers, _ = session.servers.each(lambda server: newest_rows(server, Wanted(broker=broker, limit=1)))
    return max((one["applied_at"] for rows in answers.values() for one in rows), default="")


def _applications_first(found: Iterable[Difference]) -> list[Difference]:
    """Rows of routes that differ. No more than ``MOST_DIFFERENCES`` of them are shown."""
    return sorted(found, key=lambda row: (not is_application(row.subject[2], row.subject[:2]), row.subject))


def _rows(kind: str, found: Sequence[Difference], where: Iterable[str]) -> tuple[list[Row], Sequence[str]]:
    """Rows of what differs, and their columns: the names of the subject's fields, and whom was asked."""
    columns = (*FIELDS[kind], *where)
    return [dict(zip(columns, (*one.subject, *one.said), strict=True)) for one in found[:MOST_DIFFERENCES]], columns


Part = tuple[str, Sequence[Row], Sequence[str]]
"""Kind, rows and columns."""
PLANNED = "planned"
"""The kind of what differs because of intents in force."""


def _show(session: Session, parts: Sequence[Part], between: str) -> None:
    """Shows what differs ``between`` two or more, and says whether anything does; exit code 1 if it is not planned."""
    counts = {kind: len(rows) for kind, rows, _ in parts}
    planned = counts.pop(PLANNED, 0)
    most = max(counts.values(), default=0)
    titles = {"kv": "keys of the KV configuration that differ", PLANNED: "differences that are planned"}
    if session.form == "table":
        parts = [(titles.get(kind, f"{kind}s that differ"), rows, columns) for kind, rows, columns in parts]
    session.show_parts(parts)
    some = f" (of each kind {most:,} at most)" if most == MOST_DIFFERENCES else ""
    what = "differences" if most else "only planned differences" if planned else "no difference"
    session.note(f"{what} {between}{some}", FOUND if most else 0)


# The command that compares with a name server of RocketMQ, for fleets that run both side by side. It has no digests.

ROCKETMQ = ("here", "rocketmq")
CLIENTS = "clients_of_rocketmq"
"""What clients of the other name server do."""
SHOWN_TOPICS = 3
"""Topics that are named with a broker or a decision."""
PACE = ("scanNotActiveBrokerInterval",)
"""A setting that no client and no broker sees, and that has another default there."""


def compare_rocketmq(
    session: Session,
    rocketmq: Annotated[str, typer.Argument(help="Name server of RocketMQ, HOST:PORT. Nothing is changed there.")],
    *,
    rocketmq_tls_ca: RocketmqTlsCa = None,
) -> None:
    """Does a name server of RocketMQ show the same? Exit code 1 for a difference that no intent in force explains."""
    endpoint = address(rocketmq)
    held = session.servers.first(read)
    with session.rocketmq(endpoint, rocketmq_tls_ca) as theirs:
        topics = {*held.tables.routes, *theirs.topics()}
        there = _there(session, theirs, sorted(topics), held)
    both = held.tables.groups.keys() & there.tables.groups.keys()
    rows = [rows_of(one.tables) for one in (held, there)]
    planned, others = _explained([row for row in differences(rows) if row.subject[:2] in both], held)
    names, addresses = held.tables.named | there.tables.named, [_addresses(one.tables) for one in (held, there)]
    brokers = [_broker_row(one, rows[0] | rows[1], names) for one in differences(addresses)[:MOST_DIFFERENCES]]
    parts: list[Part] = [
        ("broker", brokers, (*GroupKey._fields, *ROCKETMQ, CLIENTS)),
        ("topic", *_rows("topic", _applications_first(others), ROCKETMQ)),
        *((kind, *_rows(kind, found, ROCKETMQ)) for kind, found in disagreements([held, there]).items()),
        (PLANNED, [_planned_row(*one, names) for one in planned], (*FIELDS["intent"], "until", "reason", CLIENTS)),
    ]
    _show(session, parts, f"between here and {endpoint} in {counted(len(topics), 'topic')}")
    if held.refusal:
        session.note(
            "you may not read what operators changed: KV and settings are not compared, intents not known", REFUSED
        )


def _there(session: Session, server: RocketmqClient, topics: Iterable[str], here: Held) -> Held:
    """What is here, with what it shows of that and of some topics instead. It has no list of its namespaces."""
    routes = {topic: route_data_pb2.TopicRouteData(queue_datas=server.queues(topic)) for topic in topics}
    kv = None
    if here.kv is not None:
        spaces = {ORDER, *(namespace for namespace, _ in here.kv)}
        kv = {(space, key): shown_value(value) for space in spaces for key, value in server.kv(space).items()}
    try:
        told = server.settings()
    except CallError as error:
        session.note(f"settings are not compared: {error}", REFUSED)
        told = {}
    settings = {key: value if key == PACE else told.get(*key, value) for key, value in (here.settings or {}).items()}
    shown = here.tables._replace(groups={group_of(one): one for one in server.groups()}, routes=routes)
    return replace(here, tables=shown, kv=kv, settings=settings)


ORDER = "ORDER_TOPIC_CONFIG"
"""The namespace of ordered topics (RocketMQ: NamesrvUtil.NAMESPACE_ORDER_TOPIC_CONFIG)."""


def _addresses(shown: Tables) -> dict[GroupKey, str]:
    return {
        key: ", ".join(f"{broker.broker_id}: {broker.broker_addr}" for broker in group.broker_addrs)
        for key, group in shown.groups.items()
    }


def _explained(found: Sequence[Difference], held: Held) -> tuple[list[tuple[Intent, list[str]]], list[Difference]]:
    """The intents in force that explain rows, each with the topics of its rows; and the rows that none explains."""
    intents = held.intents or ()
    rows = [(row, next((one for one in intents if _explains(one, row, held)), None)) for row in found]
    planned = [(one, [row.subject[2] for row, intent in rows if intent is one]) for one in intents]
    return [(one, topics) for one, topics in planned if topics], [row for row, intent in rows if intent is None]


def _explains(intent: Intent, row: Difference, held: Held) -> bool:
    """Whether both would show the same without an intent."""
    cluster, broker, topic = row.subject
    ours, theirs = row.said
    if ours == ABSENT:
        return intent.kind == Intent.KIND_TOPIC_HOLD and intent.topic == topic and intent.cluster_name in ("", cluster)
    route = held.tables.routes.get(topic, route_data_pb2.TopicRouteData())
    reported = queues(topic, route.queue_datas, as_reported=True).get(row.subject)
    return theirs == reported and group_of(intent) == (cluster, broker)


def _broker_row(found: Difference, rows: Iterable[tuple[str, str, str]], names: Collection[str]) -> Row:
    ours, theirs = found.said
    seen = f"call {theirs}"
    if ABSENT in found.said:
        topics = _named([topic for *group, topic in rows if tuple(group) == found.subject], names)
        seen = f"do not use it: {topics}" if theirs == ABSENT else f"use it: {topics}"
    return {**found.subject._asdict(), "here": ours, "rocketmq": theirs, CLIENTS: seen}


def _planned_row(intent: Intent, topics: Sequence[str], names: Collection[str]) -> Row:
    if intent.kind == Intent.KIND_TOPIC_HOLD:
        seen = f"still find {intent.topic}"
    elif intent.kind == Intent.KIND_WIPE_WRITE_PERM:
        seen = f"keep writing to {intent.broker_name}: {_named(topics, names)}"
    else:
        seen = f"cannot write to {intent.broker_name}: {_named(topics, names)}"
    until = iso(intent.ends_at_millis)
    about = dict(zip(FIELDS["intent"], intent_key(intent), strict=True))
    return {**about, "until": until, "reason": intent.comment, CLIENTS: seen}


def _named(topics: Sequence[str], named_after: Collection[str]) -> str:
    """Topics of applications, in short."""
    own = sorted(topic for topic in topics if is_application(topic, named_after))
    if not own:
        return "no topic of an application"
    return f"{counted(len(own), 'topic')} ({first_few(own, SHOWN_TOPICS)})"
