"""A name server that keeps what it is told, and a connection to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.programs.processes import Client, NamesrvProcess


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """The data directory."""
    return tmp_path


@pytest.fixture
def durable(data_dir: Path) -> Iterator[NamesrvProcess]:
    """A name server with a data directory."""
    with NamesrvProcess("--data-dir", str(data_dir)) as process:
        yield process


@pytest.fixture
def admin(durable: NamesrvProcess) -> Iterator[Client]:
    """A connection to it."""
    with durable.connect() as connected:
        yield connected
