"""Files: read within a bound, and followed."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from namesrv_common.files.regular_files import read_at_most
from namesrv_common.files.watched_file import CHECK_SECONDS, WatchedFile, request_reload
from tests.support.programs.processes import eventually
from tests.support.virtual_clock import VirtualClock


def test_a_file_of_just_the_bound_is_read_and_a_larger_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 8)
    assert read_at_most(path, 8) == b"x" * 8
    with pytest.raises(OSError, match="is larger than 7 bytes") as caught:
        read_at_most(path, 7)
    assert (caught.value.strerror, caught.value.filename) == ("is larger than 7 bytes", str(path))
    # This file says that it is empty, and is not: as one to which something is added in the meantime.
    with pytest.raises(OSError, match="grows while it is read"):
        read_at_most(Path("/proc/self/status"), 1_000_000)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (os.mkfifo, "is a named pipe and no file"),
        (os.mkdir, "Is a directory"),
        (lambda path: path.symlink_to("/dev/zero"), "is a device and no file"),
        (lambda path: os.mknod(path, stat.S_IFSOCK | 0o600), "No such device or address"),
    ],
    ids=["pipe", "folder", "device", "socket"],
)
def test_what_is_no_file_is_an_error_at_once(tmp_path: Path, make: Callable[[Path], None], problem: str) -> None:
    make(tmp_path / "x")
    with pytest.raises(OSError, match=problem):
        read_at_most(tmp_path / "x", 8)


class Follower:
    """A number in a file, a clock, and what was told."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "number"
        self.path.write_text("1")
        self.clock = VirtualClock()
        self.told: list[int | str] = []
        self.loads = 0
        self.meanwhile: Callable[[], object] = lambda: None
        """What happens while the file is read."""
        self.reloaded = self.made()

    def made(self, **more: Any) -> WatchedFile[int]:
        return WatchedFile(
            [self.path],
            self._load,
            on_reloaded=self.told.append,
            on_kept=lambda error: self.told.append(str(error)),
            monotonic=self.clock,
            **more,
        )

    def _load(self) -> int:
        self.loads += 1
        try:
            number = int(self.path.read_text())
        except OSError as error:
            raise ValueError(error.strerror) from error
        self.meanwhile()
        return number

    def look(self) -> tuple[int, int]:
        """Looks when it is time for it."""
        self.clock.advance(CHECK_SECONDS)
        return self.reloaded.refreshed()


@pytest.fixture
def follower(tmp_path: Path) -> Follower:
    return Follower(tmp_path)


def test_a_change_is_taken_when_two_looks_a_second_apart_have_seen_it(follower: Follower) -> None:
    follower.path.write_text("22")
    for _ in range(5):
        assert follower.reloaded.refreshed() == follower.reloaded.refreshed_within(60) == (1, 1)
    assert follower.look() == (1, 1), "this was the first look"
    assert follower.look() == (2, 22)
    assert (follower.told, follower.reloaded.value) == ([22], 22)
    stat = follower.path.stat()
    (fresh := follower.path.with_name("fresh")).write_text("33")
    os.utime(fresh, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as old and as large
    fresh.replace(follower.path)
    follower.look()
    assert follower.look() == (3, 33)


def test_a_file_that_is_written_while_it_is_read_is_read_again(follower: Follower) -> None:
    follower.path.write_text("22")
    follower.look()
    follower.meanwhile = lambda: follower.path.write_text("333")
    assert follower.look() == (1, 1)
    follower.meanwhile = lambda: None
    assert follower.look() == (1, 1), "it has looked like this once"
    assert follower.look() == (2, 333)


def test_within_the_grace_a_broken_file_is_not_reported(follower: Follower) -> None:
    follower.reloaded = follower.made(grace_seconds=3 * CHECK_SECONDS)
    for _ in range(3):
        follower.path.write_text("half")
        follower.look()
        follower.look()
        follower.path.write_text("22")
        follower.look()
        follower.look()
    assert follower.told == [22, 22, 22]
    for change in ("half", None, "still half", None):
        if change:
            follower.path.write_text(change)
        follower.look()
        assert (follower.told, follower.reloaded.problem) == ([22, 22, 22], None)
    follower.look()
    assert follower.reloaded.problem == follower.told.pop() == "invalid literal for int() with base 10: 'still half'"
    follower.path.write_text("333")
    follower.look()
    assert follower.look() == (5, 333)
    assert follower.reloaded.problem is None


def test_files_that_cannot_be_used_keep_the_first_value_and_are_told_once(follower: Follower) -> None:
    follower.path.write_text("half")
    follower.reloaded = follower.made(first=lambda: 7)
    for _ in range(5):
        assert follower.look() == (1, 7)
    assert len(follower.told) == 1
    follower.path.write_text("22")
    follower.look()
    assert follower.look() == (2, 22)


def test_a_disk_that_hangs_holds_up_one_user_for_as_long_as_it_allows(follower: Follower) -> None:
    disk, before = threading.Event(), {*threading.enumerate()}
    follower.path.write_text("22")
    follower.look()
    follower.meanwhile = disk.wait
    follower.clock.advance(CHECK_SECONDS)
    assert follower.reloaded.refreshed_within(0.01) == (1, 1)
    eventually(lambda: follower.loads == 2)
    follower.clock.advance(CHECK_SECONDS)
    assert follower.reloaded.refreshed_within(60) == (1, 1), "it does not wait for a look under way"
    assert len({*threading.enumerate()} - before) == 1
    disk.set()
    eventually(lambda: follower.reloaded.refreshed_within(0), lambda seen: seen == (2, 22))
    follower.path.write_text("333")
    follower.look()
    follower.clock.advance(CHECK_SECONDS)
    assert follower.reloaded.refreshed_within(60) == (3, 333), "it waits for a look that ends soon"


def test_a_requested_reload_loads_unchanged_and_broken_files_at_once(follower: Follower) -> None:
    assert follower.look() == follower.look() == (1, 1)
    request_reload()
    assert follower.reloaded.refreshed() == (2, 1)
    assert follower.told == [1]
    assert follower.look() == (2, 1)
    assert follower.loads == 2
    follower.path.unlink()
    request_reload()
    assert follower.reloaded.refreshed() == (2, 1)
    assert follower.told == [1, "No such file or directory"]
