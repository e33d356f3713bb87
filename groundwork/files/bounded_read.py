"""Small files, read whole and never beyond a bound."""

from __future__ import annotations

import errno
from pathlib import Path


def read_at_most(path: Path, max_bytes: int) -> bytes:
    """The content of a file.

    Raises:
        OSError: It cannot be read, or is larger; ``strerror`` says which.
        ValueError: Its name has a zero byte.
    """
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"is larger than {max_bytes} bytes", str(path))
    return content
