"""Folders in which a contributor's machine keeps what takes long to make or fetch, from one run to the next."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder(name: str) -> Path:
    """The folder of this name among the user's caches."""
    caches = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(caches) / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """Keeps two sessions from filling a folder at the same time."""
    with (cache_folder(name) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
