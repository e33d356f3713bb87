"""Fixtures of the sessions: a name server of the contract in this process, and nothing left behind."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from tests.integration.route_client.sessions import TOPIC
from tests.support.fakes.watched_name_server import FakeNameServer
from tests.support.programs.processes import eventually
from tests.support.routes.wire_routes import wire_route


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
