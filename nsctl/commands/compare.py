"""Commands that compare name servers with each other, or with one of RocketMQ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import typer
from namesrv_api.v1 import admin_service_pb2, route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.endpoints import Endpoint
from groundwork.namesrv_client import MAX_BROKERS, STREAM_LIMITS, ListIntake, NamesrvClient, check_count
from nsctl.commands.show import TopicKind, route_rows, topic_names
from nsctl.output import Format, Row, iso
from nsctl.rocketmq import RocketmqNamesrv
from nsctl.session import FOUND, Session

# The command that compares name servers, and says once what one missing broker explains of many topics.

DIGESTS = 2_000
"""Digests asked for at once: the most that a name server gives."""
BATCH = 500
"""Routes asked for at once when two name servers are compared topic by topic."""
MOST_DIFFERENCES = 200
"""Brokers, and topics, that are shown to differ: enough to see what is wrong."""

Broker = tuple[str, str, int, str]
"""Cluster, name, id, address."""
Digests = dict[Broker, tuple[bytes, int]]
"""Digest and counter of its version for each broker."""
Group = tuple[str, str]
"""Cluster and name."""
Routes = dict[str, dict[Group, str]]
"""For each topic what each group has of it, in short."""


def diff(session: Session) -> None:
    """Do all name servers agree? Says which brokers and topics differ, and since when; exit code 1 if any do."""
    answers = [answer for answer in session.each(_digests) if answer.value is not None]
    if len(answers) < len(session.servers.all):
        session.note("only those that answered are compared")
    digests = {str(answer.endpoint): answer.value or {} for answer in answers}
    differing = _differing_brokers(digests)
    routes = {str(answer.endpoint): answer.value or {} for answer in session.servers.each(_routes) if not answer.error}
    topics, explained = compared(routes, {broker[:2] for broker in differing})
    brokers = [
        {**_broker_row(session, broker, digests), "topics_explained": explained[broker[:2]]}
        for broker in differing[:MOST_DIFFERENCES]
    ]
    shown_topics = topics[:MOST_DIFFERENCES]
    if session.form is not Format.TABLE:
        rows = [{"kind": "broker", **row} for row in brokers] + [{"kind": "topic", **row} for row in shown_topics]
        session.show(rows, ())
    if brokers and session.form is Format.TABLE:
        columns = ("cluster", "broker", "id", "address", "since", *digests, "topics_explained")
        session.show(brokers, columns, "brokers that differ")
    if topics and session.form is Format.TABLE:
        session.show(shown_topics, ("topic", *routes), "topics that differ" + (" for other reasons" if brokers else ""))
    if differing or topics:
        session.found(FOUND)
        some = " (the first ones)" if max(len(differing), len(topics)) > MOST_DIFFERENCES else ""
        session.note(f"differences between {len(answers)} name servers{some}")
    else:
        session.note(f"no difference between {len(answers)} name servers")


def compared(routes: dict[str, Routes], differing: set[Group]) -> tuple[list[Row], Counter[Group]]:
    """Topics that differ for another reason than the groups that differ anyway, and how many each of these explains.

    Args:
        routes: What each name server has.
        differing: Groups with a broker that is not everywhere, or does not report the same everywhere.
    """
    rows: list[Row] = []
    explained: Counter[Group] = Counter()
    for topic in sorted(set().union(*routes.values())):
        seen = {where: of.get(topic, {}) for where, of in routes.items()}
        groups = set().union(*seen.values())
        unlike = {group for group in groups if len({of.get(group) for of in seen.values()}) > 1}
        if unlike <= differing:
            explained.update(unlike)
        else:
            rows.append({"topic": topic, **{where: "; ".join(of.values()) or "no route" for where, of in seen.items()}})
    return rows, explained


def _digests(server: NamesrvClient) -> Digests:
    found: Digests = {}
    for page in server.pages("GetRouteDigest", pb.GetRouteDigestRequest(page_size=DIGESTS)):
        assert isinstance(page, pb.GetRouteDigestResponse)
        for row in page.brokers:
            found[row.cluster_name, row.broker_name, row.broker_id, row.broker_addr] = (
                row.digest,
                row.data_version.counter,
            )
        check_count(server.endpoint, "digests", len(found), MAX_BROKERS)
    return found


def _differing_brokers(digests: dict[str, Digests]) -> list[Broker]:
    """Brokers that are not everywhere, or do not report the same everywhere."""
    return [
        broker
        for broker in sorted(set().union(*digests.values()))
        if len({of.get(broker) for of in digests.values()}) > 1
    ]


def _broker_row(session: Session, broker: Broker, digests: dict[str, Digests]) -> Row:
    cluster, name, broker_id, addr = broker
    row = {"cluster": cluster, "broker": name, "id": broker_id, "address": addr, "since": _since(session, name)}
    return {**row, **{where: _said(of.get(broker)) for where, of in digests.items()}}


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


def _said(value: tuple[bytes, int] | None) -> str:
    return "not there" if value is None else f"version {value[1]}, {value[0].hex()[:8]}"


def _routes(server: NamesrvClient) -> Routes:
    """The routes of all topics of a name server, by group."""
    names = list(topic_names(server, None, TopicKind.ALL))
    found: Routes = {}
    intake = ListIntake(server.endpoint, "BatchGetTopicRoutes", STREAM_LIMITS)
    for start in range(0, len(names), BATCH):
        answer = server.call("BatchGetTopicRoutes", pb.BatchGetTopicRoutesRequest(topics=names[start : start + BATCH]))
        assert isinstance(answer, pb.BatchGetTopicRoutesResponse)
        intake.take(answer)
        for named in answer.routes:
            found[named.topic] = _by_group(named.route)
    return found


def all_routes(server: NamesrvClient) -> dict[str, str]:
    """The routes of all topics of a name server, in short."""
    return {topic: "; ".join(groups.values()) for topic, groups in _routes(server).items()}


def in_short(route: route_data_pb2.TopicRouteData) -> str:
    """A route in a line: permission, queues and addresses of each group."""
    return "; ".join(_by_group(route).values())


def _by_group(route: route_data_pb2.TopicRouteData) -> dict[Group, str]:
    return {
        (row["cluster"], row["broker"]): f"{row['broker']} {row['permission']} {row['read_queues']}"
        f"/{row['write_queues']} {', '.join(row['addresses'])}"
        for row in route_rows(route)
    }


# The command that compares with a name server of RocketMQ, for who runs both side by side.

Groups = dict[tuple[str, str], str]
"""Addresses of each broker group (cluster, name), in short."""


def compare_rocketmq(
    session: Session,
    rocketmq: Annotated[str, typer.Argument(help="Name server of RocketMQ, HOST:PORT. It is only asked.")],
) -> None:
    """Does a name server of RocketMQ show the same? Exit code 1 if brokers or topics differ."""
    try:
        endpoint = Endpoint.parse(rocketmq)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    ours = session.servers.first(lambda server: (_groups(server), all_routes(server)))
    with RocketmqNamesrv(endpoint, session.timeout_seconds) as theirs:
        brokers = list(islice(_differing(ours[0], _in_short_by_group(theirs.groups())), MOST_DIFFERENCES))
        names = {*theirs.topics(), *ours[1]}
        topics = list(islice(_differing_topics(ours[1], theirs, sorted(names)), MOST_DIFFERENCES))
    if session.form is not Format.TABLE:
        session.show([{"kind": "broker", **row} for row in brokers] + [{"kind": "topic", **row} for row in topics], ())
    if brokers and session.form is Format.TABLE:
        session.show(brokers, ("cluster", "broker", "here", "rocketmq"), "broker groups that differ")
    if topics and session.form is Format.TABLE:
        session.show(topics, ("topic", "here", "rocketmq"), "topics that differ")
    if brokers or topics:
        session.found(FOUND)
    verdict = "differences" if brokers or topics else "no difference"
    shown = " (the first ones)" if MOST_DIFFERENCES in (len(brokers), len(topics)) else ""
    session.note(f"{verdict} between here and {endpoint} in {len(names)} topics{shown}")


def _groups(server: NamesrvClient) -> Groups:
    answer = server.call("GetBrokerClusterInfo", pb.GetBrokerClusterInfoRequest())
    assert isinstance(answer, pb.GetBrokerClusterInfoResponse)
    return _in_short_by_group(iter(answer.broker_datas))


def _in_short_by_group(groups: Iterator[route_data_pb2.BrokerData]) -> Groups:
    return {
        (group.cluster_name, group.broker_name): ", ".join(
            f"{broker.broker_id}: {broker.broker_addr}" for broker in group.broker_addrs
        )
        for group in groups
    }


def _differing(ours: Groups, theirs: Groups) -> Iterator[Row]:
    for key in sorted({*ours, *theirs}):
        here, there = ours.get(key, "not there"), theirs.get(key, "not there")
        if here != there:
            yield {"cluster": key[0], "broker": key[1], "here": here, "rocketmq": there}


def _differing_topics(ours: dict[str, str], theirs: RocketmqNamesrv, topics: list[str]) -> Iterator[Row]:
    for topic in topics:
        route = theirs.route(topic)
        here, there = ours.get(topic, "no route"), "no route" if route is None else in_short(route)
        if here != there:
            yield {"topic": topic, "here": here, "rocketmq": there}
