"""Fixtures of agents."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from broker_agent.settings import AgentSettings
from tests.support.fakes.registering_name_server import FakeNameServer
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import TOPICS

StartNameServer = Callable[..., FakeNameServer]
MakeSettings = Callable[..., AgentSettings]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("broker-agent"):
            thread.join(TIMEOUT)
            assert not thread.is_alive(), f"{thread.name} is left"


@pytest.fixture
def name_server() -> Iterator[StartNameServer]:
    """Starts fake name servers; all are stopped after the test."""
    with ExitStack() as servers:
        yield lambda *args, **kwargs: servers.enter_context(FakeNameServer(*args, **kwargs))


@pytest.fixture
def settings() -> MakeSettings:
    """Settings of a master; arguments replace fields."""

    def make(*name_servers: FakeNameServer, **changes: Any) -> AgentSettings:
        values: dict[str, Any] = {
            "broker_name": "broker-a",
            "broker_id": 0,
            "broker_addr": "10.0.0.1:10911",
            "namesrv": [str(server.endpoint) for server in name_servers] or ["127.0.0.1:9876"],
            "topics": TOPICS,
            "listen": "127.0.0.1:0",
            "probe": "none",
        }
        return AgentSettings.load(None, values | changes)

    return make
