"""Two names that are exchanged in one step."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from groundwork.files import disk


def test_two_folders_have_each_others_name_afterwards(tmp_path: Path) -> None:
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    try:
        disk.exchange(tmp_path / "new", tmp_path / "old")
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
            pytest.skip("this file system cannot exchange two names")
        raise
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["new"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["old"]


def test_a_name_that_is_missing_is_an_error_that_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    with pytest.raises(OSError, match="old"):
        disk.exchange(tmp_path / "new", tmp_path / "old")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_a_system_that_cannot_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_RENAMEAT2", None)
    with pytest.raises(OSError, match="old") as caught:
        disk.exchange(tmp_path / "new", tmp_path / "old")
    assert caught.value.errno == errno.ENOSYS
