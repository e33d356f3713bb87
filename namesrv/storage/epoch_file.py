"""The file that holds the last epoch of a name server, so that the next one is later."""

from __future__ import annotations

import re
import secrets
from pathlib import Path

from namesrv.storage.data_dir import DataDirError
from namesrv.storage.durable_file import BrokenFile, DurableFile

EPOCH_FILE = "epoch"
_MILLIS_DIGITS = 15
"""Width of an epoch's number: milliseconds since 1970 fit until the year 33658, so epochs sort as text."""
_EPOCH = re.compile(rb"([0-9]{1,15})(-[0-9a-f]{1,32})?\n?")


def format_epoch(millis: int) -> str:
    """An epoch: a number that orders the epochs of one name server, and a random part."""
    return f"{millis:0{_MILLIS_DIGITS}d}-{secrets.token_hex(4)}"


def next_epoch(folder: Path, now_millis: int) -> str:
    """An epoch later than all before it, also after the clock has stepped back; durable before it is returned.

    Raises:
        DataDirError: It cannot be read or written, or neither the file nor its copy holds an epoch.
    """
    file = DurableFile(folder / EPOCH_FILE, "0", _decode, str.encode)
    before = int(file.load().partition("-")[0])
    epoch = format_epoch(max(now_millis, before + 1))
    try:
        file.save(epoch)
    except OSError as error:
        raise DataDirError(f"{error.filename}: {error.strerror}") from error
    return epoch


def _decode(content: bytes) -> str:
    if not _EPOCH.fullmatch(content):
        raise BrokenFile("does not hold an epoch")
    return content.decode()
