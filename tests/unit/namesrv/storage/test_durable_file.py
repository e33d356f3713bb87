"""DurableFile: whatever operation fails, the old or the new content is there; a broken file gives way to its copy."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from namesrv.storage.data_dir import DataDirError
from namesrv.storage.durable_file import BrokenFile, DurableFile
from tests.support.fakes.failing_disk import Failure, failing_disk
from tests.support.fakes.rot import rot, skip_without_checksums

NAME = "sealed"
OR_START_WITHOUT = "restore one of them, or remove both to start without it"


def encode(content: str) -> bytes:
    return f"<{content}>".encode()


def decode(content: bytes) -> str:
    if not (content.startswith(b"<") and content.endswith(b">")):
        raise BrokenFile("is not sealed")
    return content[1:-1].decode()


def durable(folder: Path) -> DurableFile[str]:
    return DurableFile(folder / NAME, "", decode, encode)


def folder_with(parent: Path, *contents: str) -> Path:
    """A fresh folder in which these were saved one after the other."""
    folder = parent / str(len(list(parent.iterdir())))
    folder.mkdir()
    for content in contents:
        durable(folder).save(content)
    return folder


def test_a_folder_without_a_file_holds_the_empty_content_and_stays_empty(tmp_path: Path) -> None:
    assert durable(tmp_path).load() == ""
    assert list(tmp_path.iterdir()) == []


@given(contents=st.lists(st.text(max_size=20), min_size=1, max_size=4))
def test_the_file_holds_what_was_saved_last_and_the_copy_what_was_before(
    tmp_path_factory: pytest.TempPathFactory, contents: list[str]
) -> None:
    folder = folder_with(tmp_path_factory.mktemp("saved"), *contents)
    with capture_logs() as logs:
        assert durable(folder).load() == contents[-1]
    assert logs == []
    (folder / NAME).unlink()
    if len(contents) > 1:
        assert durable(folder).load() == contents[-2]
        assert (folder / NAME).read_bytes() == encode(contents[-2])


@pytest.mark.parametrize("failure", Failure)
@pytest.mark.parametrize("before", [(), ("older",), ("oldest", "older")], ids=["first", "second", "third"])
def test_a_save_that_fails_at_any_operation_leaves_the_old_content_or_the_new_one(
    tmp_path: Path, failure: Failure, before: tuple[str, ...]
) -> None:
    old = before[-1] if before else ""
    for number in itertools.count(1):
        folder = folder_with(tmp_path, *before)
        raised = False
        with failing_disk(number, failure) as disk:
            try:
                durable(folder).save("new")
            except OSError:
                raised = True
        assert raised is disk.failed
        if not disk.failed:
            assert number > 5, "open, write, flush, sync and rename are among the operations"
            break
        may_be = {old, "new"} if failure is Failure.FROM_THEN_ON else {old}
        assert durable(folder).load() in may_be, f"operation {number}"
        durable(folder).save("next")
        assert durable(folder).load() == "next"


@pytest.mark.parametrize("failure", Failure)
def test_a_restoration_that_fails_at_any_operation_is_told_and_done_by_the_next_load(
    tmp_path: Path, failure: Failure
) -> None:
    for number in itertools.count(1):
        folder = folder_with(tmp_path, "one", "two")
        (folder / NAME).write_bytes(b"<tw")
        with failing_disk(number, failure) as disk:
            try:
                assert durable(folder).load() == "one"
            except DataDirError as error:
                assert "Input/output error" in str(error)  # noqa: PT017 - some numbers are beyond the last operation
                assert disk.failed
        assert durable(folder).load() == "one", f"operation {number}"
        assert (folder / f"{NAME}.broken").read_bytes() == b"<tw"
        if not disk.failed:
            break


def test_a_restoration_is_a_warning_with_file_copy_and_problem(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "one", "two")
    (folder / NAME).write_bytes(b"")
    with capture_logs() as logs:
        assert durable(folder).load() == "one"
    file = str(folder / NAME)
    assert logs == [
        {
            "event": "restored_from_copy",
            "log_level": "warning",
            "file": file,
            "problem": f"{file} is not sealed",
            "copy": f"{file}.bak",
        }
    ]


def test_a_file_and_a_copy_that_are_broken_are_refused_with_both_reasons_and_stay(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "one", "two")
    for name in (NAME, f"{NAME}.bak"):
        (folder / name).write_bytes(b"?")
    file = re.escape(str(folder / NAME))
    with pytest.raises(DataDirError, match=rf"^{file} is not sealed; {file}\.bak is not sealed; {OR_START_WITHOUT}$"):
        durable(folder).load()
    assert {entry.name: entry.read_bytes() for entry in folder.iterdir()} == {NAME: b"?", f"{NAME}.bak": b"?"}


def test_a_broken_file_without_a_copy_is_refused_and_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"?")
    file = re.escape(str(tmp_path / NAME))
    with pytest.raises(DataDirError, match=rf"^{file} is not sealed; {file}\.bak is missing; {OR_START_WITHOUT}$"):
        durable(tmp_path).load()


@pytest.mark.parametrize("number", range(1, 5))
def test_the_error_of_a_save_names_a_file_whatever_operation_fails(tmp_path: Path, number: int) -> None:
    folder = folder_with(tmp_path, "one")
    with failing_disk(number, Failure.ONCE), pytest.raises(OSError, match="Input/output error") as caught:
        durable(folder).save("two")
    assert str(caught.value.filename).startswith(str(folder / NAME))


def test_bits_that_flip_on_the_disk_are_noticed_although_the_file_can_be_read(tmp_path: Path) -> None:
    """Before there were checksums, a digit that flipped in intents.json made a wrong route."""
    folder = folder_with(tmp_path, "older", "newer")
    skip_without_checksums(folder / NAME)
    rot(folder / NAME, encode("never"))
    with capture_logs() as logs:
        assert durable(folder).load() == "older"
    assert [(log["event"], log["problem"]) for log in logs] == [
        ("restored_from_copy", f"{folder / NAME} does not match its checksum")
    ]
    assert (folder / f"{NAME}.broken").read_bytes() == encode("never")


def test_what_the_disk_damages_after_the_load_never_becomes_the_copy(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "oldest", "older")
    skip_without_checksums(folder / NAME)
    rot(folder / NAME, encode("never"))
    durable(folder).save("new")
    assert (folder / f"{NAME}.bak").read_bytes() == encode("oldest")
    assert durable(folder).load() == "new"
