"""Commands that compare name servers with each other, or with one of RocketMQ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

import grpc
import typer
from namesrv_api.v1 import admin_service_pb2, route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import CallError
from groundwork.namesrv_client import MAX_BROKERS, NamesrvClient, check_count
from nsctl.commands.change import all_intents
from nsctl.commands.show import all_routes
from nsctl.compare import BrokerKey, Difference, IntentKey, QueuesKey, Reported, differences, in_force, queues, reported
from nsctl.output import Row, iso
from nsctl.rocketmq import RocketmqNamesrv
from nsctl.session import FOUND, Session

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
    try:
        intents = in_force(all_intents(server))
    except CallError as error:
        if error.error.code is not grpc.StatusCode.PERMISSION_DENIED:
            raise
        intents = None
    return Held(digests(server), intents)


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
    topics = [row for row in differences([routes.get(one) for one in answers]) if row.subject[:2] in groups]
    shown = [{**row, "since": _since(session, str(row["broker"]))} for row in _rows(brokers, answers)]
    parts = (
        ("broker", shown, (*BrokerKey._fields, "since", *answers)),
        ("intent", _rows(intents, answers), (*IntentKey._fields, *answers)),
        ("topic", _rows(topics, answers), (*QueuesKey._fields, *answers)),
    )
    _show(session, parts, f"between {len(answers)} name servers")


def _rows(found: Sequence[Difference], where: Iterable[str]) -> list[dict[str, object]]:
    return [{**subject._asdict(), **dict(zip(where, said, strict=True))} for subject, said in found[:MOST_DIFFERENCES]]


def _show(session: Session, parts: Sequence[tuple[str, Sequence[Row], Sequence[str]]], between: str) -> None:
    """Shows what differs, and says whether anything does."""
    session.show_parts(parts, "s that differ")
    most = max(len(rows) for _, rows, _ in parts)
    if most:
        session.found(FOUND)
    some = f" (of each kind {most:,} at most)" if most == MOST_DIFFERENCES else ""
    session.note(f"{'differences' if most else 'no difference'} {between}{some}")


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


class GroupKey(NamedTuple):
    """One broker group."""

    cluster: str
    broker: str


ROCKETMQ = ("here", "rocketmq")


def compare_rocketmq(
    session: Session,
    rocketmq: Annotated[str, typer.Argument(help="Name server of RocketMQ, HOST:PORT. It is only asked.")],
) -> None:
    """Does a name server of RocketMQ show the same? Exit code 1 if brokers or topics differ."""
    try:
        endpoint = Endpoint.parse(rocketmq)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    groups, rows = session.servers.first(lambda server: (_groups(server), _queues(server)))
    with RocketmqNamesrv(endpoint, session.timeout_seconds) as theirs:
        their_groups = _addresses(theirs.groups())
        names = {row.topic for row in rows} | set(theirs.topics())
        routes = ((topic, theirs.route(topic)) for topic in names)
        their_rows = {key: said for topic, route in routes if route for key, said in queues(topic, route).items()}
    both = groups.keys() & their_groups.keys()
    topics = [row for row in differences([rows, their_rows]) if row.subject[:2] in both]
    parts = (
        ("broker", _rows(differences([groups, their_groups]), ROCKETMQ), (*GroupKey._fields, *ROCKETMQ)),
        ("topic", _rows(topics, ROCKETMQ), (*QueuesKey._fields, *ROCKETMQ)),
    )
    _show(session, parts, f"between here and {endpoint} in {len(names)} topics")


def _groups(server: NamesrvClient) -> dict[GroupKey, str]:
    answer = server.call("GetBrokerClusterInfo", pb.GetBrokerClusterInfoRequest())
    assert isinstance(answer, pb.GetBrokerClusterInfoResponse)
    return _addresses(answer.broker_datas)


def _addresses(groups: Iterable[route_data_pb2.BrokerData]) -> dict[GroupKey, str]:
    return {
        GroupKey(group.cluster_name, group.broker_name): ", ".join(
            f"{broker.broker_id}: {broker.broker_addr}" for broker in group.broker_addrs
        )
        for group in groups
    }
