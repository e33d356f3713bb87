"""Fixtures of places for a log: a folder, a prefix of a bucket, and a folder of HDFS where a cluster is named."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from tests.support.programs.s3_server import bucket, proxy, s3_server

__all__ = ["bucket", "proxy", "s3_server"]  # pytest finds fixtures by their names in this module


HDFS = "HDFS_URL"
"""Environment variable: a cluster for tests, such as hdfs://127.0.0.1:8020. They leave folders in it."""
PLACES = ["folder", pytest.param("s3", marks=pytest.mark.slow), *(["hdfs"] if HDFS in os.environ else [])]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Nothing is there yet."""
    if request.param == "folder":
        return str(tmp_path / "some log")
    if request.param == "hdfs":
        return f"{os.environ[HDFS]}/{secrets.token_hex(8)}/some/log"
    return f"s3a://{request.getfixturevalue('bucket')}/some/log"
