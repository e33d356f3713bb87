"""A way to the S3 server of tests that loses every second answer to a commit.

It runs in a process of its own: delta-rs holds Python's lock while it waits for an answer.
"""

from __future__ import annotations

import http.client
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import ClassVar

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
    """Yields the address of a proxy of an S3 server."""
    spawn = multiprocessing.get_context("spawn")
    told, tells = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_serve, args=(target, tells), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{told.recv()}"
    finally:
        process.kill()
        process.join()
