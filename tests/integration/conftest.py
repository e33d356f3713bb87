"""Fixtures of the integration tests: real processes and real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from namesrv_api.v1 import admin_service_pb2 as pb

from tests.support.engines import NATIVE, require_native
from tests.support.programs.processes import Client, NamesrvProcess
from tests.support.registrations import unregister_all
from tests.support.secured.fleet import Place

OPTIONS = ("--scan-not-active-broker-interval-millis", "0", "--shutdown-grace-millis", "500")
"""Of name servers that never scan: whatever leaves does so for another reason than its expiry."""


@pytest.fixture(scope="module")
def engine() -> str:
    """What name servers run on, unless a module has a fixture of its own."""
    require_native()
    return NATIVE


@pytest.fixture(scope="module")
def shared_namesrv(engine: str) -> Iterator[NamesrvProcess]:
    """One for the tests of a module that do not need one of their own."""
    with NamesrvProcess(*OPTIONS, engine=engine) as process:
        yield process


@pytest.fixture
def namesrv(request: pytest.FixtureRequest, engine: str) -> Iterator[NamesrvProcess]:
    """A name server without brokers. Other tests use it, too, but for those that are marked ``own_server``.

    What a test has left of brokers is taken out; it fails if it has left anything else.
    """
    if request.node.get_closest_marker("own_server"):
        with NamesrvProcess(*OPTIONS, engine=engine) as process:
            yield process
        return
    process = request.getfixturevalue("shared_namesrv")
    yield process
    with process.connect() as client:
        unregister_all(client)
        intents = client.admin.ListIntents(pb.ListIntentsRequest(), timeout=Client.TIMEOUT).intents
        settings = client.admin.ListKvConfigs(pb.ListKvConfigsRequest(), timeout=Client.TIMEOUT).kv_configs
        assert (list(intents), list(settings)) == ([], []), "mark the test with own_server"


@pytest.fixture
def client(namesrv: NamesrvProcess) -> Iterator[Client]:
    """A connection to it."""
    with namesrv.connect() as connected:
        yield connected


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A fleet's certificates, tokens and permits."""
    return Place.make(tmp_path)
