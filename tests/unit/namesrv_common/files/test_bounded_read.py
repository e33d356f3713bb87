"""Files are read within a bound; what is no file is refused and not waited for."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from namesrv_common.files.regular_files import NoRegularFile, open_regular, read_as_it_is, read_at_most


def test_a_file_of_just_the_bound_is_read_and_one_byte_more_is_an_error_that_names_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 8)
    assert read_at_most(path, 8) == b"x" * 8
    with pytest.raises(OSError, match="is larger than 7 bytes") as caught:
        read_at_most(path, 7)
    assert (caught.value.strerror, caught.value.filename) == ("is larger than 7 bytes", str(path))


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
    done: list[OSError] = []

    def read() -> None:
        try:
            read_at_most(tmp_path / "x", 8)
        except OSError as error:
            done.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(10)
    assert not reader.is_alive(), "it waits"
    assert done[0].strerror == problem


def test_a_file_that_grows_is_read_no_further_than_it_was_long(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 8)
    with open_regular(path) as file:
        assert read_as_it_is(file, 8) == b"x" * 8
        file.seek(0)
        with pytest.raises(OSError, match="is larger than 7 bytes"):
            read_as_it_is(file, 7)
    assert not isinstance(_error_of_growing(Path("/proc/self/status")), NoRegularFile)


def _error_of_growing(path: Path) -> OSError:
    """Files there say that they are empty, and are not: as one to which something is added meanwhile."""
    with open_regular(path) as file, pytest.raises(OSError, match="grows while it is read") as caught:
        read_as_it_is(file, 1_000_000)
    return caught.value
