"""The overview of a fleet, and the differences between its name servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from namesrv_api.v1 import admin_service_pb2

from nsctl.console.observer import BrokerKey, Observation, Tables
from nsctl.console.views.brokers import answering
from nsctl.console.views.journal import caller_words, entry_json, merged

# Differences between name servers, and since when.

SETTLED_MILLIS = 5_000
"""A difference that is younger is not shown: a broker registers with one name server after the other, and they are not
read at the same moment."""


class Difference(NamedTuple):
    """Something that is not the same everywhere."""

    kind: str
    """``broker`` or ``intent``."""
    subject: tuple[str, ...]
    """Which one, in words that are shown one after the other."""
    said: tuple[str | None, ...]
    """What each name server says, in the order they were named; None of one that is not compared."""


def differences(seen: Sequence[Observation]) -> list[Difference]:
    """What differs between the name servers that answer; nothing if fewer than two do."""
    tables = [view.tables if view.reachable else None for view in seen]
    if sum(table is not None for table in tables) < 2:
        return []
    brokers = sorted({key for table in tables if table for key in table.lives})
    intents = sorted({subject for table in tables if table for subject in map(_subject, table.intents)})
    found = [
        Difference("broker", _broker_words(key), tuple(_broker_said(table, key) for table in tables)) for key in brokers
    ]
    found += [
        Difference("intent", subject, tuple(_intent_said(table, subject) for table in tables)) for subject in intents
    ]
    return [difference for difference in found if len(set(difference.said) - {None}) > 1]


class SettledDifferences:
    """The differences that have been there for some time. Knows when it saw each for the first time."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, tuple[str, ...]], int] = {}

    def of(self, seen: Sequence[Observation], now_millis: int) -> list[tuple[Difference, int]]:
        """What differs, each with when that was seen first, milliseconds since the Unix epoch."""
        found = differences(seen)
        self._since = {
            # No later than now: a clock that was set back would hide the difference until it has caught up.
            key: min(self._since.get(key, now_millis), now_millis)
            for key in ((difference.kind, difference.subject) for difference in found)
        }
        with_time = [(difference, self._since[difference.kind, difference.subject]) for difference in found]
        return [(difference, since) for difference, since in with_time if now_millis - since >= SETTLED_MILLIS]


INTENT_WORDS: Mapping[int, str] = {
    admin_service_pb2.Intent.KIND_WIPE_WRITE_PERM: "drain",
    admin_service_pb2.Intent.KIND_ADD_WRITE_PERM: "write permission given",
    admin_service_pb2.Intent.KIND_TOPIC_HOLD: "topic hold",
}
"""Kinds of intent in words for people."""


def _broker_words(key: BrokerKey) -> tuple[str, ...]:
    return (key.broker, f"id {key.id}", key.addr, f"of {key.cluster}")


def _broker_said(table: Tables | None, key: BrokerKey) -> str | None:
    if table is None:
        return None
    live = table.lives.get(key)
    if live is None:
        return "not there"
    reported = table.reported.get(key)
    content = f"version {reported.version}, content {reported.digest.hex()[:8]}" if reported else "there"
    return f"{content}, unconfirmed" if live.unconfirmed else content


def _subject(intent: admin_service_pb2.Intent) -> tuple[str, ...]:
    what = intent.topic or intent.broker_name
    where = f"of {intent.cluster_name}" if intent.HasField("cluster_name") else "of every cluster"
    return (INTENT_WORDS.get(intent.kind, "intent"), what, where)


def _intent_said(table: Tables | None, subject: tuple[str, ...]) -> str | None:
    if table is None:
        return None
    return "in force" if any(_subject(intent) == subject for intent in table.intents) else "not in force"


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
        "madeAt": now_millis,
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
    status = view.status
    told: Json = {
        "endpoint": str(view.endpoint),
        "name": view.name,
        "state": _state(view),
        "problem": view.problem,
        "refusal": view.refusal,
        "answeredAt": view.answered_at_millis,
    }
    if status is not None:
        told |= {
            "version": status.version,
            "epoch": status.header.epoch,
            "revision": status.header.revision,
            "brokers": status.live_broker_count,
            "unconfirmed": status.unconfirmed_broker_count,
            "topics": status.topic_count,
            "guard": status.guard_tripped,
            "leader": status.replica.leader,
            "leaderLost": status.replica.problem,
            "loopLag": round(status.loop_lag_millis, 1),
            "startedAt": status.started_at_millis,
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
    found: dict[tuple[object, ...], Json] = {}
    for index in shown:
        tables = seen[index].tables
        for intent in tables.intents if tables else ():
            cluster = intent.cluster_name if intent.HasField("cluster_name") else None
            key = (intent.kind, cluster, intent.broker_name, intent.topic)
            row = found.setdefault(key, _intent(intent, cluster))
            row["servers"].append(index)
    return list(found.values())


def _intent(intent: admin_service_pb2.Intent, cluster: str | None) -> Json:
    return {
        "kind": admin_service_pb2.Intent.Kind.Name(intent.kind).removeprefix("KIND_"),
        "cluster": cluster,
        "broker": intent.broker_name,
        "topic": intent.topic,
        "since": intent.since_millis,
        "until": intent.ends_at_millis if intent.HasField("ends_at_millis") else None,
        "caller": caller_words(intent.caller),
        "comment": intent.comment,
        "servers": [],
    }


def _difference(difference: Difference, since: int) -> Json:
    return {"kind": difference.kind, "subject": difference.subject, "said": difference.said, "since": since}
