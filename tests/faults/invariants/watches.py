"""Invariants of watches: the seven promises of WatchTopicRoutes, and what route_client makes of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from google.protobuf import json_format
from namesrv_api.v1 import route_service_pb2 as pb

from tests.faults.history import Record, of_kind
from tests.faults.invariants.timeline import Timeline
from tests.support.routes.watch_validators import Lookup, WatchedStream, check_promises

REALLY_WENT = frozenset(
    {"UNREGISTERED", "BROKER_DOWN", "REPLACED", "NOT_IN_REGISTRATION", "DELETED_BY_OPERATOR", "LOSS_CONFIRMED"}
)
"""Reasons that are somebody's decision: route_client believes them at once."""


def check_watches(records: list[Record], timeline: Timeline) -> Iterator[str]:
    """The seven promises, in each epoch by itself."""
    lookups: dict[str, list[Lookup]] = defaultdict(list)
    for lookup in _changed_lookups(timeline):
        lookups[lookup.epoch].append(lookup)
    for epoch, clients in _lives(records).items():
        try:
            check_promises(clients, lookups[epoch])
        except AssertionError as broken:
            yield f"watches: epoch {epoch}: {broken}"


def _changed_lookups(timeline: Timeline) -> Iterator[Lookup]:
    for answer in timeline.answers:
        if answer.again:
            continue
        header = answer.message.header
        for row in answer.message.routes:
            yield Lookup(header.epoch, header.revision, row.topic, row.route)
        for topic in answer.message.topics_not_found:
            yield Lookup(header.epoch, header.revision, topic, None)


def _lives(records: list[Record]) -> dict[str, list[list[WatchedStream]]]:
    """By epoch, what each watcher had: streams from one that started anew to the last that went on from it."""
    lives: dict[str, list[list[WatchedStream]]] = defaultdict(list)
    streams: dict[tuple[str, int], WatchedStream] = {}
    current: dict[str, list[WatchedStream]] = {}
    for record in of_kind(records, "watch"):
        key = record["watcher"], record["stream"]
        if record["event"] == "opened":
            streams[key] = WatchedStream(json_format.ParseDict(record["request"], pb.WatchTopicRoutesRequest()))
            continue
        stream = streams[key]
        stream.messages.append(json_format.ParseDict(record["message"], pb.WatchTopicRoutesResponse()))
        if len(stream.messages) == 1:  # streams that ended before their first message have no route
            if stream.resumes_after is None or key[0] not in current:
                current[key[0]] = []
                lives[stream.messages[0].header.epoch].append(current[key[0]])
            current[key[0]].append(stream)
    return lives


def check_clients(records: list[Record], timeline: Timeline) -> Iterator[str]:
    """What route_client tells has no gaps, never goes back, and loses a route only by a decision."""
    del timeline
    last: dict[tuple[int, str], dict[str, Any]] = {}
    for record in sorted(of_kind(records, "told"), key=lambda record: float(record["seen_at"])):
        told, client = record["told"], record["client"]
        key, before, after = (record["pid"], told["topic"]), told["before"], told["after"]
        where = f"{client} about {told['topic']} at {record['seen_at']:.3f} s"
        known = last.get(key)
        if known is not None:
            if before is None or (known["route"], known["stale"]) != (before["route"], before["stale"]):
                yield f"clients: a gap, {where}"
            if known["origin"] == after["origin"] and after["revision"] < known["revision"]:
                yield f"clients: revisions went back, {where}"
        if before and before["groups"] and not after["groups"] and not _may_be_lost(told):
            yield f"clients: a route was lost without a reason, {where}"
        last[key] = after


def _may_be_lost(told: dict[str, Any]) -> bool:
    if told["before"]["stale"] == "held":
        return True
    real = [removal for removal in told["removals"] if removal["reason"] in REALLY_WENT]
    brokers = [(group, id_) for group, addrs in told["before"]["groups"].items() for id_, _ in addrs]
    return all(
        any(not removal["group"] or (removal["group"] == group and removal["id"] in {None, id_}) for removal in real)
        for group, id_ in brokers
    )
