from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.broker_agent.topics.followed.files import Passing, content


@pytest.fixture
def time() -> Passing:
    return Passing()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "topics.json"
    path.write_bytes(content(1))
    return path
