"""The command that compares with a name server of RocketMQ, for who runs both side by side."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import typer
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.endpoints import Endpoint
from groundwork.namesrv_client import NamesrvClient
from nsctl.commands.diff import MOST_DIFFERENCES, all_routes, in_short
from nsctl.exit_codes import FOUND
from nsctl.fleet.rocketmq import RocketmqNamesrv
from nsctl.output import Format, Row
from nsctl.session import Session

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
