"""The console beside peers that hold connections, trickle, flood or speak no HTTP: a viewer has the page."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from urllib.request import urlopen

import pytest

from nsctl.console.protection import MAX_CONNECTIONS_BY_ADDRESS, REQUEST_SECONDS
from tests.support.hostile.http_peers import ATTACKS, under
from tests.support.programs.console_process import ConsoleProcess
from tests.support.programs.processes import eventually

LOOKS = 40
VIEWER_SECONDS = 20.0
"""Less than ``REQUEST_SECONDS``: who has an answer has it before the attack's connections are cut for their
time."""


@pytest.fixture(scope="module")
def console() -> Iterator[ConsoleProcess]:
    """A console of a name server that is not there: its page answers all the same."""
    with ConsoleProcess("127.0.0.1:1") as process:
        yield process


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_viewer_beside_an_attack_has_the_page_and_its_data(console: ConsoleProcess, attack: str) -> None:
    before = len(console.events("bad_http"))
    with under(attack, console.endpoint):
        for _ in range(LOOKS):
            for path in ("", "api/overview"):
                with urlopen(f"http://{console.endpoint}/{path}", timeout=VIEWER_SECONDS) as answer:
                    assert answer.status == 200
            threading.Event().wait(0.05)
    assert "Traceback" not in console.raw
    assert len(console.events("bad_http")) <= before + 1


def test_more_connections_than_an_address_may_have_are_cut_and_who_asks_has_an_answer(console: ConsoleProcess) -> None:
    silent = [socket.create_connection(console.endpoint, timeout=5) for _ in range(MAX_CONNECTIONS_BY_ADDRESS + 40)]
    try:
        with urlopen(f"http://{console.endpoint}/", timeout=VIEWER_SECONDS) as answer:
            assert answer.status == 200
        assert eventually(lambda: _cut(silent), lambda count: count >= 40) <= 60
    finally:
        for peer in silent:
            peer.close()


def _cut(peers: list[socket.socket]) -> int:
    """How many the other side has ended."""
    count = 0
    for peer in peers:
        peer.setblocking(False)
        try:
            peer.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            continue
        except OSError:
            pass
        count += 1
    return count


@pytest.mark.slow
def test_a_request_that_trickles_is_cut_in_time(console: ConsoleProcess) -> None:
    with socket.create_connection(console.endpoint, timeout=5) as peer:
        begun = time.monotonic()
        peer.send(b"GET /")
        while time.monotonic() < begun + REQUEST_SECONDS + 10:
            try:
                peer.send(b"a")
            except OSError:
                break
            threading.Event().wait(0.2)
        assert REQUEST_SECONDS - 1 < time.monotonic() - begun < REQUEST_SECONDS + 8
