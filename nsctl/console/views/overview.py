"""The overview of a fleet, and the differences between its name servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nsctl.compare import Difference, IntentKey, differences, in_force, intent_key
from nsctl.console.observer import Observation
from nsctl.console.views.brokers import answering
from nsctl.console.views.journal import caller_words, entry_json, merged
from nsctl.output import row

# Differences between name servers, and since when.

SETTLED_MILLIS = 5_000
"""A difference that is younger is not shown: a broker registers with one name server after the other, and they are not
read at the same moment."""


def found_differences(seen: Sequence[Observation]) -> list[Difference]:
    """What differs between the name servers that answer: brokers, then intents."""
    tables = [view.tables if view.reachable else None for view in seen]
    brokers = differences([None if one is None else one.reported for one in tables])
    intents = [None if one is None else in_force(one.intents) for one in tables]
    return brokers + differences(intents, "not in force")


class SettledDifferences:
    """The differences that have been there for some time. Knows when it saw each for the first time."""

    def __init__(self) -> None:
        self._since: dict[tuple[object, ...], int] = {}

    def of(self, seen: Sequence[Observation], now_millis: int) -> list[tuple[Difference, int]]:
        """What differs, each with when that was seen first, milliseconds since the Unix epoch."""
        found = found_differences(seen)
        # No later than now: a clock that was set back would hide the difference until it has caught up.
        self._since = {one.subject: min(self._since.get(one.subject, now_millis), now_millis) for one in found}
        with_time = [(one, self._since[one.subject]) for one in found]
        return [(one, since) for one, since in with_time if now_millis - since >= SETTLED_MILLIS]


# What the page shows of the fleet everywhere, made from what was observed; its brokers are in ``brokers``.

LATEST_SHOWN = 4
"""Entries of the journal in the overview."""

GROUPS_NAMED = 8
"""Groups that the guard holds, by name; the others are counted."""

MOST_DIFFERENCES = 500
"""Differences that are shown: enough to see what is wrong."""

Json = dict[str, Any]


def overview(seen: Sequence[Observation], rows: Sequence[Json], settled: SettledDifferences, now_millis: int) -> Json:
    """The whole fleet but for its brokers. Times are by our clock, milliseconds since the Unix epoch.

    If no name server answers, what they said last is shown and marked as stale.

    Args:
        seen: What is known of each name server.
    """
    stale, shown = answering(seen)
    found = settled.of(seen, now_millis)
    return {
        "stale": stale and all(view.asked for view in seen),
        "servers": [_server(view) for view in seen],
        "guard": _guard(seen, shown),
        "figures": _figures(seen, rows, stale=stale),
        "intents": _intents(seen, shown),
        "differences": [_difference(difference, since) for difference, since in found[:MOST_DIFFERENCES]],
        "differenceCount": len(found),
        "latest": merged(entry_json(entry, index) for index in shown for entry in seen[index].latest)[:LATEST_SHOWN],
    }


def _guard(seen: Sequence[Observation], shown: Sequence[int]) -> Json | None:
    """What the mass-loss guard holds, at all name servers together; None if it holds nothing."""
    servers, brokers, ends = [], 0, []
    groups: set[tuple[str, str]] = set()
    for index in shown:
        status, tables = seen[index].status, seen[index].tables
        if status is None or tables is None or not status.guard_tripped:
            continue
        held = [key for key, live in tables.lives.items() if live.unconfirmed]
        servers.append(index)
        brokers = max(brokers, status.guarded_broker_count or len(held))  # an older name server does not count them
        groups.update((key.cluster, key.broker) for key in held)
        if status.HasField("guard_ends_at_millis"):
            ends.append(status.guard_ends_at_millis)
    if not servers:
        return None
    return {
        "servers": servers,
        "brokers": brokers,
        "groupCount": len(groups),
        "groups": [{"cluster": cluster, "broker": broker} for cluster, broker in sorted(groups)[:GROUPS_NAMED]],
        "endsAt": max(ends, default=None),
    }


def _figures(seen: Sequence[Observation], rows: Sequence[Json], *, stale: bool) -> Json:
    counts = [view.status.topic_count for view in seen if view.status is not None and (stale or view.reachable)]
    return {
        "clusters": len({row["cluster"] for row in rows}),
        "groups": len({(row["cluster"], row["broker"]) for row in rows}),
        "brokers": len(rows),
        "topics": max(counts, default=0),
    }


def _server(view: Observation) -> Json:
    told: Json = {} if view.status is None else row(view.status)
    told |= {
        "endpoint": str(view.endpoint),
        "name": view.name,
        "state": _state(view),
        "problem": view.problem,
        "refusal": view.refusal,
        "answeredAt": view.answered_at_millis,
        "loopLagMillis": view.loop_lag_millis,
    }
    if view.tables:
        told["clockAhead"] = view.tables.taken_at_millis - view.tables.read_at_millis
    return told


def _state(view: Observation) -> str:
    if not view.asked:
        return "connecting"
    if not view.reachable:
        return "unreachable"
    assert view.status is not None
    return "ready" if view.status.warm else "warming"


def _intents(seen: Sequence[Observation], shown: Sequence[int]) -> list[Json]:
    found: dict[IntentKey, Json] = {}
    for index in shown:
        tables = seen[index].tables
        for intent in tables.intents if tables else ():
            told = {**row(intent), "caller": caller_words(intent.caller), "servers": []}
            found.setdefault(intent_key(intent), told)["servers"].append(index)
    return list(found.values())


def _difference(difference: Difference, since: int) -> Json:
    return {**difference.subject._asdict(), "said": difference.said, "since": since}
