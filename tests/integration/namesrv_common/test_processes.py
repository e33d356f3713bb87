"""What holds for a process as a whole: its end, its memory, its descriptors, and what it has of systemd."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, MutableMapping
from pathlib import Path

import pytest
import structlog

from namesrv_common.endpoints import Endpoint
from namesrv_common.process.systemd import feed_watchdog, listeners_handed_over, tell_systemd, watchdog_seconds

HANGING_CALL = """
import threading
from namesrv_common.process.shutdown import DaemonExecutor
executor, begun = DaemonExecutor(1, "hanging"), threading.Event()
executor.submit(lambda: (begun.set(), threading.Event().wait()))
begun.wait()
executor.shutdown(wait=False)
print("end")
"""

FREED_MEMORY = """
import asyncio
from pathlib import Path
from namesrv_common.process.program import return_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

async def main():
    pieces = [b"x" * 64_000 for _ in range(4_000)]
    del pieces[::2]
    kept = resident()
    trimming = asyncio.create_task(return_freed_memory(0.01))
    async with asyncio.timeout(30):
        while resident() > kept - 100:
            await asyncio.sleep(0.01)
    trimming.cancel()

asyncio.run(main())
"""

ALL_DESCRIPTORS = (
    "import resource; from namesrv_common.process.program import use_all_descriptors, descriptors_of_listener;"
    "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 1_000)); use_all_descriptors();"
    "print(*resource.getrlimit(resource.RLIMIT_NOFILE), descriptors_of_listener(1))"
)


def printed_by(program: str) -> str:
    """What a Python process prints that runs a program to its end."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_process_ends_although_a_call_hangs() -> None:
    assert printed_by(HANGING_CALL) == "end\n"


def test_memory_between_pieces_in_use_is_returned() -> None:
    printed_by(FREED_MEMORY)


def test_a_process_uses_all_descriptors_that_it_may_have() -> None:
    assert printed_by(ALL_DESCRIPTORS).split() == ["1000", "1000", "750"]


@pytest.fixture
def held() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def variables(count: str = "1", names: str = "grpc", process: int | None = None) -> dict[str, str]:
    return {"LISTEN_PID": str(process or os.getpid()), "LISTEN_FDS": count, "LISTEN_FDNAMES": names, "HOME": "/"}


def descriptor(of: socket.socket) -> int:
    """A descriptor that may be closed."""
    return os.dup(of.fileno())


def endpoint(of: socket.socket) -> Endpoint:
    return Endpoint(*of.getsockname())


def handed(listen: Endpoint, environment: MutableMapping[str, str], first: int) -> dict[str, list[socket.socket]]:
    """The sockets of a name server with this address for gRPC."""
    listens = {"listen": listen, "remoting_listen": Endpoint("127.0.0.1", 2)}
    return listeners_handed_over(listens, environment, first)


def test_a_listening_socket_is_taken_once_and_is_not_inherited(held: socket.socket) -> None:
    environment, number = variables(), descriptor(held)
    os.set_inheritable(number, True)
    (taken,) = handed(endpoint(held), environment, number)["listen"]
    with taken:
        assert taken.getsockname() == held.getsockname()
        assert not os.get_inheritable(number)
    assert environment == {"HOME": "/"}
    assert handed(endpoint(held), environment, number) == {"listen": [], "remoting_listen": []}


def test_port_zero_and_a_host_name_stand_for_the_address_that_is_there(held: socket.socket) -> None:
    for listen in (Endpoint("localhost", 0), endpoint(held)._replace(host="localhost")):
        (taken,) = handed(listen, variables(), descriptor(held))["listen"]
        taken.close()


def test_without_variables_of_this_process_there_is_nothing(held: socket.socket) -> None:
    for environment in ({}, variables(process=1), variables(count="0"), variables(count="")):
        assert not any(handed(endpoint(held), environment, held.fileno()).values())


@pytest.mark.parametrize("count", ["-1", "\N{ARABIC-INDIC DIGIT ONE}"])
def test_a_count_that_is_no_number_is_refused(held: socket.socket, count: str) -> None:
    with pytest.raises(ValueError, match=r"LISTEN_FDS is .*, not the number of sockets"):
        handed(endpoint(held), variables(count), held.fileno())


def test_a_descriptor_that_is_no_socket_is_refused_by_number_and_name(tmp_path: Path) -> None:
    with (
        (tmp_path / "file").open("w") as file,
        pytest.raises(ValueError, match=r"\(metrics\) of LISTEN_FDS is no socket"),
    ):
        handed(Endpoint("127.0.0.1", 1), variables(names="metrics"), file.fileno())


def test_a_socket_that_does_not_listen_or_listens_elsewhere_is_refused(held: socket.socket) -> None:
    with pytest.raises(ValueError, match=rf"grpc listens at {endpoint(held)}, but listen is 127\.0\.0\.1:1 and "):
        handed(Endpoint("127.0.0.1", 1), variables(), descriptor(held))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        with pytest.raises(ValueError, match=r"\(grpc\) of LISTEN_FDS does not listen: it needs ListenStream="):
            handed(endpoint(silent), variables(), descriptor(silent))


def test_a_unix_socket_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "socket"))
        unix.listen()
        with pytest.raises(
            ValueError, match=r"unknown is not of TCP, but listen is 127\.0\.0\.1:1 and remoting_listen"
        ):
            handed(Endpoint("127.0.0.1", 1), variables(names=""), descriptor(unix))


def test_systemd_is_told_at_an_abstract_name(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"namesrv-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{name}")
        systemd.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        tell_systemd("READY=1")
        assert systemd.recv(100) == b"READY=1"


def test_a_systemd_that_cannot_be_told_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    with structlog.testing.capture_logs() as said:
        tell_systemd("READY=1")
    assert [(line["event"], line["log_level"]) for line in said] == [("systemd_not_told", "warning")]


def test_the_watchdog_of_this_process_alone_counts() -> None:
    mine = {"WATCHDOG_PID": str(os.getpid()), "WATCHDOG_USEC": "15000000"}
    assert watchdog_seconds(mine) == 15.0
    assert watchdog_seconds({"WATCHDOG_USEC": "500000"}) == 0.5
    for other in ({}, mine | {"WATCHDOG_PID": "1"}, mine | {"WATCHDOG_USEC": "soon"}, mine | {"WATCHDOG_USEC": "0"}):
        assert watchdog_seconds(other) is None


def test_the_watchdog_is_fed_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hear(systemd: socket.socket) -> None:
        async with asyncio.timeout(10):
            feeding = asyncio.create_task(feed_watchdog(0.04))
            for _ in range(3):
                assert await asyncio.get_running_loop().sock_recv(systemd, 100) == b"WATCHDOG=1"
            feeding.cancel()

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        asyncio.run(hear(systemd))
