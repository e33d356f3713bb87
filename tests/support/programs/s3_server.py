"""An S3 server for tests in a process of its own; the environment names it, as it would a real one.

It is moto's; or, where the variable ``VERSITYGW`` names its program, Versity's gateway. A proxy before it loses every
second answer to a commit.
"""

from __future__ import annotations

import http.client
import itertools
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.support.programs.processes import eventually, listens, unused_port

START_SECONDS = 60.0
_ENDPOINT = "AWS_ENDPOINT_URL"
_KEY = "test-key"
GATEWAY = "VERSITYGW"
"""Environment variable: the program of a real server, to be tested with instead of moto's."""
_numbers = itertools.count()


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
        keys = ("--access", _KEY, "--secret", _KEY)
        command = [os.environ[GATEWAY], *keys, "--port", f"127.0.0.1:{port}", "posix", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            eventually(lambda: listens(int(port)), within_seconds=START_SECONDS)
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
    s3_client(endpoint).create_bucket(Bucket=name)
    return name


def s3_client(endpoint: str) -> Any:
    """A client of a server."""
    import boto3  # noqa: PLC0415 - each worker of the tests would pay the half a second that this takes

    return boto3.client("s3", endpoint_url=endpoint)


_HOP = ("connection", "transfer-encoding", "content-length")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    target: ClassVar[str]
    commits: ClassVar[int] = 0

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        connection = http.client.HTTPConnection(self.target, timeout=60)
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        content, status = answer.read(), answer.status
        connection.close()
        if self.command == "PUT" and "_delta_log" in self.path and status < 300:
            _Handler.commits += 1
            status = 500 if self.commits % 2 else status
        self.send_response_only(status)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        for name, value in answer.getheaders():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on  # noqa: N815 - names of the library

    def log_message(self, *_: object) -> None:
        pass


def _serve(target: str, told: Connection) -> None:
    _Handler.target = target.removeprefix("http://")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        told.send(server.server_port)
        server.serve_forever()


@contextmanager
def s3_proxy(target: str) -> Iterator[str]:
    """Yields the address of a proxy in a process of its own: delta-rs holds Python's lock while it waits."""
    spawn = multiprocessing.get_context("spawn")
    told, tells = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_serve, args=(target, tells), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{told.recv()}"
    finally:
        process.kill()
        process.join()
