"""A name server of the contract in this process, what clients of it show, and that they leave nothing behind."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from route_client import ClientSettings, KnownRoute, RouteClient, Stale
from tests.support.fakes.watched_name_server import FakeNameServer
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.routes.wire_routes import route, wire_route

TOPIC = "TopicTest"
NOBODY = "127.0.0.1:1"
QUICK = ClientSettings(poll_seconds=0.05, timeout_seconds=5.0)


@pytest.fixture(autouse=True)
def _nothing_is_left(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.ERROR, logger="asyncio"):
        yield
    eventually(lambda: [t.name for t in threading.enumerate() if t.name.startswith("route-client")], lambda t: not t)
    complaints = [record.getMessage() for record in caplog.records if record.name == "asyncio"]
    assert not complaints


@pytest.fixture
def fake() -> Iterator[FakeNameServer]:
    with FakeNameServer() as server:
        server.put(TOPIC, wire_route())
        yield server


class InOrder(random.Random):
    """Has a client begin with the first name server of its list."""

    def shuffle(self, x: object) -> None:
        """Leaves it as it is."""


def watching(client: RouteClient, server: FakeNameServer | NamesrvProcess) -> None:
    eventually(client.status, lambda status: status.mode == "watch" and status.endpoint == server.endpoint)


def shows(client: RouteClient, *groups: str, topic: str = TOPIC, stale: Stale | None = None, **kwargs: Any) -> None:
    """Waits until the client's route has these groups."""

    def matches(known: KnownRoute | None) -> bool:
        return known is not None and known.route == route(*groups, **kwargs) and known.stale == stale

    eventually(lambda: client.cached(topic), matches)
