"""Places for a log: a folder, and a prefix of a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.programs.s3_server import bucket, proxy, s3_server

__all__ = ["bucket", "proxy", "s3_server"]  # pytest finds fixtures by their names in this module


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Nothing is there yet."""
    if request.param == "folder":
        return str(tmp_path / "some log")
    return f"s3a://{request.getfixturevalue('bucket')}/some/log"
