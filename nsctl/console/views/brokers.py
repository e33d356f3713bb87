"""The brokers of a fleet as rows, one group in full, and brokers that came and left a moment ago."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, NamedTuple, cast

from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.grpc_errors import CallError
from groundwork.topic_names import kind_of, listing_order
from nsctl.compare import BrokerKey
from nsctl.console.observer import Fleet, Observation, Observer, Tables
from nsctl.console.views.journal import journal, problem_json
from nsctl.health import LATE_SHARE, registered_by
from nsctl.output import queues_row

# The brokers of a fleet as rows of the page: how each is, and which of them somebody wants to see, in which order.

BROKERS_PAGE = 50
"""Brokers in a page of the list."""

OPEN_ROWS = 60
"""Brokers that an overview shows in all; the clusters after that are folded."""

CLUSTER_ROWS = 20
"""Brokers that an overview shows of a cluster. One that has more begins folded, unless it is the only one."""

MOST_CLUSTERS = 300
"""Clusters that an overview names."""

SEVERITY = ("left", "unconfirmed", "doubted", "late", "partly", "live")
"""States, the worst first. Whoever is not live is unhealthy."""

Json = dict[str, Any]


def answering(seen: Sequence[Observation]) -> tuple[bool, list[int]]:
    """Whether no name server answers, and the numbers of those whose tables count."""
    stale = not any(view.reachable for view in seen)
    return stale, [index for index, view in enumerate(seen) if view.tables and (stale or view.reachable)]


def broker_rows(seen: Sequence[Observation], now_millis: int) -> list[Json]:
    """A row for each broker that a name server holds, by cluster, name and id.

    While a name server answers, what others said before they became unreachable says nothing about brokers.
    """
    _, shown = answering(seen)
    keys = sorted({key for index in shown if (tables := seen[index].tables) for key in tables.lives})
    return [_broker_row(key, seen, shown, now_millis) for key in keys]


def key_of(row: Json) -> BrokerKey:
    """The broker that a row is about."""
    return BrokerKey(row["cluster"], row["broker"], row["id"], row["addr"])


def _broker_row(key: BrokerKey, seen: Sequence[Observation], shown: Sequence[int], now_millis: int) -> Json:
    having = [(index, tables) for index in shown if (tables := seen[index].tables) and key in tables.lives]
    latest = max((tables for _, tables in having), key=lambda tables: tables.heard_at(key))
    live, heard_at = latest.lives[key], latest.heard_at(key)
    unconfirmed = all(tables.lives[key].unconfirmed for _, tables in having)
    late = now_millis - heard_at > live.heartbeat_timeout_millis * LATE_SHARE
    doubt_ends = [_doubt_ends_at(key, tables) for _, tables in having]
    doubted = all(ends is not None for ends in doubt_ends)
    if unconfirmed or doubted:
        state = "unconfirmed" if unconfirmed else "doubted"
    else:
        state = "late" if late else "partly" if len(having) < len(shown) else "live"
    reported = latest.reported.get(key)
    there = {index for index, _ in having}
    return {
        "cluster": key.cluster,
        "broker": key.broker,
        "id": key.id,
        "addr": key.addr,
        "state": state,
        "missingAt": [index for index in shown if index not in there],
        "heardAt": heard_at,
        "doubtEndsAt": max(ends for ends in doubt_ends if ends is not None) if doubted else None,
        "timeout": live.heartbeat_timeout_millis,
        "channel": live.has_channel,
        "topicsVersion": reported.version if reported else live.data_version.counter,
    }


def _doubt_ends_at(key: BrokerKey, tables: Tables) -> int | None:
    """When a broker leaves that a name server doubts, by the console's clock; None if it does not doubt it."""
    live = tables.lives[key]
    if not live.HasField("doubt_ends_at_millis"):
        return None
    return tables.read_at_millis + live.doubt_ends_at_millis - tables.taken_at_millis


def _by_name(row: Json) -> tuple[Any, ...]:
    return (row["cluster"], row["broker"], row["id"], row["addr"])


