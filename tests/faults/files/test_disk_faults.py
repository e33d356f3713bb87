"""A disk that is full, read-only, broken, slow or hangs: the server goes on from memory, says so, and comes back."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import grpc
import pytest

from groundwork.grpc_errors import RichError
from tests.faults.fleet.operated_server import DURABLE, OperatedServer
from tests.support.programs.processes import BIN, Client, NamesrvProcess, eventually

SNAPSHOTS = ("--snapshot-interval-millis", "100")
DISK_BYTES = 1024 * 1024
FAULTS = {
    "full": "* write * = ENOSPC",
    "full in the middle of a write": "half write * = ENOSPC",
    "read-only": "before * = EROFS",
    "broken in fsync": "* fsync * = EIO",
    "broken in fsync of the folder": "* fsync-folder-of * = EIO",
    "broken before renaming": "before rename * = EIO",
    "broken after renaming": "after rename * = EIO",
}


def refused(server: OperatedServer, client: Client) -> None:
    """Each durable change is refused, and nothing of it is in force."""
    held = server.held(client)
    for file in DURABLE:
        with pytest.raises(grpc.RpcError) as caught:
            server.change(client, file)
        error = RichError.of(caught.value)
        assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "NOT_DURABLE")
        assert str(server.folder) not in error.message, "a place on the machine is no caller's business"
    assert server.held(client) == held


def serves(server: OperatedServer, client: Client) -> None:
    """Lookups and registrations go on."""
    server.register(client)
    assert client.route() is not None


def says_so(process: NamesrvProcess) -> None:
    """Once for each change that was refused, and once for the snapshots."""
    for what in DURABLE.values():
        events = eventually(partial(process.events, f"{what}_not_durable"))
        assert len(events) == 1
    eventually(lambda: process.events("snapshot_not_written"))


def takes_changes(server: OperatedServer, client: Client) -> None:
    for file in DURABLE:
        server.change(client, file)
    assert server.held(client) == server.acknowledged


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_disk_that_fails_costs_changes_and_nothing_else_until_it_is_mended(tmp_path: Path, fault: str) -> None:
    server = OperatedServer(tmp_path, *SNAPSHOTS)
    with server.start() as process, process.connect() as client:
        server.register(client)
        takes_changes(server, client)
        server.faults.write_text(fault)
        refused(server, client)
        serves(server, client)
        says_so(process)
        assert process._popen.poll() is None
        server.faults.write_text("")
        takes_changes(server, client)
        process.kill()
    with server.start() as process, process.connect() as client:
        assert server.held(client) == server.acknowledged
        assert not list(server.data_dir.glob("*.broken"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB at the place of the data directory."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if mount is None or umount is None:
        pytest.skip("needs mount")
    folder = tmp_path / "data"
    folder.mkdir()
    mounted = subprocess.run(
        [mount, "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs mount to be permitted")
    yield folder
    subprocess.run([umount, str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Leaves no room on a disk."""
    filler = disk / "filler"
    with pytest.raises(OSError, match="No space left on device"):
        filler.write_bytes(bytes(2 * DISK_BYTES))
    return filler


def remount(disk: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(disk)], check=True)


def test_a_disk_without_room_is_no_end(small_disk: Path, tmp_path: Path) -> None:
    server = OperatedServer(tmp_path, *SNAPSHOTS)
    with server.start() as process, process.connect() as client:
        server.register(client)
        takes_changes(server, client)
        filler = fill(small_disk)
        refused(server, client)
        serves(server, client)
        says_so(process)
        filler.unlink()
        takes_changes(server, client)
        process.kill()
    with server.start() as process, process.connect() as client:
        assert server.held(client) == server.acknowledged


def start_by_hand(folder: Path) -> subprocess.CompletedProcess[str]:
    """Starts a server that should say why it cannot."""
    program = [str(BIN / "namesrv"), "serve", "--listen", "127.0.0.1:0", "--data-dir", str(folder)]
    return subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)


def test_on_a_disk_without_room_a_server_says_so_and_does_not_start(small_disk: Path) -> None:
    fill(small_disk)
    ended = start_by_hand(small_disk)
    assert ended.returncode == 2
    assert "No space left on device" in ended.stderr
    assert str(small_disk) in ended.stderr
    assert "Traceback" not in ended.stderr


def test_on_a_read_only_disk_a_server_says_so_and_does_not_start(small_disk: Path) -> None:
    remount(small_disk, "ro")
    try:
        ended = start_by_hand(small_disk)
    finally:
        remount(small_disk, "rw")
    assert ended.returncode == 2
    assert "Read-only file system" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_while_a_slow_disk_writes_lookups_and_registrations_are_answered(tmp_path: Path) -> None:
    server = OperatedServer(tmp_path)
    with server.start() as process, process.connect() as client, ThreadPoolExecutor(1) as operator:
        server.register(client)
        server.change(client, "kvConfig.json")
        held = server.held(client)
        server.faults.write_text("before fsync kvConfig.json* = delay 3\n")
        before = len(server.hits())
        change = operator.submit(server.change, client, "kvConfig.json")
        eventually(lambda: "before fsync kvConfig.json.bak.tmp" in server.hits()[before:])
        for _ in range(20):
            assert not change.done()
            serves(server, client)
            assert server.held(client) == held, "what is not durable yet is not seen"
            if change.done():
                break
        change.result(60)
        assert server.held(client) == server.acknowledged


def test_a_server_ends_although_its_disk_hangs(tmp_path: Path) -> None:
    """Before, the interpreter waited at its end for the thread that writes, for as long as the disk hung."""
    server = OperatedServer(tmp_path)
    with server.start() as process, process.connect() as client, ThreadPoolExecutor(1) as operator:
        server.register(client)
        server.faults.write_text("before fsync kvConfig.json* = delay 600\n")
        change = operator.submit(server.change, client, "kvConfig.json")
        eventually(lambda: "before fsync kvConfig.json.tmp" in server.hits())
        assert process.terminate(within_seconds=60) == 0
        assert isinstance(change.exception(60), grpc.RpcError)
    with server.start() as process, process.connect() as client:
        server.register(client)
        server.check(client)
