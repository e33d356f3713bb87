"""Snapshots of a million rows and more, into a log on a disk or on an S3 server, by a fresh Spark each round."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from bench.figures import Sample, progress
from bench.pipeline.sizes import Sizes
from bench.workload import Profile
from tests.support.programs.processes import Client, NamesrvProcess
from tests.support.programs.s3_server import make_bucket, running_s3_server

BROKERS = 1_000
TOPICS = 100_000
ROUND_SECONDS = 1_800
"""A round of ten million rows takes a minute; a machine that is busy otherwise has its time."""

_REGISTER = "/namesrv_api.v1.RegistrationService/RegisterBroker"


def bulk_posix(sizes: Sizes) -> Iterator[Sample]:
    """Into Parquet by Spark's own writer, and into a log on a disk."""
    for rows in sizes.rows:
        yield from _bulk(rows, sizes, None)


def bulk_s3(sizes: Sizes) -> Iterator[Sample]:
    """Into a log on an S3 server on the same cores."""
    with tempfile.TemporaryDirectory(prefix="bench-s3-") as folder, running_s3_server(Path(folder)) as endpoint:
        yield from _bulk(sizes.s3_rows, sizes, f"s3://{make_bucket(endpoint)}")


def _bulk(rows: int, sizes: Sizes, store: str | None) -> Iterator[Sample]:
    """A snapshot of so many queue rows."""
    profile = Profile(TOPICS, BROKERS, max(1, rows // TOPICS))
    workload = f"{profile.name}: {profile.topics * profile.width:,} queue rows" + (", on S3" if store else "")
    with ExitStack() as stack:
        namesrv = stack.enter_context(NamesrvProcess("--name", "ns-a"))
        progress(f"filling a name server with {profile.name}")
        fill(stack.enter_context(namesrv.connect()), profile)
        for number in range(sizes.rounds):
            progress(f"{workload}: round {number + 1}")
            command = [sys.executable, "-m", "bench.pipeline.run", str(namesrv.endpoint), "--workload", workload]
            command += [] if store is None else ["--store", store]
            done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, timeout=ROUND_SECONDS)
            if done.returncode:
                progress(f"the round ended early, with exit code {done.returncode}: its figures so far count")
            for line in done.stdout.splitlines():
                yield Sample(*json.loads(line))


def fill(client: Client, profile: Profile) -> None:
    """Registers all brokers of a profile."""
    register = client.connection.unary_unary(_REGISTER, None, None)
    for request in profile.registrations():
        register(request, timeout=60)
