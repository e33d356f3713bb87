"""A checksum that a file carries as an extended attribute. It tells damage by a disk from edits by people.

The formats of these files cannot contain one: they are RocketMQ's, or are read by the version before. The attribute
also has the time of the last modification. The checksum of a file that was edited, restored from a backup or written
by another program therefore does not count. Such a file, and one on a disk without extended attributes, is used as it
is. Bits that flip on a disk change no time.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import IO

ATTRIBUTE = "user.namesrv.sha256"


def seal(stream: IO[bytes], content: bytes) -> None:
    """Gives a file that will not be written again the checksum of its content, where the file system can keep it."""
    stream.flush()
    modified = os.fstat(stream.fileno()).st_mtime_ns
    with suppress(OSError, AttributeError):  # no such attributes on this file system, or on this operating system
        os.setxattr(stream.fileno(), ATTRIBUTE, f"{_digest(content)} {modified}".encode())


def is_damaged(file: Path, content: bytes) -> bool:
    """Whether a file has a checksum that counts, and the content that was read does not match it."""
    try:
        digest, _, modified = os.getxattr(file, ATTRIBUTE).decode(errors="replace").partition(" ")
        return modified == str(file.stat().st_mtime_ns) and digest != _digest(content)
    except (OSError, AttributeError):
        return False


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
