"""Fixtures of the tests with clients in other languages: each language built once, real processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.programs import Programs, build_go, build_java, build_node, build_rust
from tests.support.programs.processes import Client, NamesrvProcess


@pytest.fixture(scope="session")
def node_programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """The clients in JavaScript."""
    return build_node(tmp_path_factory.mktemp("node"))


@pytest.fixture(scope="session")
def go_programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """The clients in Go."""
    return build_go(tmp_path_factory.mktemp("go"))


@pytest.fixture(scope="session")
def java_programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """The clients in Java."""
    return build_java(tmp_path_factory.mktemp("java"))


@pytest.fixture(scope="session")
def rust_programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """The clients in Rust."""
    return build_rust(tmp_path_factory.mktemp("rust"))


@pytest.fixture(params=["node", "go", "java"])
def programs(request: pytest.FixtureRequest) -> Programs:
    """The clients of each language in turn."""
    found: Programs = request.getfixturevalue(f"{request.param}_programs")
    return found


@pytest.fixture
def namesrv() -> Iterator[NamesrvProcess]:
    """A name server that never scans: whatever leaves does so for another reason than its expiry."""
    with NamesrvProcess("--scan-not-active-broker-interval-millis", "0") as process:
        yield process


@pytest.fixture
def client(namesrv: NamesrvProcess) -> Iterator[Client]:
    """A connection to it."""
    with namesrv.connect() as connected:
        yield connected
