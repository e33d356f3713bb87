"""Checksums beside files: a bit that flips on the disk is noticed, an edit is not held against anybody."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from namesrv_common.files.regular_files import ATTRIBUTE, is_damaged, seal
from tests.support.fakes.rot import rot, skip_without_checksums


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """A file with a checksum."""
    file = tmp_path / "file"
    with file.open("wb") as stream:
        stream.write(b"content")
        seal(stream, b"content")
    skip_without_checksums(file)
    return file


def test_a_file_that_is_as_it_was_written_is_not_damaged(sealed: Path) -> None:
    assert not is_damaged(sealed, sealed.read_bytes())


@pytest.mark.parametrize("content", [b"", b"c", b"bontent", b"content\n"])
def test_a_file_that_a_disk_has_changed_is_damaged(sealed: Path, content: bytes) -> None:
    rot(sealed, content)
    assert is_damaged(sealed, content)


def test_a_file_that_somebody_has_edited_is_taken_as_it_is(sealed: Path) -> None:
    before = sealed.stat().st_mtime_ns
    sealed.write_bytes(b"edited")
    os.utime(sealed, ns=(before, before + 1))
    assert not is_damaged(sealed, b"edited")


@pytest.mark.parametrize("attribute", [b"", b"garbage", b"\xff 1", b"abc 12 13"])
def test_an_attribute_that_is_no_checksum_does_not_count(sealed: Path, attribute: bytes) -> None:
    os.setxattr(sealed, ATTRIBUTE, attribute)
    assert not is_damaged(sealed, sealed.read_bytes())


def test_a_copy_and_a_missing_file_have_none(sealed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(b"other")
    assert not is_damaged(copy, b"other")
    assert not is_damaged(tmp_path / "missing", b"")


def test_where_a_disk_takes_no_attributes_a_file_has_no_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "setxattr", refuse)
    file = tmp_path / "file"
    with file.open("wb") as stream:
        stream.write(b"content")
        seal(stream, b"content")
    rot(file, b"bontent")
    assert not is_damaged(file, b"bontent")
