"""What holds for a process as a whole: its memory, its descriptors, and what it has of systemd."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from namesrv_common.process.systemd import feed_watchdog, tell_systemd, watchdog_seconds

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


def test_memory_between_pieces_in_use_is_returned() -> None:
    printed_by(FREED_MEMORY)


def test_a_process_uses_all_descriptors_that_it_may_have() -> None:
    assert printed_by(ALL_DESCRIPTORS).split() == ["1000", "1000", "750"]


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


def test_the_watchdog_is_fed_again_and_again_at_an_abstract_name(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"namesrv-test-{os.getpid()}"

    async def hear(systemd: socket.socket) -> None:
        async with asyncio.timeout(10):
            feeding = asyncio.create_task(feed_watchdog(0.04))
            for _ in range(3):
                assert await asyncio.get_running_loop().sock_recv(systemd, 100) == b"WATCHDOG=1"
            feeding.cancel()

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{name}")
        systemd.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        asyncio.run(hear(systemd))