_ORDERS: dict[str, Callable[[Json], Any]] = {
    "broker": lambda row: (row["broker"], row["cluster"], row["id"], row["addr"]),
    "role": lambda row: row["id"],
    "addr": lambda row: row["addr"],
    "state": lambda row: SEVERITY.index(row["state"]),
    "heard": lambda row: row["heardAt"],
    "version": lambda row: row["topicsVersion"],
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which brokers, in which order."""

    contains: str = ""
    """Only those with this in their cluster, name, address or state, in whatever case."""
    unhealthy: bool = False
    """Only those that are not live."""
    cluster: str = ""
    """Only those of this cluster; empty: of all."""
    order: str = ""
    """A column, with ``-`` before it for the other way round; empty or unknown: by name."""

    def of(self, rows: Iterable[Json]) -> list[Json]:
        """Those of the rows that are wanted, sorted."""
        text = self.contains.casefold()
        found = sorted((row for row in rows if self._has(row, text)), key=_by_name)
        order = _ORDERS.get(self.order.removeprefix("-"))
        return found if order is None else sorted(found, key=order, reverse=self.order.startswith("-"))

    def _has(self, row: Json, text: str) -> bool:
        if (self.cluster and row["cluster"] != self.cluster) or (self.unhealthy and row["state"] == "live"):
            return False
        return not text or any(text in row[field].casefold() for field in ("cluster", "broker", "addr", "state"))


def page(rows: Sequence[Json], wanted: Wanted, start: int) -> Json:
    """A page of the list of brokers."""
    found = wanted.of(rows)
    return {
        "matched": len(found),
        "start": start,
        "pageSize": BROKERS_PAGE,
        "brokers": found[start : start + BROKERS_PAGE],
    }


def clusters(rows: Sequence[Json], wanted: Wanted, unfolded: frozenset[str], folded: frozenset[str]) -> Json:
    """The clusters with their first brokers, as an overview shows them.

    Args:
        unfolded: Clusters that somebody opened.
    """
    matching: dict[str, list[Json]] = {}
    for row in wanted.of(rows):
        matching.setdefault(row["cluster"], []).append(row)
    whole = {name: list(members) for name, members in groupby(sorted(rows, key=_by_name), lambda row: row["cluster"])}
    left, told = OPEN_ROWS, []
    for name in sorted(matching)[:MOST_CLUSTERS]:
        found = matching[name]
        begins_open = len(matching) == 1 or (len(found) <= min(left, CLUSTER_ROWS))
        is_open = name in unfolded or (begins_open and name not in folded)
        shown = found[:CLUSTER_ROWS] if is_open else []
        left -= len(shown)
        told.append(_cluster(name, whole[name], len(found), shown) | {"open": is_open})
    return {
        "clusters": told,
        "more": max(0, len(matching) - MOST_CLUSTERS),
        "total": len(rows),
        "matched": sum(map(len, matching.values())),
        "unhealthy": sum(row["state"] != "live" for row in rows),
    }


def _cluster(name: str, members: Sequence[Json], matched: int, shown: Sequence[Json]) -> Json:
    states = Counter(row["state"] for row in members)
    there = [row for row in members if row["state"] != "left"]
    return {
        "name": name,
        "brokers": len(there),
        "groups": len({row["broker"] for row in there}),
        "states": {state: states[state] for state in SEVERITY if states[state] and state != "live"},
        "matched": matched,
        "rows": list(shown),
    }


# One broker group: its topics, who registers its brokers, and what happened to it.

TOPICS_PAGE = 100
"""Topics in a page."""

HISTORY = 10
"""Entries of the journal on the page."""

KEPT = 8
"""Groups whose topics are kept: those that somebody looks at now."""

LEAST_AGE_SECONDS = 5.0
"""A group's topics are not read again before that, however often they change: a name server sends its whole table."""


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
            "registeredBy": registered_by((one["cause"], one["caller"], one["summary"]) for one in entries),
        }

    async def _page_of_topics(self, group: GroupKey, contains: str, start: int) -> Json:
        try:
            found = await self._topics(group)
        except CallError as error:
            return {"problem": problem_json(error)}
        if found is None:
            return {"at": None, "total": 0, "matched": 0, "start": 0, "pageSize": TOPICS_PAGE, "rows": []}
        rows = [row for row in found.rows if contains in row["topic"].casefold()]
        return {
            "at": found.at,
            "total": len(found.rows),
            "matched": len(rows),
            "start": start,
            "pageSize": TOPICS_PAGE,
            "rows": rows[start : start + TOPICS_PAGE],
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
            rows += [_topic_row(topic.topic, queues) for queues in topic.queue_datas if group == _group_of(queues)]
    return tuple(sorted(rows, key=lambda row: listing_order(row["topic"], group)))


def _group_of(queues: route_data_pb2.QueueData) -> GroupKey:
    return GroupKey(queues.cluster_name, queues.broker_name)


def _topic_row(topic: str, queues: route_data_pb2.QueueData) -> Json:
    return {"topic": topic, "kind": kind_of(topic, _group_of(queues)), **queues_row(queues)}


# Brokers that came and left a moment ago: shown and read out, whoever looks.

SHOWN_MILLIS = 60_000
"""How long a broker that left is still shown."""

MOST_LEFT = 2_000
"""Brokers that left, at most: enough for a fleet, and the journal has all."""

NAMED = 3
"""Brokers that are named; more are counted."""

NEWS = 20
"""Sentences that are kept."""


class Movements:
    """Compares what is there now with what was there before."""

    def __init__(self) -> None:
        self._before: dict[BrokerKey, Json] | None = None
        self._left: dict[BrokerKey, Json] = {}
        self._news: deque[Json] = deque(maxlen=NEWS)
        self._told = 0

    def note(self, seen: Sequence[Observation], rows: Sequence[Json], now_millis: int) -> list[Json]:
        """Takes the brokers that are there now; returns those that left within the last minute, as rows.

        While a name server has not been asked yet, or none answers, nobody can say that a broker came or left.
        """
        present = {key_of(row): row for row in rows}
        begin = now_millis - SHOWN_MILLIS
        self._left = {
            key: row
            for key, row in self._left.items()
            if key not in present and begin <= row["leftAt"] <= now_millis  # later: the clock was set back
        }
        if all(view.asked for view in seen) and any(view.reachable for view in seen):
            if self._before is not None:
                self._compare(self._before, present, now_millis)
            self._before = present
        return list(self._left.values())

    def news(self) -> list[Json]:
        """Sentences about what came and left last, oldest first, numbered."""
        return list(self._news)

    def _compare(self, before: dict[BrokerKey, Json], after: dict[BrokerKey, Json], now_millis: int) -> None:
        gone = [key for key in before if key not in after]
        for key in islice(gone, max(0, MOST_LEFT - len(self._left))):
            self._left[key] = before[key] | {"state": "left", "leftAt": now_millis, "missingAt": []}
        self._tell(gone, "left")
        self._tell([key for key in after if key not in before], "came")

    def _tell(self, keys: Sequence[BrokerKey], verb: str) -> None:
        told = [f"{key.broker} ({key.addr}) of {key.cluster} {verb}" for key in keys]
        for text in told if len(told) <= NAMED else [f"{len(told):,} brokers {verb}"]:
            self._told += 1
            self._news.append({"number": self._told, "text": text})
