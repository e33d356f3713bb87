"""Fixtures of the tests with clients in other languages: each language built once, real processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.interop.programs import INTEROP, REPOSITORY, WATCHING, Programs, build_go, build_java, build_node, build_rust
from tests.support.programs.processes import Client, NamesrvProcess

Built = Callable[[str], Programs]


def python_programs(_folder: Path) -> Programs:
    """Those in Python, which need nothing to be built."""
    files = {"balanced": INTEROP / "balanced.py", "watching": WATCHING / "watch.py"}
    return Programs(REPOSITORY, {name: [sys.executable, str(file)] for name, file in files.items()})


BUILDERS = {"node": build_node, "go": build_go, "python": python_programs, "java": build_java, "rust": build_rust}


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Builds the clients of a language the first time it is asked for them."""
    return cache(lambda language: BUILDERS[language](tmp_path_factory.mktemp(language)))


@pytest.fixture
def namesrv() -> Iterator[NamesrvProcess]:
    """A name server that never scans: whatever leaves does so for another reason than its expiry."""
    with NamesrvProcess("--scan-not-active-broker-interval-millis", "0") as process:
        yield process


@pytest.fixture
def other() -> Iterator[NamesrvProcess]:
    """A second name server."""
    with NamesrvProcess() as process:
        yield process


@pytest.fixture
def client(namesrv: NamesrvProcess) -> Iterator[Client]:
    """A connection to it."""
    with namesrv.connect() as connected:
        yield connected
