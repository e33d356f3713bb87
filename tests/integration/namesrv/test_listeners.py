"""Listeners that systemd has opened, as the test plays it, and listeners without a file descriptor left."""

from __future__ import annotations

import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from namesrv.server.listeners import CannotListen, build_server, listen_at, listeners_handed_over
from namesrv.settings import NamesrvSettings
from namesrv_common.endpoints import Endpoint
from tests.support.engines import DEVELOPMENT, require_native
from tests.support.hostile.frames import hello
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import BIN, Client, NamesrvProcess, Process, cpu_seconds, eventually, sample
from tests.support.programs.rocketmq import RemotingClient
from tests.support.registrations import registration

ALL_TOPICS = 206

START = """
import os, sys
from tests.support.patience import TIMEOUT
numbers = sys.argv[1].split(",")
for target, number in enumerate(numbers, 3):
    os.dup2(int(number), target)
    os.set_inheritable(target, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(numbers)))
os.environ.update(LISTEN_FDNAMES=":".join(["namesrv.socket"] * len(numbers)))
os.execv(sys.argv[2], sys.argv[2:])
"""
"""What systemd does between fork and exec. The sockets become descriptors 3 and up. The variables name this process."""


def address(of: socket.socket) -> str:
    """The address of a socket as a setting."""
    return "{}:{}".format(*of.getsockname())


def test_callers_that_connect_during_a_restart_are_answered_after_it(tmp_path: Path) -> None:
    require_native()
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd,
        socket.create_server(("127.0.0.1", 0)) as held,
        socket.create_server(("127.0.0.1", 0)) as remoting,
    ):
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(TIMEOUT)
        at, numbers = address(held), (held.fileno(), remoting.fileno())
        begin = [sys.executable, "-c", START, ",".join(map(str, numbers)), str(BIN / "namesrv"), "serve"]
        flags = ["--listen", at, "--remoting-listen", address(remoting), "--log-format", "json"]
        for _ in range(2):  # the second one is a restart
            with (
                grpc.insecure_channel(at, [("grpc.use_local_subchannel_pool", 1)]) as connection,
                RemotingClient(address(remoting)) as of_rocketmq,
            ):
                early = grpc.channel_ready_future(connection)
                notify = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
                with Process([*begin, *flags, "--warm-up-millis", "0"], notify, numbers) as process:
                    assert systemd.recv(100) == b"READY=1"
                    started = process.wait_for("namesrv_started")
                    assert (started["listen"], started["remoting"]) == (at, address(remoting))
                    early.result(TIMEOUT)
                    assert Client(connection).route() is None
                    assert of_rocketmq.ask(ALL_TOPICS).code == 0
                    assert process.terminate() == 0
                    assert systemd.recv(100) == b"STOPPING=1"
                    assert process.raw.count("systemd_not_told") == 0


async def test_the_development_engine_says_that_it_cannot_take_a_socket() -> None:
    engine = build_server(NamesrvSettings.load(None, {"engine": DEVELOPMENT}))
    with socket.create_server(("127.0.0.1", 0)) as held, pytest.raises(CannotListen) as refused:
        listen_at("listen", Endpoint.parse(address(held)), engine.listen, [held])
    assert str(refused.value) == (
        "socket activation: engine is development, which cannot take the listener that systemd hands over: "
        "use the native engine, or disable namesrv.socket"
    )


@pytest.fixture
def held() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def variables(count: str = "1", names: str = "grpc", process: int | None = None) -> dict[str, str]:
    return {"LISTEN_PID": str(process or os.getpid()), "LISTEN_FDS": count, "LISTEN_FDNAMES": names, "HOME": "/"}


def descriptor(of: socket.socket) -> int:
    """A descriptor that may be closed."""
    return os.dup(of.fileno())


def handed(listen: str, environment: MutableMapping[str, str], first: int) -> dict[str, list[socket.socket]]:
    """The sockets of a name server with this address for gRPC."""
    settings = NamesrvSettings.load(None, {"listen": listen, "remoting_listen": "127.0.0.1:2"})
    return listeners_handed_over(settings, environment, first)


