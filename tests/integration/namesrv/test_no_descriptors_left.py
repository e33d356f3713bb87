"""A name server without a file descriptor left serves whom it has, waits calmly, and takes newcomers once it can."""

from __future__ import annotations

import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from namesrv_common.endpoints import Endpoint
from tests.support.hostile.frames import hello
from tests.support.metrics_page import get
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.programs.rocketmq import RemotingClient
from tests.support.registrations import registration
from tests.support.resources import cpu_seconds, sample

pytestmark = pytest.mark.slow

SPARE = 6
"""Descriptors that the server may still open."""
NEWCOMERS = 20
LOOKUPS = 40
LOOK_SECONDS = 1.0
"""How long a server without descriptors is looked at."""
MOST_CPU = 0.3
"""Of a core, that it may take then, forty lookups included; trying again without a pause would take all of it."""
TOLD_EVERY_SECONDS = 10
"""Between two lines of the native engine about connections that it cannot take."""
LISTENERS = ("--metrics-listen", "127.0.0.1:0", "--remoting-listen", "127.0.0.1:0")


@contextmanager
def _without_descriptors(process: NamesrvProcess) -> Iterator[None]:
    """Leaves a process a few descriptors more than it has, for the time of the block."""
    before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    held = sample(process.pid)["files"]
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (held + SPARE, before[1]))
    try:
        yield
    finally:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("listener", ["listen", "metrics", "remoting"])
def test_who_is_there_is_served_and_the_others_once_there_are_descriptors(listener: str) -> None:
    with NamesrvProcess(*LISTENERS) as server, server.connect() as client:
        client.registration.RegisterBroker(registration(), timeout=client.TIMEOUT)
        attacked = Endpoint.parse(str(server.wait_for("namesrv_started")[listener]))
        came = time.monotonic()
        with _without_descriptors(server), ExitStack() as held:
            for _ in range(NEWCOMERS):
                peer = held.enter_context(socket.create_connection(attacked, timeout=5))
                peer.sendall(hello() if listener == "listen" else b"")
            eventually(lambda: sample(server.pid)["files"], lambda files: files >= _limit(server))
            before, begun = cpu_seconds(server.pid), time.monotonic()
            for _ in range(LOOKUPS):
                assert client.route() is not None
                threading.Event().wait(LOOK_SECONDS / LOOKUPS)
            taken = (cpu_seconds(server.pid) - before) / (time.monotonic() - begun)
            assert taken < MOST_CPU
        eventually(lambda: sample(server.pid)["files"], lambda files: files < _limit(server))
        _check_newcomer(server, attacked, listener)
        if listener != "metrics":
            server.wait_for("accept_failed")
            assert len(server.events("accept_failed")) <= 1 + (time.monotonic() - came) // TOLD_EVERY_SECONDS
        else:
            assert server.events("accept_failed") == []
        assert "Traceback" not in server.raw


def _limit(server: NamesrvProcess) -> int:
    return resource.prlimit(server.pid, resource.RLIMIT_NOFILE)[0]


def _check_newcomer(server: NamesrvProcess, attacked: Endpoint, listener: str) -> None:
    if listener == "listen":
        with server.connect() as newcomer:
            assert newcomer.route() is not None
    elif listener == "metrics":
        assert get(str(attacked), "/healthz")[0] == 200
    else:
        with RemotingClient(str(attacked)) as newcomer:
            assert newcomer.ask(105, {"topic": "NOPE"}).code == 17
