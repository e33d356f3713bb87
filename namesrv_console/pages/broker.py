"""One broker group: its topics, who registers its brokers, and what happened to it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple, cast

from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.grpc_errors import CallError
from groundwork.topic_names import TopicKind, kind_of
from namesrv_console.fleet.fleet import Fleet
from namesrv_console.fleet.observer import Observer
from namesrv_console.pages.questions import journal, problem_json

PAGE = 100
"""Topics in a page."""

HISTORY = 10
"""Entries of the journal on the page."""

KEPT = 8
"""Groups whose topics are kept: those that somebody looks at now."""

LEAST_AGE_SECONDS = 5.0
"""A group's topics are not read again before that, however often they change: a name server sends its whole table."""

Json = dict[str, Any]


class GroupKey(NamedTuple):
    """One broker group."""

    cluster: str
    broker: str


class _Topics(NamedTuple):
    """The topics of a group at one name server, at one point of its history."""

    at: int
    """Number of the name server."""
    point: tuple[str, int]
    read_at: float
    rows: tuple[Json, ...]


class BrokerPages:
    """Topics of a group are read when somebody looks at it, again only after a change, and once for all who look."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._known: dict[GroupKey, _Topics] = {}
        self._reading = asyncio.Lock()

    async def page(self, group: GroupKey, contains: str, start: int) -> Json:
        """What there is to say of a group, but for its brokers.

        Args:
            group: Which.
            contains: Only topics whose name has this in it, in whatever case.
            start: How many of them to leave out.
        """
        topics, told = await asyncio.gather(
            self._page_of_topics(group, contains.casefold(), start), journal(self._fleet, None, group.broker, None)
        )
        entries, _, problems = told
        return {
            "topics": topics,
            "history": entries[:HISTORY],
            "historyProblems": problems,
            "registeredBy": _registered_by(entries),
        }

    async def _page_of_topics(self, group: GroupKey, contains: str, start: int) -> Json:
        try:
            found = await self._topics(group)
        except CallError as error:
            return {"problem": problem_json(error)}
        if found is None:
            return {"at": None, "total": 0, "matched": 0, "start": 0, "pageSize": PAGE, "rows": []}
        rows = [row for row in found.rows if contains in row["topic"].casefold()]
        return {
            "at": found.at,
            "total": len(found.rows),
            "matched": len(rows),
            "start": start,
            "pageSize": PAGE,
            "rows": rows[start : start + PAGE],
        }

    async def _topics(self, group: GroupKey) -> _Topics | None:
        """Of the first name server that answers and has the group; None if there is none. Raises CallError."""
        async with self._reading:
            for index, observer in enumerate(self._fleet.observers):
                if _has(observer, group):
                    return await self._topics_at(index, observer, group)
        return None

    async def _topics_at(self, index: int, observer: Observer, group: GroupKey) -> _Topics:
        status, now = observer.seen.status, self._fleet.timing.monotonic()
        assert status is not None, "it has answered"
        point = (status.header.epoch, status.header.revision)
        known = self._known.get(group)
        fresh = known is not None and known.at == index
        if known is not None and fresh and (known.point == point or now - known.read_at < LEAST_AGE_SECONDS):
            return known
        found = _Topics(index, point, now, await _read(observer, group))
        self._known.pop(group, None)
        self._known[group] = found
        for oldest in list(islice(self._known, max(0, len(self._known) - KEPT))):
            del self._known[oldest]
        return found


def _has(observer: Observer, group: GroupKey) -> bool:
    tables = observer.seen.tables
    return observer.seen.reachable and tables is not None and any(group == key[:2] for key in tables.lives)


async def _read(observer: Observer, group: GroupKey) -> tuple[Json, ...]:
    request = pb.StreamRouteSnapshotRequest(tables=[pb.ROUTE_TABLE_TOPIC_QUEUES])
    rows: list[Json] = []
    async for message in observer.server.stream("StreamRouteSnapshot", request):
        for topic in cast("pb.StreamRouteSnapshotResponse", message).chunk.topics:
            rows += [_row(topic.topic, queues) for queues in topic.queue_datas if group == _group_of(queues)]
    # By name alone, `%RETRY%` and `%DLQ%` would come before all that somebody looks for.
    return tuple(sorted(rows, key=lambda row: (row["kind"] != TopicKind.NORMAL, row["topic"])))


def _group_of(queues: route_data_pb2.QueueData) -> GroupKey:
    return GroupKey(queues.cluster_name, queues.broker_name)


def _row(topic: str, queues: route_data_pb2.QueueData) -> Json:
    return {
        "topic": topic,
        "kind": kind_of(topic, _group_of(queues)),
        "read": queues.read_queue_nums,
        "write": queues.write_queue_nums,
        "perm": queues.perm,
        "reportedPerm": queues.reported_perm if queues.HasField("reported_perm") else None,
    }


def _registered_by(entries: Sequence[Json]) -> dict[str, str]:
    """Who registered each address when it last changed something, as far as these entries of a journal reach."""
    found: dict[str, str] = {}
    for entry in reversed(entries):
        if entry["cause"] == "RegisterBroker":
            found |= {mention["addr"]: entry["caller"] for mention in entry["mentions"] if mention.get("addr")}
    return found
