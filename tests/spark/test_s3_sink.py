"""The recipe for Parquet on S3 by Spark's own sink, run as its reader would: Spark fetches the connector (19 MB)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest
import s3fs

from tests.support.programs.processes import NamesrvProcess
from tests.support.programs.s3_server import bucket, s3_server
from tests.support.registrations import identity, registration

__all__ = ["bucket", "s3_server"]  # pytest finds the fixtures by their names in this module

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
RECIPE = Path(__file__).parents[2] / "examples" / "changes_to_s3.py"
RUN_SECONDS = 400


def run(namesrv: NamesrvProcess, place: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, RECIPE, str(namesrv.endpoint), place],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )


def test_each_change_is_on_s3_once_after_as_many_runs_as_one_likes(namesrv: NamesrvProcess, bucket: str) -> None:
    first = run(namesrv, f"s3a://{bucket}/changes")
    assert first.returncode == 0, first.stderr
    with namesrv.connect() as client:
        client.registration.RegisterBroker(registration(["TopicTest", "Other", "New"], identity(), 2), timeout=20)
    second = run(namesrv, f"s3a://{bucket}/changes/")
    assert second.returncode == 0, second.stderr

    store = s3fs.S3FileSystem(use_listings_cache=False)
    files = store.glob(f"{bucket}/changes/*.parquet")
    rows = ds.dataset(files, filesystem=store).to_table(columns=["revision", "table_name", "key", "topic"]).to_pylist()
    found = [tuple(row.values()) for row in rows]
    assert len(found) == len(set(found))
    assert sorted(row["topic"] for row in rows if row["topic"]) == ["New", "Other", "TopicTest"]


def test_a_bucket_that_is_not_there_is_told_in_one_line(namesrv: NamesrvProcess, s3_server: str) -> None:
    assert s3_server
    done = run(namesrv, "s3a://no-such-bucket/changes")
    assert done.returncode == 1
    (line,) = (one for one in done.stderr.splitlines() if one.startswith("s3a://"))
    assert "no-such-bucket" in line
    assert "Traceback" not in done.stderr
