"""A console as a process, and a browser for its page."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import TYPE_CHECKING

import pytest

from namesrv_common.endpoints import Endpoint
from tests.support.patience import TIMEOUT
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
"""Only the page is asked for."""


class ConsoleProcess(Process):
    """A console on a free port of loopback."""

    def __init__(self, namesrv: str, *arguments: str, listen: str = "127.0.0.1:0") -> None:
        super().__init__([str(BIN / "nsctl"), "console", "--namesrv", namesrv, "--listen", listen, *arguments])
        self.wait_for_text("page=http://")
        (self.page,) = re.findall(r"page=(http://\S+/)", self.raw)
        self.endpoint = Endpoint.parse(self.page.removeprefix("http://").rstrip("/"))

    def request(
        self, path: str, method: str = "GET", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], str]:
        """Status, headers (names in lower case) and text of the answer."""
        connection = HTTPConnection(*self.endpoint, timeout=TIMEOUT)
        try:
            connection.request(method, path, None, headers or {})
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, names, answer.read().decode()
        finally:
            connection.close()

    def read(self, path: str = "/") -> str:
        """The text of a page that is there."""
        status, _, body = self.request(path)
        assert status == 200, body
        return body


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
