"""A way to an HTTP server on which answers are lost, late, or other ones than the server's."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

CUT = "cut"
"""The server is asked, and its answer is lost."""
STUCK = "stuck"
"""The server is not asked, and no answer comes."""
Fate = str | tuple[int, str] | None
"""None: nothing happens. CUT or STUCK. Or a status and code of an error that is answered in the server's place."""


@dataclass
class CuttingProxy:
    """What happens to requests."""

    fate: Callable[[str, str], Fate] = lambda _method, _path: None
    """Of a request, by method and path."""
    url: str = ""
    met: list[tuple[str, str, Fate]] = field(default_factory=list)
    """Requests to which something happened."""
    over: threading.Event = field(default_factory=threading.Event)
    """Lets those go that are stuck."""


@contextmanager
def cutting_proxy(target: str) -> Iterator[CuttingProxy]:
    """Runs one before a server, until the block is left."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.target = urlsplit(target).netloc
    server.proxy = CuttingProxy(url=f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.proxy
    finally:
        server.proxy.over.set()
        server.shutdown()
        thread.join(30)
        server.server_close()


class _Server(ThreadingHTTPServer):
    target: str
    proxy: CuttingProxy


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: Any) -> None:
        """Says nothing."""

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        proxy = self.server.proxy
        fate = proxy.fate(self.command, self.path)
        if fate is not None:
            proxy.met.append((self.command, self.path, fate))
        if isinstance(fate, tuple):
            status, code = fate
            self._answer(status, {}, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())
            return
        if fate == STUCK:
            proxy.over.wait(60)
            self.close_connection = True
            return
        connection = http.client.HTTPConnection(self.server.target, timeout=60)
        try:
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if fate == CUT:
            self.close_connection = True
        else:
            self._answer(answer.status, dict(answer.getheaders()), content)

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in {"content-length", "transfer-encoding", "connection"}:
                self.send_header(name, value)
        length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


for _method in ("GET", "PUT", "POST", "DELETE", "HEAD"):
    setattr(_Handler, f"do_{_method}", _Handler.pass_on)
