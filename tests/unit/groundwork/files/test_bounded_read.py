from __future__ import annotations

from pathlib import Path

import pytest

from groundwork.files.bounded_read import read_at_most


def test_a_file_of_just_the_bound_is_read_and_one_byte_more_is_an_error_that_names_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 8)
    assert read_at_most(path, 8) == b"x" * 8
    with pytest.raises(OSError, match="is larger than 7 bytes") as caught:
        read_at_most(path, 7)
    assert (caught.value.strerror, caught.value.filename) == ("is larger than 7 bytes", str(path))
