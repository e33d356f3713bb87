"""Invariants of read-only copies: each says what its leader said at that revision, and how far behind it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from namesrv_api.v1 import route_data_pb2

from namesrv.replica.leader_stream import SILENCE_SECONDS
from tests.faults.fleet.fleet import REPLICAS, STALE_SECONDS
from tests.faults.history import Record, of_kind
from tests.faults.invariants.answers import Answer, leader_of
from tests.faults.invariants.ends import AGREE_SECONDS
from tests.faults.invariants.timeline import Timeline

LATE_SECONDS = 2.0
"""Between a fault's record and its begin, or a change and its show in a status, on a busy machine."""

Revision = tuple[str, str, int]
"""Leader, epoch and revision."""


def check_same(records: list[Record], timeline: Timeline) -> Iterator[str]:
    """At each revision a copy has the routes that its leader had, and denies nothing while its leader is warming up."""
    leaders: dict[Revision, Mapping[str, route_data_pb2.TopicRouteData]] = {}
    warming: dict[tuple[str, str], float] = defaultdict(float)
    for answer in timeline.answers:
        if answer.server not in REPLICAS:
            leaders.setdefault(_revision(answer), _routes(answer))
            if answer.message.topics_warming:
                warming[_revision(answer)[:2]] = answer.began
    for answer in timeline.answers:
        revision = _revision(answer)
        if answer.server not in REPLICAS:
            continue
        wrong = _different(_routes(answer), leaders.get(revision, _routes(answer)))
        if wrong:
            yield f"same: {wrong} are not those of {revision[0]} at that revision: {answer.where}"
        if answer.message.topics_not_found and answer.ended < warming[revision[:2]]:
            denied = list(answer.message.topics_not_found)
            yield f"same: {denied} are denied while {revision[0]} warms up: {answer.where}"


def _revision(answer: Answer) -> Revision:
    return leader_of(answer.server), answer.message.header.epoch, answer.message.header.revision


def _routes(answer: Answer) -> dict[str, route_data_pb2.TopicRouteData]:
    return {row.topic: row.route for row in answer.message.routes}


def _different(
    held: Mapping[str, route_data_pb2.TopicRouteData], wanted: Mapping[str, route_data_pb2.TopicRouteData]
) -> list[str]:
    return sorted(topic for topic in held.keys() | wanted.keys() if held.get(topic) != wanted.get(topic))


def check_behind(records: list[Record], timeline: Timeline) -> Iterator[str]:
    """A copy that cannot hear its leader says so, and how old it is; one that hears it can be relied on again."""
    for record in of_kind(records, "replica"):
        replica, leader = record["server"], REPLICAS[record["server"]]
        since = timeline.deaf_since(replica, leader, record["began"])
        for problem in _wrong(record, since, timeline, leader):
            yield f"behind: {replica} at {record['at']:.3f} s: {problem}"


def _wrong(record: Record, since: float | None, timeline: Timeline, leader: str) -> Iterator[str]:
    replica, began, behind = record["server"], record["began"], record["behind"]
    if since is None:
        settled = began - AGREE_SECONDS
        heard = timeline.ran(leader, settled, record["at"]) and timeline.was_warm(leader, settled)
        if heard and timeline.was_sound(replica, leader, settled, record["at"]) and not record["ready"]:
            yield f"it is not ready, {behind} s behind, {record['problem']!r}, and nothing was wrong"
        return
    deaf = began - since - LATE_SECONDS
    if behind is not None and behind < deaf:
        yield f"it says that it is {behind} s behind, and has heard nothing since {since:.3f} s"
    if not timeline.ran(replica, began - LATE_SECONDS, began):
        return  # what follows is done by tasks of its own
    if deaf > STALE_SECONDS and record["ready"]:
        yield f"it says that it is ready, and has heard nothing since {since:.3f} s"
    if deaf > SILENCE_SECONDS and (record["connected"] or not record["problem"]):
        yield f"it says that it hears its leader, and has heard nothing since {since:.3f} s"
