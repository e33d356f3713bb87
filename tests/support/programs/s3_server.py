"""An S3 server for tests in a process of its own; the environment names it, as it would a real one.

It is moto's; or, where the variable ``VERSITYGW`` names its program, Versity's gateway.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Process, eventually, listens, unused_port

START_SECONDS = 3 * TIMEOUT
_ENDPOINT = "AWS_ENDPOINT_URL"
_KEY = "test-key"
GATEWAY = "VERSITYGW"
"""Environment variable: the program of a real server, to be tested with instead of moto's."""


def name_s3_server() -> None:
    """Makes the environment name a server that need not run yet: Spark's workers get theirs when Spark starts."""
    if "ROUTE_TEST_S3" in os.environ:
        return
    endpoint = f"http://127.0.0.1:{unused_port()}"
    os.environ |= {
        "ROUTE_TEST_S3": endpoint,
        _ENDPOINT: endpoint,
        "AWS_ACCESS_KEY_ID": _KEY,
        "AWS_SECRET_ACCESS_KEY": _KEY,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ALLOW_HTTP": "true",
    }


@contextmanager
def running_s3_server(folder: Path) -> Iterator[str]:
    """Runs the server that the environment names, until the block is left; a real one keeps its files in the folder."""
    name_s3_server()
    endpoint = os.environ["ROUTE_TEST_S3"]
    port = endpoint.rpartition(":")[2]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", port]
    if GATEWAY in os.environ:
        keys = ("--access", _KEY, "--secret", _KEY)
        command = [os.environ[GATEWAY], *keys, "--port", f"127.0.0.1:{port}", "posix", str(folder)]
    with Process(command):
        eventually(lambda: listens(int(port)), within_seconds=START_SECONDS)
        yield endpoint


def make_bucket(endpoint: str) -> str:
    """Makes a bucket; its name."""
    name = f"bucket-{uuid.uuid4()}"
    s3_client(endpoint).create_bucket(Bucket=name)
    return name


def s3_client(endpoint: str) -> Any:
    """A client of a server."""
    import boto3  # noqa: PLC0415 - each worker of the tests would pay the half a second that this takes

    return boto3.client("s3", endpoint_url=endpoint)
