"""Values that are made of files follow these, and keep what they were while the files cannot be used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from namesrv_common.files.watched_file import CHECK_SECONDS, WatchedFile, request_reload
from tests.support.virtual_clock import VirtualClock


class Follower:
    """A number in a file, a clock, and what was told."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "number"
        self.path.write_text("1")
        self.clock = VirtualClock()
        self.told: list[int | str] = []
        self.loads = 0
        self.writes: list[str] = []
        """What is written while the file is read, one after the other."""
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
        if self.writes:
            self.path.write_text(self.writes.pop(0))
        return number

    def look(self) -> tuple[int, int]:
        """Looks when it is time for it."""
        self.clock.advance(CHECK_SECONDS)
        return self.reloaded.refreshed()


@pytest.fixture
def follower(tmp_path: Path) -> Follower:
    return Follower(tmp_path)


def test_a_change_is_taken_when_the_file_has_looked_the_same_twice(follower: Follower) -> None:
    follower.path.write_text("22")
    assert follower.look() == (1, 1)
    assert follower.look() == (2, 22)
    assert (follower.told, follower.reloaded.value, follower.reloaded.generation) == ([22], 22, 2)


def test_a_file_that_keeps_changing_is_left_alone_until_it_stops(follower: Follower) -> None:
    for number in ("22", "333", "4444"):
        follower.path.write_text(number)
        assert follower.look() == (1, 1)
    assert follower.look() == (2, 4444)


def test_files_are_looked_at_no_more_than_once_a_second(follower: Follower) -> None:
    follower.path.write_text("22")
    for _ in range(5):
        assert follower.reloaded.refreshed() == (1, 1)
    assert follower.look() == (1, 1), "this was the first look"


def test_files_that_do_not_change_are_not_read_again(follower: Follower) -> None:
    for _ in range(5):
        follower.look()
    assert follower.loads == 1


@pytest.mark.parametrize("breakage", ["no number", None])
def test_a_change_that_cannot_be_used_keeps_the_value_and_is_told_once(
    follower: Follower, breakage: str | None
) -> None:
    if breakage is None:
        follower.path.unlink()
    else:
        follower.path.write_text(breakage)
    for _ in range(5):
        assert follower.look() == (1, 1)
    assert len(follower.told) == 1
    follower.path.write_text("22")
    follower.look()
    assert follower.look() == (2, 22)


def test_a_file_put_in_the_place_of_another_is_seen_though_it_is_as_old_and_as_large(follower: Follower) -> None:
    stat = follower.path.stat()
    (fresh := follower.path.with_name("fresh")).write_text("2")
    os.utime(fresh, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    fresh.replace(follower.path)
    follower.look()
    assert follower.look() == (2, 2)


def test_a_file_that_is_written_while_it_is_read_is_read_again(follower: Follower) -> None:
    follower.path.write_text("22")
    follower.look()
    follower.writes = ["333"]
    assert follower.look() == (1, 1)
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
    follower.path.write_text("half")
    for _ in range(4):
        follower.look()
        assert (follower.told, follower.reloaded.problem) == ([22, 22, 22], None)
    follower.look()
    assert follower.reloaded.problem == follower.told.pop() == "invalid literal for int() with base 10: 'half'"
    follower.path.write_text("333")
    follower.look()
    assert follower.look() == (5, 333)
    assert follower.reloaded.problem is None


def test_a_first_value_stands_in_for_files_that_cannot_be_used_yet(follower: Follower) -> None:
    follower.path.write_text("half")
    follower.reloaded = follower.made(first=lambda: 7)
    assert follower.reloaded.value == 7
    follower.look()
    assert len(follower.told) == 1
    follower.path.write_text("22")
    follower.look()
    assert follower.look() == (2, 22)


def test_files_that_cannot_be_used_at_first_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="never"):
        WatchedFile([tmp_path], lambda: (_ for _ in ()).throw(ValueError("never")))


def test_a_requested_reload_loads_unchanged_files_at_the_next_look(follower: Follower) -> None:
    request_reload()
    assert follower.reloaded.refreshed() == (2, 1)
    assert follower.told == [1]
    assert follower.look() == (2, 1)
    assert follower.loads == 2


def test_a_requested_reload_takes_a_change_without_waiting_for_a_second_look(follower: Follower) -> None:
    follower.path.write_text("22")
    request_reload()
    assert follower.reloaded.refreshed() == (2, 22)


def test_a_requested_reload_of_a_broken_file_keeps_the_value_and_reports_it(follower: Follower) -> None:
    follower.path.unlink()
    request_reload()
    assert follower.reloaded.refreshed() == (1, 1)
    assert follower.told == ["No such file or directory"]
