"""RotatingFile: files of bounded size and number, whose lines are whole whatever the disk does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from namesrv.storage.audit_file import RotatingFile


def test_the_newest_files_are_kept_and_none_is_larger_than_allowed(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "f", max_bytes=20, count=3)
    for number in range(10):
        file.append(f"line {number}..\n".encode())  # ten bytes with the line's end: two fit
    file.close()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "f": "line 8..\nline 9..\n",
        "f.1": "line 6..\nline 7..\n",
        "f.2": "line 4..\nline 5..\n",
    }


def test_a_file_of_its_own_is_kept_alone_and_never_grows_beyond_its_size(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "f", max_bytes=4, count=1)
    for text in (b"1\n", b"2\n", b"3\n"):
        file.append(text)
    file.close()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"f": "3\n"}


def test_a_line_longer_than_a_file_gets_one_of_its_own(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "f", max_bytes=4, count=3)
    for text in (b"1\n", b"too long\n", b"2\n"):
        file.append(text)
    file.close()
    assert [(tmp_path / name).read_bytes() for name in ("f.2", "f.1", "f")] == [b"1\n", b"too long\n", b"2\n"]


def test_a_file_from_before_is_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"1\n")
    file = RotatingFile(tmp_path / "f", max_bytes=100, count=2)
    file.append(b"2\n")
    file.close()
    assert (tmp_path / "f").read_bytes() == b"1\n2\n"


def test_half_a_line_of_a_process_that_was_killed_does_not_spoil_the_next(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b'1\n{"half')
    file = RotatingFile(tmp_path / "f", max_bytes=100, count=2)
    file.append(b"2\n")
    file.close()
    assert (tmp_path / "f").read_bytes() == b'1\n{"half\n2\n'


def test_a_full_disk_is_said_and_gone_on_with_when_it_has_room(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.symlink_to("/dev/full")
    file = RotatingFile(path, max_bytes=100, count=2)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left on device"):
            file.append(b"1\n")
    path.unlink()
    file.append(b"2\n")
    file.close()
    assert path.read_bytes() == b"2\n"


def test_a_line_that_the_disk_takes_in_part_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RotatingFile(tmp_path / "f", max_bytes=100, count=2)
    file.append(b"1\n")

    def write_part(stream: Any, data: bytes) -> None:
        stream.write(data[:3])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("groundwork.disk.write", write_part)
        with pytest.raises(OSError, match="No space left on device"):
            file.append(b"a line\n")
    assert (tmp_path / "f").read_bytes() == b"1\n"
    file.append(b"2\n")
    file.close()
    assert (tmp_path / "f").read_bytes() == b"1\n2\n"


def test_a_rotation_that_the_disk_refuses_is_made_up_for_later(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "f", max_bytes=4, count=2)
    file.append(b"1\n")
    file.append(b"2\n")
    (tmp_path / "f.1").mkdir()
    with pytest.raises(IsADirectoryError):
        file.append(b"3\n")
    assert (tmp_path / "f").read_bytes() == b"1\n2\n"
    (tmp_path / "f.1").rmdir()
    file.append(b"4\n")
    file.close()
    assert [(tmp_path / name).read_bytes() for name in ("f.1", "f")] == [b"1\n2\n", b"4\n"]
