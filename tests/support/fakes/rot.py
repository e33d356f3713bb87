"""A disk that changes what was written to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from namesrv_common.files.regular_files import ATTRIBUTE


def rot(file: Path, content: bytes) -> None:
    """Changes a file as a failing disk does: no time changes with it."""
    status = file.stat()
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def skip_without_checksums(file: Path) -> None:
    """Skips a test where the disk cannot keep the checksum that the file should have."""
    if ATTRIBUTE not in os.listxattr(file):
        pytest.skip("the file system of the temporary folder takes no extended attributes")
