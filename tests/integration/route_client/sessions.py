"""Waits for a client's session with a name server."""

from __future__ import annotations

import random
from typing import Any

from route_client import ClientSettings, KnownRoute, RouteClient, Stale
from tests.support.fakes.watched_name_server import FakeNameServer
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.routes.wire_routes import route

TOPIC = "TopicTest"
NOBODY = "127.0.0.1:1"
QUICK = ClientSettings(poll_seconds=0.05, timeout_seconds=5.0)


def first_is(server: FakeNameServer, *others: str) -> tuple[str, random.Random]:
    """A list of name servers, and a random number generator with which the client begins with the first of them."""
    listed = [str(server.endpoint), *others]
    for seed in range(1_000):
        shuffled = list(listed)
        random.Random(seed).shuffle(shuffled)
        if shuffled[0] == listed[0]:
            return ";".join(listed), random.Random(seed)
    raise AssertionError("no such order")


def watching(client: RouteClient, server: FakeNameServer | NamesrvProcess) -> None:
    eventually(client.status, lambda status: status.mode == "watch" and status.endpoint == server.endpoint)


def shows(client: RouteClient, *groups: str, topic: str = TOPIC, stale: Stale | None = None, **kwargs: Any) -> None:
    """Waits until the client's route has these groups."""

    def matches(known: KnownRoute | None) -> bool:
        return known is not None and known.route == route(*groups, **kwargs) and known.stale == stale

    eventually(lambda: client.cached(topic), matches)
