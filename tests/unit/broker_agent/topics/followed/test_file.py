"""topics.json of a broker, followed: what is seen of it, when it is a fault, and how an agent starts without it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker_agent.errors import StartError
from broker_agent.topics import table as table_module
from broker_agent.topics.followed_files import BROKEN_SECONDS, START_SECONDS
from broker_agent.topics.owned_file import TopicsFile, copy_of, replace_keeping_copy
from tests.unit.broker_agent.topics.followed.files import Passing, content, events, follower, seen, table


def test_a_changed_file_is_seen_once_whether_it_is_replaced_or_written_over(path: Path, time: Passing) -> None:
    followed = follower(path, time)
    assert followed.first_table() == table(1)
    assert followed.look() is None
    replace_keeping_copy(path, content(2))
    assert seen(followed) == table(2)
    assert followed.look() is None
    path.write_bytes(content(33))
    assert seen(followed) == table(33)
    assert followed.look() is None


@pytest.mark.parametrize("broken", [b"", b"{", content(2)[:-1], content(2) + content(1)[-9:], b"\xff", b"[]", None])
def test_a_broken_file_is_a_fault_only_once_it_stays_broken_and_is_said_once(
    path: Path, time: Passing, broken: bytes | None
) -> None:
    followed = follower(path, time)
    followed.first_table()
    with capture_logs() as logs:
        path.unlink()
        if broken is not None:
            path.write_bytes(broken)
        assert followed.look() is None
        for _ in range(100):
            assert followed.look() is None
            assert (followed.problem is not None) == (time.seconds >= 1_000 + BROKEN_SECONDS)
            time.advance(0.25)
        assert events(logs) == [("topics_file_broken", "warning")]
        path.write_bytes(content(2))
        assert seen(followed) == table(2)
    assert followed.problem is None
    assert events(logs) == [("topics_file_broken", "warning"), ("topics_file_good_again", "info")]


def test_more_topics_than_a_name_server_takes_are_a_fault_at_the_start_and_later(
    path: Path, time: Passing, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = follower(path, time)
    followed.first_table()
    monkeypatch.setattr(table_module, "MAX_TOPICS", 0)
    with pytest.raises(StartError, match=r"topics.json: it has 1 topics, over the limit of 0: no name server"):
        follower(path, time).first_table()
    path.write_bytes(content(2))
    for _ in range(20):
        assert followed.look() is None
        time.advance(0.25)
    assert followed.problem is not None
    assert followed.problem.startswith("it has 1 topics, over the limit of 0")


def test_a_half_written_file_that_is_soon_whole_is_never_mentioned(path: Path, time: Passing) -> None:
    followed = follower(path, time)
    followed.first_table()
    with capture_logs() as logs:
        for counter in range(2, 50):
            path.write_bytes(content(counter)[:40])
            assert seen(followed) is None
            time.advance(0.9 * BROKEN_SECONDS)
            path.write_bytes(content(counter))
            assert seen(followed) == table(counter)
            time.advance(0.9 * BROKEN_SECONDS)
    assert logs == []


def test_bad_topics_are_left_out_and_named_once(path: Path, time: Passing) -> None:
    followed = follower(path, time)
    followed.first_table()
    path.write_bytes(content(2).replace(b'"topic-2":', b'"topic 2":'))
    with capture_logs() as logs:
        read = seen(followed)
        path.write_bytes(content(3).replace(b'"topic-3":', b'"topic 2":'))
        assert seen(followed) is not None
    assert read is not None
    assert read.topics == ()
    assert [(line["event"], line["topics"]) for line in logs] == [("topics_skipped", ["topic 2"])]


def test_the_start_waits_a_moment_for_a_file_that_is_just_being_written(path: Path, time: Passing) -> None:
    path.write_bytes(b"{")
    followed = follower(path, time)
    waits = 0

    def wait(event: threading.Event, seconds: float) -> bool:
        nonlocal waits
        waits += 1
        if waits == 3:
            path.write_bytes(content(2))
        return Passing.wait(time, event, seconds)

    followed._wait = wait
    assert followed.first_table() == table(2)


def test_a_file_that_is_broken_at_the_start_is_a_clear_error_without_a_copy(path: Path, time: Passing) -> None:
    path.write_bytes(b"{")
    with pytest.raises(StartError) as raised:
        follower(path, time).first_table()
    assert str(raised.value).startswith(f"{path}: not JSON, or cut off: ")
    assert START_SECONDS <= time.seconds - 1_000 < START_SECONDS + 1


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (os.mkfifo, "is a named pipe and no file"),
        (os.mkdir, "Is a directory"),
        (lambda path: path.symlink_to("/dev/zero"), "is a device and no file"),
        (lambda path: path.symlink_to("/proc/self/status"), "grows while it is read"),
    ],
    ids=["pipe", "folder", "device", "grows"],
)
@pytest.mark.parametrize("mode", ["follow", "own"])
def test_what_is_no_file_or_grows_is_a_clear_error_within_a_second(
    path: Path, time: Passing, mode: str, make: Callable[[Path], None], problem: str
) -> None:
    path.unlink()
    make(path)
    load: Callable[[], object] = TopicsFile(path).load if mode == "own" else follower(path, time).first_table
    with pytest.raises(StartError, match=problem):
        load()
    assert time.seconds - 1_000 < 1


@pytest.mark.parametrize("broken", [b"{", None])
def test_the_copy_stands_in_with_a_warning_at_the_start_and_nothing_is_written(
    path: Path, time: Passing, broken: bytes | None
) -> None:
    replace_keeping_copy(path, content(2))
    path.unlink()
    if broken is not None:
        path.write_bytes(broken)
    followed = follower(path, time)
    with capture_logs() as logs:
        assert followed.first_table() == table(1)
    assert events(logs) == [("topics_taken_from_copy", "warning")]
    for _ in range(2):
        assert followed.look() is None
        time.advance(BROKEN_SECONDS)
    assert followed.look() is None
    assert followed.problem is not None
    assert path.exists() == (broken is not None)
    path.write_bytes(content(3))
    assert seen(followed) == table(3)
    assert followed.problem is None


def test_a_broken_file_and_a_broken_copy_are_both_named(path: Path, time: Passing) -> None:
    path.write_bytes(b"{")
    copy_of(path).write_bytes(b"[]")
    with pytest.raises(StartError, match=r"topics\.json: not JSON.*topics\.json\.bak: the file is \[\]"):
        follower(path, time).first_table()


def test_a_missing_file_is_an_error_at_once_or_waited_for(tmp_path: Path, time: Passing) -> None:
    missing = tmp_path / "store" / "topics.json"
    with pytest.raises(StartError, match=r"topics\.json: No such file or directory"):
        follower(missing, time).first_table()
    assert time.seconds == 1_000
    followed = follower(missing, time)
    with capture_logs() as logs:
        assert followed.first_table(without_file=table(7)) == table(7)
    assert events(logs) == [("topics_file_awaited", "warning")]
    for _ in range(20):
        time.advance(1.0)
        assert followed.look() is None
    assert followed.problem is None  # a broker may have no file for years
    missing.parent.mkdir()
    missing.write_bytes(content(2))
    assert seen(followed) == table(2)
