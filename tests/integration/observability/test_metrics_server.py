"""The listener of metrics and health: beside peers that hold, trickle or flood, a probe has its answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from urllib.request import urlopen

import pytest
from prometheus_client import Gauge

from groundwork.endpoints import Endpoint
from groundwork.metrics_http import (
    MAX_REQUEST_BYTES,
    MetricsServer,
    metrics_registry,
)
from tests.support.hostile.http_peers import ATTACKS, under

SERIES = 1_000
"""More than a name server has."""
PROBES = 10
PROBE_SECONDS = 3.0
"""What a liveness probe usually waits, and more than a busy machine needs."""


@pytest.fixture
def listen() -> Iterator[Endpoint]:
    registry = metrics_registry()
    many = Gauge("many", "What a name server has, and more.", ["n"], registry=registry)
    for number in range(SERIES):
        many.labels(f"{number:060}").set(number)
    server = MetricsServer(Endpoint("127.0.0.1", 0), registry, lambda: None, lambda: None)
    server.start()
    yield server.endpoint
    server.stop()


def answer_of_a_probe(listen: Endpoint) -> bytes:
    """Returns it at the third try at the latest. The attack comes from the probe's own address, which may lose one."""
    for tries_left in (2, 1, 0):
        try:
            with urlopen(f"http://{listen}/healthz", timeout=PROBE_SECONDS) as answer:
                return bytes(answer.read())
        except ConnectionError:
            if not tries_left:
                raise
    raise AssertionError


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_probe_beside_an_attack_has_its_answer(listen: Endpoint, attack: str) -> None:
    with under(attack, listen):
        for _ in range(PROBES):
            assert answer_of_a_probe(listen) == b"ok\n"
            threading.Event().wait(0.05)  # not all of them in the attack's first moment
    with urlopen(f"http://{listen}/metrics", timeout=20) as answer:
        assert answer.read().count(b"\nmany{") == SERIES


def test_a_request_above_the_limit_is_refused_before_it_is_whole(listen: Endpoint) -> None:
    with socket.create_connection(listen, timeout=20) as peer:
        line = b"X: " + b"a" * 1_000 + b"\r\n"
        peer.sendall(b"GET /healthz HTTP/1.1\r\n" + line * (MAX_REQUEST_BYTES // len(line) + 1))
        assert peer.recv(100).startswith(b"HTTP/1.0 431 ")
