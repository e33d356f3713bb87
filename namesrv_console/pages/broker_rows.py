"""The brokers of a fleet as rows of the page: how each is, and which of them somebody wants to see, in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from namesrv_console.fleet.observation import BrokerKey, Observation

LATE_SHARE = 0.5
"""A broker that has used up this share of its timeout is shown as late: its agent has missed registrations."""

PAGE = 50
"""Brokers in a page of the list."""

OPEN_ROWS = 60
"""Brokers that an overview shows in all; the clusters after that are folded."""

CLUSTER_ROWS = 20
"""Brokers that an overview shows of a cluster. One that has more begins folded, unless it is the only one."""

MOST_CLUSTERS = 300
"""Clusters that an overview names."""

SEVERITY = ("left", "unconfirmed", "late", "partly", "live")
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
    return [_row(key, seen, shown, now_millis) for key in keys]


def key_of(row: Json) -> BrokerKey:
    """The broker that a row is about."""
    return BrokerKey(row["cluster"], row["broker"], row["id"], row["addr"])


def _row(key: BrokerKey, seen: Sequence[Observation], shown: Sequence[int], now_millis: int) -> Json:
    having = [(index, tables) for index in shown if (tables := seen[index].tables) and key in tables.lives]
    latest = max((tables for _, tables in having), key=lambda tables: tables.heard_at(key))
    live, heard_at = latest.lives[key], latest.heard_at(key)
    unconfirmed = all(tables.lives[key].unconfirmed for _, tables in having)
    late = now_millis - heard_at > live.heartbeat_timeout_millis * LATE_SHARE
    state = "unconfirmed" if unconfirmed else "late" if late else "partly" if len(having) < len(shown) else "live"
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
        "timeout": live.heartbeat_timeout_millis,
        "channel": live.has_channel,
        "topicsVersion": reported.version if reported else live.data_version.counter,
    }


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
    return {"matched": len(found), "start": start, "pageSize": PAGE, "brokers": found[start : start + PAGE]}


def clusters(rows: Sequence[Json], wanted: Wanted, unfolded: frozenset[str], folded: frozenset[str]) -> Json:
    """The clusters with their first brokers, as an overview shows them.

    Args:
        rows: All brokers.
        wanted: Which of them.
        unfolded: Clusters that somebody opened.
        folded: Clusters that somebody folded.
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
