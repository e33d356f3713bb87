"""Questions that a viewer asks and that are passed on: a topic's route, the journal."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from google.protobuf.message import Message
from namesrv_api.v1 import admin_service_pb2, route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.grpc_errors import CallError
from groundwork.namesrv_client import Calls
from namesrv_console.fleet.fleet import Fleet
from namesrv_console.pages.journal import Entry, cut_at, entry_json, merged

JOURNAL_PAGE = 50
"""Entries that are asked of each name server for one page: what somebody reads before asking for more."""

Json = dict[str, Any]


def problem_json(error: CallError) -> Json:
    """A failed call as the page gets it."""
    return {"reason": error.reason, "message": error.error.message, "unreachable": error.unreachable}


async def route(fleet: Fleet, topic: str) -> list[Json]:
    """A topic's route, and why it is so, at each name server."""

    async def ask(server: Calls) -> Json:
        answers = await asyncio.gather(
            _unless_refused(server, "GetTopicRoute", pb.GetTopicRouteRequest(topic=topic)),
            _unless_refused(server, "ExplainTopicRoute", admin_service_pb2.ExplainTopicRouteRequest(topic=topic)),
        )
        found, why = answers
        told: Json = {"explanations": []}
        if isinstance(why, admin_service_pb2.ExplainTopicRouteResponse):
            told["explanations"] = [_explanation(row) for row in why.explanations]
        if isinstance(found, pb.GetTopicRouteResponse):
            return told | {"revision": found.header.revision, **_route(found.route)}
        return told | {"problem": problem_json(cast("CallError", found))}

    return [
        {"problem": problem_json(answer)} if isinstance(answer, CallError) else answer
        for answer in await fleet.each(ask)
    ]


async def journal(
    fleet: Fleet, topic: str | None, broker: str | None, before_millis: int | None
) -> tuple[list[Entry], int | None, list[Json | None]]:
    """A page of all journals as one.

    Returns:
        The entries, newest first; what to pass as ``before_millis`` for the next page, None after the last; and what
        went wrong at each name server, None where nothing did.
    """
    request = admin_service_pb2.ListAuditEntriesRequest(
        topic=topic, broker_name=broker, to_millis=before_millis, page_size=JOURNAL_PAGE
    )
    answers = await fleet.each(lambda server: server.call("ListAuditEntries", request))
    entries: list[Entry] = []
    whole_after = 0
    for index, answer in enumerate(answers):
        if isinstance(answer, admin_service_pb2.ListAuditEntriesResponse):
            entries += [entry_json(entry, index) for entry in answer.entries]
            if answer.next_page_token and answer.entries:
                whole_after = max(whole_after, answer.entries[-1].applied_at_millis)
    complete, before = cut_at(entries, whole_after)
    problems = [problem_json(answer) if isinstance(answer, CallError) else None for answer in answers]
    return merged(complete), before, problems


async def _unless_refused(server: Calls, name: str, request: Message) -> Message | CallError:
    """The answer, or the refusal; raises CallError if the name server cannot be reached."""
    try:
        return await server.call(name, request)
    except CallError as error:
        if error.unreachable and error.error.reason != "REGISTRY_WARMING":
            raise
        return error


def _route(found: route_data_pb2.TopicRouteData) -> Json:
    groups = {(group.cluster_name, group.broker_name): group for group in found.broker_datas}
    return {
        "order": found.order_topic_conf if found.HasField("order_topic_conf") else None,
        "groups": [
            _group(queues, groups.get((queues.cluster_name, queues.broker_name))) for queues in found.queue_datas
        ],
    }


def _group(queues: route_data_pb2.QueueData, group: route_data_pb2.BrokerData | None) -> Json:
    unconfirmed = set(group.unconfirmed_broker_ids) if group else set()
    return {
        "cluster": queues.cluster_name,
        "broker": queues.broker_name,
        "read": queues.read_queue_nums,
        "write": queues.write_queue_nums,
        "perm": queues.perm,
        "reportedPerm": queues.reported_perm if queues.HasField("reported_perm") else None,
        "zone": group.zone_name if group and group.HasField("zone_name") else None,
        "addrs": [
            {"id": addr.broker_id, "addr": addr.broker_addr, "unconfirmed": addr.broker_id in unconfirmed}
            for addr in (group.broker_addrs if group else ())
        ],
    }


def _explanation(row: admin_service_pb2.RouteExplanation) -> Json:
    return {
        "cluster": row.cluster_name,
        "broker": row.broker_name,
        "inRoute": row.in_route,
        "since": row.since_millis if row.HasField("since_millis") else None,
        "text": row.explanation,
    }
