"""A producer's or consumer's side as a process of its own: keeps routes with route_client, and says each change.

Usage: ``python -m tests.faults.fleet.client_process ENDPOINTS TOPIC...``.
Each change is a line of JSON on standard error.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from route_client import ClientSettings, KnownRoute, RouteChange, RouteClient

LONGEST_LIFE_SECONDS = 4 * 3600.0
"""It ends by then even if the program that started it has ended."""
SETTINGS = ClientSettings(hold_seconds=5.0, poll_seconds=5.0)


def told(change: RouteChange) -> dict[str, Any]:
    """What a history keeps of a change."""
    removals = [
        {"group": removal.key.broker_name, "id": removal.broker_id, "reason": removal.reason_name}
        for removal in change.removals
    ]
    before = _known(change.before) if change.before else None
    return {"topic": change.topic, "before": before, "after": _known(change.after), "removals": removals}


def _known(known: KnownRoute) -> dict[str, Any]:
    groups = {}
    if known.route is not None:
        groups = {group.broker_name: list(group.broker_addrs) for group in known.route.broker_datas}
    origin = f"{known.origin.namesrv_name} {known.origin.epoch}" if known.origin else None
    stale = known.stale.value if known.stale else None
    route = None if known.route is None else repr(known.route)
    return {"groups": groups, "route": route, "stale": stale, "origin": origin, "revision": known.revision}


def _say(event: str, **fields: object) -> None:
    sys.stderr.write(json.dumps({"event": event, "wall": time.time(), **fields}) + "\n")
    sys.stderr.flush()


def main(endpoints: str, *topics: str) -> None:
    """Keeps the topics' routes until ended."""
    with RouteClient(endpoints, SETTINGS, topics) as client:
        client.on_change(lambda change: _say("told", told=told(change)))
        _say("client_started")
        threading.Event().wait(LONGEST_LIFE_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
