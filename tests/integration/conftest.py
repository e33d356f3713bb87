"""Fixtures of the integration tests: real processes, real sockets, each engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.secured import Place
from tests.processes import Client, NamesrvProcess


@pytest.fixture(params=["grpcio", "native", "envoy"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine in turn."""
    return str(request.param)


@pytest.fixture
def namesrv(engine: str) -> Iterator[NamesrvProcess]:
    """A name server that never scans: whatever leaves does so for another reason than its expiry."""
    with NamesrvProcess("--scan-not-active-broker-interval-millis", "0", engine=engine) as process:
        yield process


@pytest.fixture
def client(namesrv: NamesrvProcess) -> Iterator[Client]:
    """A connection to it."""
    with namesrv.connect() as connected:
        yield connected


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A fleet's certificates, tokens and permits."""
    return Place.make(tmp_path)
