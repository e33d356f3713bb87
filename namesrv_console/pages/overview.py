"""The overview of the fleet that the page shows, made from what was observed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from namesrv_api.v1 import admin_service_pb2

from namesrv_console.fleet.observation import BrokerKey, Observation
from namesrv_console.pages.differences import Difference, SettledDifferences
from namesrv_console.pages.journal import caller_words, entry_json, merged

LATE_SHARE = 0.5
"""A broker that has used up this share of its timeout is shown as late: its agent has missed registrations."""

LATEST_SHOWN = 12
"""Entries of the journal in the overview."""

MOST_DIFFERENCES = 500
"""Differences that are shown: enough to see what is wrong."""

Json = dict[str, Any]


def overview(seen: Sequence[Observation], settled: SettledDifferences, now_millis: int) -> Json:
    """The whole fleet. Times are by our clock, milliseconds since the Unix epoch.

    While a name server answers, what others said before they became unreachable says nothing about brokers. If none
    answers, what they said last is shown and marked as stale.
    """
    stale = not any(view.reachable for view in seen)
    shown = [index for index, view in enumerate(seen) if view.tables and (stale or view.reachable)]
    keys = sorted({key for index in shown for key in _lives(seen[index])})
    found = settled.of(seen, now_millis)
    return {
        "madeAt": now_millis,
        "stale": stale and all(view.asked for view in seen),
        "servers": [_server(view) for view in seen],
        "brokers": [_broker(key, seen, shown, now_millis) for key in keys],
        "intents": _intents(seen, shown),
        "differences": [_difference(difference, since) for difference, since in found[:MOST_DIFFERENCES]],
        "differenceCount": len(found),
        "latest": merged(entry_json(entry, index) for index in shown for entry in seen[index].latest)[:LATEST_SHOWN],
    }


def _lives(view: Observation) -> Sequence[BrokerKey]:
    return tuple(view.tables.lives) if view.tables else ()


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


def _broker(key: BrokerKey, seen: Sequence[Observation], shown: Sequence[int], now_millis: int) -> Json:
    having = [(index, tables) for index in shown if (tables := seen[index].tables) and key in tables.lives]
    latest = max((tables for _, tables in having), key=lambda tables: tables.heard_at(key))
    live, heard_at = latest.lives[key], latest.heard_at(key)
    unconfirmed = all(tables.lives[key].unconfirmed for _, tables in having)
    late = now_millis - heard_at > live.heartbeat_timeout_millis * LATE_SHARE
    state = "unconfirmed" if unconfirmed else "late" if late else "partly" if len(having) < len(shown) else "live"
    reported = latest.reported.get(key)
    return {
        "cluster": key.cluster,
        "broker": key.broker,
        "id": key.id,
        "addr": key.addr,
        "state": state,
        "missingAt": [index for index in shown if index not in {having_index for having_index, _ in having}],
        "heardAt": heard_at,
        "timeout": live.heartbeat_timeout_millis,
        "channel": live.has_channel,
        "topicsVersion": reported.version if reported else live.data_version.counter,
    }


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
