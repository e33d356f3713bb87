"""An address server: asked after 10 s, then every 120 s. An invalid answer is ignored."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from structlog.testing import capture_logs

from broker_agent.namesrv_list import FETCH_PERIOD_SECONDS, MAX_LIST_BYTES, namesrv_list_of
from broker_agent.timing import JITTER
from namesrv_common.endpoints import Endpoint, parse_endpoints
from tests.support.virtual_clock import VirtualClock, agent_timing

WHOLE = b"10.0.0.1:9876;10.0.0.2:9876"
CHUNKED = ("Transfer-Encoding", "chunked")
A_PERIOD = FETCH_PERIOD_SECONDS * (1 + JITTER)


class AddressServer:
    """Answers as told, on loopback, and is asked on virtual time; remembers that, and what came of it."""

    def __init__(self) -> None:
        self.status = 200
        self.body = WHOLE
        self.headers: list[tuple[str, str]] = []
        """Instead of the right Content-Length."""
        self.asked: list[str] = []
        self.time = VirtualClock()
        self.times: list[float] = []
        self.told: list[tuple[Endpoint, ...]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        url = f"http://127.0.0.1:{self._server.server_port}/rocketmq/nsaddr?unit=a"
        self.list = namesrv_list_of(["10.0.9.9:9876", url], timing=agent_timing(self.time))
        self.list.start()
        self.list.on_change = lambda: self.told.append(self.list.endpoints)

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.asked.append(request.path)
        self.times.append(self.time.seconds)
        request.send_response(self.status)
        request.send_header("Location", "/elsewhere")
        for header in self.headers or [("Content-Length", str(len(self.body)))]:
            request.send_header(*header)
        request.end_headers()
        request.wfile.write(self.body)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[AddressServer]:
    started = AddressServer()
    yield started
    started.list.stop()
    started.close()


def test_it_is_asked_after_10_seconds_and_then_every_120_with_jitter(server: AddressServer) -> None:
    server.time.run(9.9)
    assert server.asked == []
    server.time.run(0.1)
    assert server.asked == ["/rocketmq/nsaddr?unit=a"]
    server.time.run(100 * FETCH_PERIOD_SECONDS)
    pauses = [after - before for before, after in zip(server.times, server.times[1:], strict=False)]
    assert 95 <= len(pauses) <= 105
    assert 108.0 <= min(pauses) < 120.0 < max(pauses) <= 132.0


def test_an_answer_is_told_when_it_differs_from_the_last_one(server: AddressServer) -> None:
    server.time.run(3 * A_PERIOD)
    assert server.told == [parse_endpoints("10.0.0.1:9876 10.0.0.2:9876")]
    server.body = b"10.0.0.3:9876;\n"
    server.time.run(3 * A_PERIOD)
    assert server.told[1:] == [parse_endpoints("10.0.0.3:9876")]
    server.body = b"10.0.9.9:9876"  # the list before the first answer
    server.time.run(A_PERIOD)
    assert server.told[2:] == [parse_endpoints("10.0.9.9:9876")]
    server.headers = [CHUNKED]
    server.body = b"5\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (WHOLE[:5], len(WHOLE) - 5, WHOLE[5:])
    server.time.run(A_PERIOD)
    assert server.told[3:] == [parse_endpoints("10.0.0.1:9876 10.0.0.2:9876")]


LENGTH = ("Content-Length", str(len(WHOLE)))


@pytest.mark.parametrize(
    ("status", "headers", "body", "problem"),
    [
        (200, [], b"<html><body>Welcome</body></html>", "has no port"),
        (200, [], b" " * (MAX_LIST_BYTES + 1), "more than 65536 bytes"),
        (302, [], WHOLE, "answered 302, not 200"),
        (200, [LENGTH], WHOLE[:26], "the answer was cut after 26 of 27 bytes"),
        (200, [("X-Nothing", "")], WHOLE, "neither Content-Length nor chunks"),
        (200, [("Content-Length", "-1")], WHOLE, "neither Content-Length nor chunks"),
        (200, [("Content-Length", str(10**12))], WHOLE, "are declared"),
        (200, [CHUNKED], b"%x\r\n%s\r\n" % (len(WHOLE), WHOLE), "IncompleteRead"),
        (200, [CHUNKED], b"fffffff\r\n" + b" " * (MAX_LIST_BYTES + 1), "more than 65536 bytes"),
    ],
)
def test_a_bad_answer_keeps_the_list_and_is_logged_once(
    server: AddressServer, status: int, headers: list[tuple[str, str]], body: bytes, problem: str
) -> None:
    server.status, server.headers, server.body = status, headers, body
    with capture_logs() as logs:
        server.time.run(2 * A_PERIOD)
    assert len(server.asked) >= 2
    assert server.told == []
    assert [entry["event"] for entry in logs] == ["namesrv_list_bad"]
    assert problem in logs[0]["error"]
    assert logs[0]["kept"] == ["10.0.9.9:9876"]


def test_a_server_that_is_not_there_changes_nothing(server: AddressServer) -> None:
    server.close()
    with capture_logs() as logs:
        server.time.run(A_PERIOD)
    assert server.told == []
    assert "refused" in logs[0]["error"]