def test_a_listening_socket_is_taken_once_and_is_not_inherited(held: socket.socket) -> None:
    environment, number = variables(), descriptor(held)
    os.set_inheritable(number, True)
    (taken,) = handed(address(held), environment, number)["listen"]
    with taken:
        assert taken.getsockname() == held.getsockname()
        assert not os.get_inheritable(number)
    assert environment == {"HOME": "/"}
    assert handed(address(held), environment, number) == {"listen": [], "remoting_listen": []}


def test_port_zero_and_a_host_name_stand_for_the_address_that_is_there(held: socket.socket) -> None:
    for listen in ("localhost:0", f"localhost:{held.getsockname()[1]}"):
        (taken,) = handed(listen, variables(), descriptor(held))["listen"]
        taken.close()


def test_without_variables_of_this_process_there_is_nothing(held: socket.socket) -> None:
    for environment in ({}, variables(process=1), variables(count="0"), variables(count="")):
        assert not any(handed(address(held), environment, held.fileno()).values())


@pytest.mark.parametrize("count", ["-1", "\N{ARABIC-INDIC DIGIT ONE}"])
def test_a_count_that_is_no_number_is_refused(held: socket.socket, count: str) -> None:
    with pytest.raises(CannotListen, match=r"LISTEN_FDS is .*, not the number of sockets"):
        handed(address(held), variables(count), held.fileno())


def test_a_descriptor_that_is_no_socket_is_refused_by_number_and_name(tmp_path: Path) -> None:
    with (
        (tmp_path / "file").open("w") as file,
        pytest.raises(CannotListen, match=r"\(metrics\) of LISTEN_FDS is no socket"),
    ):
        handed("127.0.0.1:1", variables(names="metrics"), file.fileno())


def test_a_socket_that_does_not_listen_or_listens_elsewhere_is_refused(held: socket.socket) -> None:
    with pytest.raises(CannotListen, match=rf"grpc listens at {address(held)}, but listen is 127\.0\.0\.1:1 and "):
        handed("127.0.0.1:1", variables(), descriptor(held))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        with pytest.raises(CannotListen, match=r"\(grpc\) of LISTEN_FDS does not listen: it needs ListenStream="):
            handed(address(silent), variables(), descriptor(silent))


def test_a_unix_socket_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "socket"))
        unix.listen()
        with pytest.raises(CannotListen, match=r"unknown is not of TCP, but listen is 127\.0\.0\.1:1 and remoting_"):
            handed("127.0.0.1:1", variables(names=""), descriptor(unix))


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


@pytest.mark.slow
@pytest.mark.parametrize("listener", ["listen", "remoting"])
def test_who_is_there_is_served_and_the_others_once_there_are_descriptors(listener: str) -> None:
    with NamesrvProcess("--remoting-listen", "127.0.0.1:0") as server, server.connect() as client:
        client.registration.RegisterBroker(registration(), timeout=client.TIMEOUT)
        attacked = Endpoint.parse(str(server.wait_for("namesrv_started")[listener]))
        came = time.monotonic()
        limit, few = resource.prlimit(server.pid, resource.RLIMIT_NOFILE), sample(server.pid)["files"] + SPARE
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (few, limit[1]))
        with ExitStack() as held:
            for _ in range(NEWCOMERS):
                peer = held.enter_context(socket.create_connection(attacked, timeout=TIMEOUT))
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
        if listener == "listen":
            with server.connect() as newcomer:
                assert newcomer.route() is not None
        else:
            with RemotingClient(str(attacked)) as of_rocketmq:
                assert of_rocketmq.ask(105, {"topic": "NOPE"}).code == 17
        server.wait_for("accept_failed")
        assert len(server.events("accept_failed")) <= 1 + (time.monotonic() - came) // TOLD_EVERY_SECONDS
        assert "Traceback" not in server.raw
