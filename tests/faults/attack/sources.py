"""Hostile sources of an agent: its address server, and topics.json.

``python -m tests.faults.attack.sources NAME SECONDS PATH`` puts something else in the place of a file.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.support.hostile.frames import HOST

HONEST = b"127.0.0.1:1;127.0.0.1:2"
"""The list that the address server gives at first."""
PIECE = b"1" * 65_536
LISTS = ("cut-list", "endless-list", "trickling-list")
FILES = ("pipe-as-topics", "device-as-topics", "growing-topics")


@contextmanager
def address_server(kind: str) -> Iterator[str]:
    """Gives an honest list at first; then an answer that is cut, that never ends, or that trickles. Yields its URL."""
    over = threading.Event()
    asked = iter(range(1_000))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_hostile = next(asked) > 0
            lasts = is_hostile and kind != "cut-list"
            self.send_response(200)
            self.send_header("Content-Length", str(10**12 if lasts else len(HONEST)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(HONEST[:13] if is_hostile else HONEST)
                while lasts and not over.is_set():
                    self.wfile.write(PIECE if kind == "endless-list" else b"1")
                    over.wait(0 if kind == "endless-list" else 0.2)

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://{HOST}:{server.server_port}/rocketmq/nsaddr"
        finally:
            over.set()
            server.shutdown()


def replace_file(seconds: float, path: Path, kind: str) -> None:
    """Puts something else in the place of a file, again and again, and the file back at the end."""
    honest = path.read_bytes()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        other = path.with_name("other")
        with suppress(FileNotFoundError):
            other.unlink()
        if kind == "pipe-as-topics":
            os.mkfifo(other)
        elif kind == "device-as-topics":
            other.symlink_to("/dev/zero")
        else:
            other.write_bytes(honest[: len(honest) // 2])
        other.replace(path)
        if kind == "growing-topics":
            _grow(path, min(until, time.monotonic() + 1))
        time.sleep(0.1)
    other = path.with_name("honest")
    other.write_bytes(honest)
    other.replace(path)


def _grow(path: Path, until: float) -> None:
    with path.open("ab") as file:
        for _ in range(500):
            if time.monotonic() > until:
                return
            file.write(b'{"x":1},' * 8_192)
            file.flush()


if __name__ == "__main__":
    name, seconds_text, where = sys.argv[1:]
    replace_file(float(seconds_text), Path(where), name)
