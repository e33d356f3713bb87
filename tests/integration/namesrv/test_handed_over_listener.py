"""A name server whose listener was opened by systemd. The test plays systemd."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.support.engines import DEVELOPMENT, require_native
from tests.support.programs.processes import BIN, Client, Process
from tests.support.programs.rocketmq import RemotingClient

ALL_TOPICS = 206

START = """
import os, sys
numbers = sys.argv[1].split(",")
for target, number in enumerate(numbers, 3):
    os.dup2(int(number), target)
    os.set_inheritable(target, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(numbers)))
os.environ.update(LISTEN_FDNAMES=":".join(["namesrv.socket"] * len(numbers)))
os.execv(sys.argv[2], sys.argv[2:])
"""
"""What systemd does between fork and exec. The sockets become descriptors 3 and up. The variables name this process."""


def command(handed_over: socket.socket, listen: str, engine: str, remoting: socket.socket | None = None) -> list[str]:
    """Starts a name server with a socket for gRPC, and with one for RocketMQ's protocol if there is one."""
    serve = ["serve", "--listen", listen, "--engine", engine, "--log-format", "json", "--warm-up-millis", "0"]
    serve += [] if remoting is None else ["--remoting-listen", address(remoting)]
    numbers = ",".join(str(one.fileno()) for one in (handed_over, remoting) if one is not None)
    return [sys.executable, "-c", START, numbers, str(BIN / "namesrv"), *serve]


@pytest.fixture
def held() -> Iterator[socket.socket]:
    """A listening socket that outlives the processes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def address(of: socket.socket) -> str:
    """The address of a socket as a setting."""
    return "{}:{}".format(*of.getsockname())


def test_callers_that_connect_during_a_restart_are_answered_after_it(held: socket.socket, tmp_path: Path) -> None:
    require_native()
    at = address(held)
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd,
        socket.create_server(("127.0.0.1", 0)) as remoting,
    ):
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(30)
        for _ in range(2):  # the second one is a restart
            with (
                grpc.insecure_channel(at, [("grpc.use_local_subchannel_pool", 1)]) as connection,
                RemotingClient(address(remoting)) as of_rocketmq,
            ):
                early = grpc.channel_ready_future(connection)
                process = Process(
                    command(held, at, "native", remoting),
                    {"NOTIFY_SOCKET": str(tmp_path / "notify")},
                    (held.fileno(), remoting.fileno()),
                )
                with process:
                    assert systemd.recv(100) == b"READY=1"
                    started = process.wait_for("namesrv_started")
                    assert (started["listen"], started["remoting"]) == (at, address(remoting))
                    early.result(30)
                    assert Client(connection).route() is None
                    assert of_rocketmq.ask(ALL_TOPICS).code == 0
                    assert process.terminate() == 0
                    assert systemd.recv(100) == b"STOPPING=1"
                    assert process.raw.count("systemd_not_told") == 0


def test_the_development_engine_says_that_it_cannot_take_a_socket(held: socket.socket) -> None:
    done = subprocess.run(
        command(held, address(held), DEVELOPMENT), pass_fds=[held.fileno()],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    (line,) = [json.loads(text) for text in done.stderr.splitlines()]
    assert line["text"] == (
        "socket activation: engine is development, which cannot take the listener that systemd hands over: "
        "use the native engine, or disable namesrv.socket"
    )
