"""An S3 server for tests, moto's, in a process of its own; the environment names it, as it would a real one."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest
import s3fs

from route_pipeline.stores import remote
from support.fakes.cutting_proxy import CuttingProxy, cutting_proxy
from support.programs.processes import eventually

START_SECONDS = 60.0
_ENDPOINT = "AWS_ENDPOINT_URL"
_numbers = itertools.count()


def name_s3_server() -> None:
    """Makes the environment name a server that need not run yet: Spark's workers get theirs when Spark starts."""
    if "ROUTE_TEST_S3" in os.environ:
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    os.environ |= {
        "ROUTE_TEST_S3": endpoint,
        _ENDPOINT: endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The endpoint of a server that runs."""
    name_s3_server()
    endpoint = os.environ["ROUTE_TEST_S3"]
    port = endpoint.rpartition(":")[2]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", port]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            eventually(lambda: _answers(int(port)), within_seconds=START_SECONDS)
            yield endpoint
        finally:
            server.kill()


@pytest.fixture
def bucket(s3_server: str) -> str:
    """The name of a new bucket."""
    name = f"bucket-{os.getpid()}-{next(_numbers)}"
    request = urllib.request.Request(f"{s3_server}/{name}", method="PUT")
    with urllib.request.urlopen(request, timeout=START_SECONDS):
        return name


@pytest.fixture
def proxy(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[CuttingProxy]:
    """A proxy before the server, for clients that are made from here on; workers of a running Spark go past it."""
    with cutting_proxy(s3_server) as proxy:
        monkeypatch.setenv(_ENDPOINT, proxy.url)
        forget_clients()
        yield proxy
    forget_clients()


def forget_clients() -> None:
    """Has the next use of a store make a client by the environment of that moment."""
    remote._client.cache_clear()
    s3fs.S3FileSystem.clear_instance_cache()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
