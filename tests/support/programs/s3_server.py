"""An S3 server for tests in a process of its own; the environment names it, as it would a real one.

It is moto's; or, where the variable ``VERSITYGW`` names its program, Versity's gateway (``make test-s3``).
"""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import s3fs

from route_pipeline.stores import remote
from tests.support.fakes.cutting_proxy import CuttingProxy, cutting_proxy
from tests.support.programs.processes import eventually

START_SECONDS = 60.0
_ENDPOINT = "AWS_ENDPOINT_URL"
_KEY = "test-key"
GATEWAY = "VERSITYGW"
"""Environment variable: the program of a real server, to be tested with in place of moto's."""
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
        "AWS_ACCESS_KEY_ID": _KEY,
        "AWS_SECRET_ACCESS_KEY": _KEY,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a server that runs."""
    with running_s3_server(tmp_path_factory.mktemp("s3")) as endpoint:
        yield endpoint


@contextmanager
def running_s3_server(folder: Path) -> Iterator[str]:
    """Runs the server that the environment names, until the block is left; a real one keeps its files in the folder."""
    name_s3_server()
    endpoint = os.environ["ROUTE_TEST_S3"]
    port = endpoint.rpartition(":")[2]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", port]
    if GATEWAY in os.environ:
        command = _gateway(os.environ[GATEWAY], port, folder)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            eventually(lambda: _answers(int(port)), within_seconds=START_SECONDS)
            yield endpoint
        finally:
            server.kill()


@pytest.fixture
def bucket(s3_server: str) -> str:
    """The name of a new bucket."""
    return make_bucket(s3_server)


def make_bucket(endpoint: str) -> str:
    """Makes a bucket; its name."""
    name = f"bucket-{os.getpid()}-{next(_numbers)}"
    client(endpoint).call_s3("create_bucket", Bucket=name)
    return name


def client(endpoint: str) -> s3fs.S3FileSystem:
    """A client of its own, which keeps nothing of what it listed, and goes around whatever stands before the server."""
    return s3fs.S3FileSystem(endpoint_url=endpoint, use_listings_cache=False, skip_instance_cache=True)


def _gateway(program: str, port: str, folder: Path) -> list[str]:
    return [program, "--access", _KEY, "--secret", _KEY, "--port", f"127.0.0.1:{port}", "posix", str(folder)]


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
