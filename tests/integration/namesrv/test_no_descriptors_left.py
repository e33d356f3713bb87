"""A name server without a file descriptor left serves whom it has, waits calmly, and takes newcomers once it can."""

from __future__ import annotations

import resource
import socket
import threading
import time
from contextlib import ExitStack

import pytest

from namesrv_common.endpoints import Endpoint
from tests.support.hostile.frames import hello
from tests.support.metrics_page import get
from tests.support.programs.processes import NamesrvProcess, cpu_seconds, eventually, sample
from tests.support.programs.rocketmq import RemotingClient
from tests.support.registrations import registration

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


@pytest.mark.parametrize("listener", ["listen", "metrics", "remoting"])
def test_who_is_there_is_served_and_the_others_once_there_are_descriptors(listener: str) -> None:
    with NamesrvProcess(*LISTENERS) as server, server.connect() as client:
        client.registration.RegisterBroker(registration(), timeout=client.TIMEOUT)
        attacked = Endpoint.parse(str(server.wait_for("namesrv_started")[listener]))
        came = time.monotonic()
        limit, few = resource.prlimit(server.pid, resource.RLIMIT_NOFILE), sample(server.pid)["files"] + SPARE
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (few, limit[1]))
        with ExitStack() as held:
            for _ in range(NEWCOMERS):
                peer = held.enter_context(socket.create_connection(attacked, timeout=5))
                peer.sendall(hello() if listener == "listen" else b"")
            eventually(lambda: sample(server.pid)["files"], lambda files: files >= few)
            before, begun = cpu_seconds(server.pid), time.monotonic()
            for _ in range(LOOKUPS):
                assert client.route() is not None
                threading.Event().wait(LOOK_SECONDS / LOOKUPS)
            taken = (cpu_seconds(server.pid) - before) / (time.monotonic() - begun)
            assert taken < MOST_CPU
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, limit)
        eventually(lambda: sample(server.pid)["files"], lambda files: files < few)
        _check_newcomer(server, attacked, listener)
        if listener != "metrics":
            server.wait_for("accept_failed")
            assert len(server.events("accept_failed")) <= 1 + (time.monotonic() - came) // TOLD_EVERY_SECONDS
        else:
            assert server.events("accept_failed") == []
        assert "Traceback" not in server.raw


def _check_newcomer(server: NamesrvProcess, attacked: Endpoint, listener: str) -> None:
    if listener == "listen":
        with server.connect() as newcomer:
            assert newcomer.route() is not None
    elif listener == "metrics":
        assert get(str(attacked), "/healthz")[0] == 200
    else:
        with RemotingClient(str(attacked)) as newcomer:
            assert newcomer.ask(105, {"topic": "NOPE"}).code == 17
