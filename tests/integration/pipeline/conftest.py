"""Fixtures of places for a log: a folder, and a prefix of a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from route_pipeline.log.place import Place
from tests.support.programs.s3_server import bucket, s3_server

__all__ = ["bucket", "s3_server"]  # pytest finds fixtures by their names in this module


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Nothing is there yet."""
    if request.param == "folder":
        return Place(str(tmp_path / "some log"))
    return Place(f"s3://{request.getfixturevalue('bucket')}/some/log")
