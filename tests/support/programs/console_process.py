"""A console as a process, and a browser for its page."""

from __future__ import annotations

import json
import os
import shutil
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from groundwork.endpoints import Endpoint
from tests.support.programs.processes import BIN, Process

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""Nothing but the page is asked for."""


class ConsoleProcess(Process):
    """A console on a free port of loopback."""

    def __init__(self, namesrv: str, *arguments: str, authority: Path | None = None) -> None:
        """Starts it; with an authority it must have TLS."""
        self._context = None if authority is None else ssl.create_default_context(cafile=authority)
        flags = ("--namesrv", namesrv, "--listen", "127.0.0.1:0", "--log-format", "json")
        super().__init__([str(BIN / "nsctl"), "console", *flags, *arguments])
        try:
            started = self.wait_for("console_started")
        except BaseException:
            self.__exit__()
            raise
        self.page = str(started["page"])
        self.endpoint = Endpoint.parse(str(started["listen"]))

    def request(
        self, path: str, method: str = "GET", headers: dict[str, str] | None = None, body: object = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (names in lower case) and body of the answer."""
        if self._context is None:
            connection = HTTPConnection(*self.endpoint, timeout=20)
        else:
            connection = HTTPSConnection(*self.endpoint, timeout=20, context=self._context)
        try:
            sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, path, sent, headers or {})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def ask(self, path: str) -> dict[str, Any]:
        """The JSON of an answer that is right."""
        status, _, body = self.request(path)
        assert status == 200, body
        answer: dict[str, Any] = json.loads(body)
        return answer

    def act(self, **action: Any) -> dict[str, Any]:
        """Asks for an action as the page does."""
        headers = {"Content-Type": "application/json", "X-Namesrv-Console": "1", "Origin": self.page.rstrip("/")}
        _, _, body = self.request("/api/actions", "POST", headers, action)
        answer: dict[str, Any] = json.loads(body)
        return answer


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium of this machine; skips the test by name where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next((found for name in CHROMIUMS if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("chromium is not installed")
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[*ARGUMENTS, *sandbox])
        try:
            yield browser
        finally:
            browser.close()
