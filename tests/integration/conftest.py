"""Fixtures of the integration tests: real processes, real sockets, each engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.engines import each, present
from support.processes import Client, NamesrvProcess
from support.secured import Place

NOT_ON_ENVOY = frozenset(
    f"test_{name}.py"
    for name in ("audit", "cluster_test", "intents", "kv_config", "namesrv_config", "route_lists", "scenarios")
)
"""Modules that are about what the tables do: they make unary calls that others make on this engine, too, which takes
longest to start. ``--all-engines`` runs them all the same."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what takes long and shows nothing new."""
    if config.getoption("--all-engines"):
        return
    left_out = [item for item in items if item.path.name in NOT_ON_ENVOY and "[envoy" in item.name]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(params=each())
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine in turn."""
    return present(request.param)


@pytest.fixture(params=each("grpcio", "native"))
def engine_here(request: pytest.FixtureRequest) -> str:
    """Each engine that runs in any process, such as this one."""
    return str(request.param)


@pytest.fixture(params=each("grpcio", "envoy"))
def engine_with_tls(request: pytest.FixtureRequest) -> str:
    """Each engine that has TLS."""
    return present(request.param)


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
