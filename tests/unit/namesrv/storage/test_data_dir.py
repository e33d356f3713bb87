"""The data folder: one process has it, and loads its snapshot file as committed or not at all."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from google.protobuf.internal.encoder import _VarintBytes  # type: ignore[attr-defined]
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from namesrv.storage import data_dir
from namesrv.storage.data_dir import LOCK_FILE, MAX_FILE_BYTES, MAX_MESSAGE_BYTES, DataDir, DataDirError, SnapshotFile
from namesrv_common.files import disk

FORMAT = b"namesrv route snapshot, format 1\n"
OLDER, OLD, NEW = ([name, name * 300, b""] for name in (b"older", b"old", b"new"))

message_lists = st.lists(st.binary(max_size=300), max_size=4)


def main(folder: Path) -> Path:
    return folder / "routes.snapshot"


def names(folder: Path) -> set[str]:
    return {entry.name.removeprefix("routes.snapshot") for entry in folder.iterdir()}


def commit(folder: Path, messages: Iterable[bytes]) -> None:
    SnapshotFile(folder).write(messages)


def sealed(body: bytes) -> bytes:
    """A file with this body whose checksum is right."""
    return FORMAT + body + hashlib.sha256(FORMAT + body).digest()


def loaded(folder: Path) -> tuple[list[bytes] | None, list[Any]]:
    """What is loaded, and what is logged in the meantime."""
    with capture_logs() as logs:
        messages = SnapshotFile(folder).load()
    assert {line["log_level"] for line in logs} <= {"warning"}
    return messages, logs


def refusal(folder: Path, content: bytes) -> str:
    """Why a file with this content is not loaded. It is left as it is."""
    main(folder).write_bytes(content)
    messages, logs = loaded(folder)
    assert messages is None
    (line,) = logs
    assert line["event"] == "snapshot_not_loaded"
    assert line["problem"].startswith(f"{main(folder)} ")
    assert main(folder).read_bytes() == content
    return str(line["problem"].removeprefix(f"{main(folder)} "))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder whose file holds NEW."""
    commit(tmp_path, NEW)
    return tmp_path


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the many examples of a property."""
    return tmp_path_factory.mktemp("snapshots")


def test_a_folder_without_a_snapshot_loads_none_and_logs_nothing(tmp_path: Path) -> None:
    assert loaded(tmp_path) == (None, [])
    assert names(tmp_path) == set()


@given(snapshots=st.lists(message_lists, min_size=1, max_size=3))
def test_the_last_committed_messages_are_loaded_and_nothing_else_is_there(
    tmp_path_factory: pytest.TempPathFactory, snapshots: list[list[bytes]]
) -> None:
    folder = tmp_path_factory.mktemp("snapshots")
    for messages in snapshots:
        commit(folder, messages)
    assert loaded(folder) == (snapshots[-1], [])
    assert names(folder) == {""}


@given(messages=message_lists)
def test_the_format_is_a_line_then_delimited_messages_then_the_digest(scratch: Path, messages: list[bytes]) -> None:
    commit(scratch, messages)
    body = b"".join(_VarintBytes(len(message)) + message for message in messages)
    assert main(scratch).read_bytes() == sealed(body)


def test_every_single_truncation_and_flipped_bit_of_one_file_is_noticed(tmp_path: Path) -> None:
    commit(tmp_path, [b"a", b"", b"bcd" * 50])
    content = main(tmp_path).read_bytes()
    for end in range(len(content)):
        assert refusal(tmp_path, content[:end])
    for place, bit in itertools.product(range(len(content)), range(8)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << bit
        assert refusal(tmp_path, bytes(flipped))


REFUSALS = {
    "empty": (b"", "is cut off"),
    "digest alone": (b"x" * 32, "is cut off"),
    "another format": (sealed(b"").replace(b"format 1", b"format 2"), "is no route snapshot of format 1"),
    "checksum of something else": (sealed(b"\x01x").replace(b"\x01x", b"\x01y"), "does not match its checksum"),
    "a length beyond the end": (sealed(b"\x05abc"), "is cut off"),
    "half a length": (sealed(b"\x80"), "is cut off"),
    "a length without an end": (sealed(b"\xff" * 9), "holds something that is no length of a message"),
    "a length over the limit": (
        sealed(b"\x81\x80\x80\x08"),
        "holds a message of 16777217 bytes, over the limit of 16777216",
    ),
}


@pytest.mark.parametrize(("content", "reason"), REFUSALS.values(), ids=REFUSALS)
def test_a_broken_file_is_told_by_its_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    assert refusal(tmp_path, content) == reason


def test_a_message_at_the_limit_is_taken_and_a_longer_one_is_refused(tmp_path: Path) -> None:
    longest = b"x" * MAX_MESSAGE_BYTES
    commit(tmp_path, [longest])
    with pytest.raises(OSError, match="16777217 bytes is over the limit of 16777216") as raised:
        commit(tmp_path, [longest + b"x"])
    assert raised.value.errno == errno.EFBIG
    assert loaded(tmp_path) == ([longest], [])


@pytest.mark.parametrize(("size", "reason"), [(MAX_FILE_BYTES, "format 1"), (MAX_FILE_BYTES + 1, "over the limit")])
def test_a_file_over_the_limit_is_not_read(tmp_path: Path, size: int, reason: str) -> None:
    main(tmp_path).touch()
    os.truncate(main(tmp_path), size)
    messages, logs = loaded(tmp_path)
    assert messages is None
    assert reason in logs[0]["problem"]


def test_no_file_is_written_that_would_be_too_large_to_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = len(sealed(b"\x04four"))
    monkeypatch.setattr(data_dir, "MAX_FILE_BYTES", exact)
    commit(tmp_path, [b"four"])
    with pytest.raises(OSError, match=f"over the limit of {exact}") as raised:
        commit(tmp_path, [b"four", b""])
    assert raised.value.errno == errno.EFBIG
    assert loaded(tmp_path) == ([b"four"], [])


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_something_else_in_the_place_of_the_file_is_not_loaded(saved: Path, make: Callable[[Path], None]) -> None:
    main(saved).unlink()
    make(main(saved))
    messages, logs = loaded(saved)
    assert messages is None
    assert [line["problem"] for line in logs] == [f"{main(saved)} is no regular file"]


STEPS = ("open_new", "write", "sync", "rename", "remove", "sync_folder_of")


def fail_at(number: int, failure: str, patch: pytest.MonkeyPatch) -> list[str]:
    """Has the step on the disk with a number fail: once, as well as all after it, or although it is done.

    Returns:
        The steps, also those to come.
    """
    steps: list[str] = []

    def failing(name: str) -> Callable[..., Any]:
        step = getattr(disk, name)

        def take(*arguments: Any) -> Any:
            steps.append(name)
            fails = len(steps) == number or (failure == "from then on" and len(steps) > number)
            made = None if fails and failure != "late" else step(*arguments)
            if fails:
                if name == "open_new" and made is not None:
                    made.close()
                raise OSError(errno.EIO, "Input/output error")
            return made

        return take

    for name in STEPS:
        patch.setattr(disk, name, failing(name))
    return steps


@pytest.mark.parametrize(("module", "name", "expected"), [(disk, "remove", NEW), (io, "open", None)])
def test_no_failing_step_lets_a_load_raise(
    saved: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, expected: list[bytes] | None
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(module, name, fail)
        messages, logs = loaded(saved)
    assert messages == expected
    assert [line["event"] for line in logs] == ["snapshot_not_loaded"] * (expected is None)


def test_a_snapshot_whose_messages_cannot_be_made_leaves_nothing(saved: Path) -> None:
    def failing() -> Iterator[bytes]:
        yield b"x" * 100_000
        assert names(saved) == {"", ".tmp"}
        raise LookupError

    with pytest.raises(LookupError):
        commit(saved, failing())
    assert names(saved) == {""}
    assert loaded(saved) == (NEW, [])


@pytest.mark.parametrize("by_load", [True, False], ids=["load", "next snapshot"])
def test_what_a_killed_process_left_over_is_gone_after(saved: Path, by_load: bool) -> None:
    main(saved).with_name("routes.snapshot.tmp").write_bytes(b"x" * 1000)
    if by_load:
        assert loaded(saved) == (NEW, [])
    else:
        commit(saved, OLDER)
        assert SnapshotFile(saved).load() == OLDER
    assert names(saved) == {""}


def test_a_disk_that_is_full_at_any_message_leaves_the_snapshot_before(saved: Path) -> None:
    for messages in ([], [b"small"], [b"x" * 1_000_000] * 2):
        main(saved).with_name("routes.snapshot.tmp").symlink_to("/dev/full")
        with pytest.raises(OSError, match="No space left"):
            commit(saved, messages)
        assert names(saved) == {""}
        assert loaded(saved) == (NEW, [])


@pytest.mark.parametrize("failure", ["once", "late", "from then on"])
@pytest.mark.parametrize("old", [None, OLD], ids=["first", "second"])
def test_a_snapshot_that_fails_at_any_step_leaves_the_one_before_or_is_there(
    tmp_path: Path, failure: str, old: list[bytes] | None
) -> None:
    for number in itertools.count(1):
        folder = tmp_path / str(number)
        folder.mkdir()
        if old is not None:
            commit(folder, old)
        raised = False
        with pytest.MonkeyPatch.context() as patch:
            steps = fail_at(number, failure, patch)
            try:
                commit(folder, NEW)
            except OSError:
                raised = True
        messages_now = SnapshotFile(folder).load()
        assert messages_now in ([old, NEW] if raised else [NEW]), f"step {number}"
        assert ".tmp" not in names(folder), f"step {number}"
        commit(folder, OLDER)
        assert loaded(folder) == (OLDER, [])
        if len(steps) < number:
            assert not raised
            break
    assert {"open_new", "write", "sync", "rename", "sync_folder_of"} <= set(steps)


# The folder.


def test_the_folder_is_made(tmp_path: Path) -> None:
    DataDir.open(tmp_path / "a" / "b").close()
    assert (tmp_path / "a" / "b").is_dir()


def test_a_second_process_is_refused_and_told_the_owner(tmp_path: Path) -> None:
    first = DataDir.open(tmp_path)
    with pytest.raises(DataDirError) as raised:
        DataDir.open(tmp_path)
    assert str(raised.value) == f"data directory {tmp_path} is in use by process {os.getpid()}: end that first"
    first.close()
    DataDir.open(tmp_path).close()


def test_a_folder_that_is_a_file_or_in_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(DataDirError) as raised:
        DataDir.open(file)
    assert str(raised.value) == f"data directory {file} is not a folder: move it away, or name another"
    with pytest.raises(DataDirError) as raised:
        DataDir.open(file / "data")
    assert str(raised.value) == f"data directory {file}/data: Not a directory: move away what is in its place"


REFUSED = [
    (fcntl, "flock", errno.ENOLCK, " cannot be locked: No locks available: use a file system with locks, such as"),
    (os, "write", errno.ENOSPC, ": No space left on device: make room on the disk"),
    (os, "open", errno.EACCES, ": Permission denied: give this process the right to read and write it"),
    (os, "open", errno.EROFS, ": Read-only file system: give this process the right to read and write it"),
    (os, "ftruncate", errno.EIO, ": Input/output error: check the disk"),
]
"""Calls of the system that fail, and what an operator reads."""


@pytest.mark.parametrize(("module", "call", "error", "text"), REFUSED)
def test_a_refused_folder_is_named_with_the_remedy_and_left_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, call: str, error: int, text: str
) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patched:
        patched.setattr(module, call, refuse)
        with pytest.raises(DataDirError) as raised:
            DataDir.open(tmp_path)
    assert str(raised.value).startswith(f"data directory {tmp_path}{text}")
    assert all(link.resolve() != (tmp_path / LOCK_FILE).resolve() for link in Path("/proc/self/fd").iterdir())
    DataDir.open(tmp_path).close()
