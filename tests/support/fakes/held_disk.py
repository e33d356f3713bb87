"""A disk that writes when it is let and fails if told to, and waits for what threads do."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from groundwork.files import replace_durably

LONGEST_SECONDS = 20.0


class HeldDisk:
    """Writes for real, but only while ``lets`` is set, and not while there is a problem."""

    def __init__(self) -> None:
        self.lets = threading.Event()
        self.lets.set()
        self.busy = threading.Event()
        """Set when something is to be written."""
        self.written = threading.Event()
        """Set when something has been written."""
        self.problem: OSError | None = None

    def write(self, file: Path, content: bytes) -> None:
        """Writes a file as a store does, in a thread of its."""
        self.busy.set()
        assert self.lets.wait(LONGEST_SECONDS)
        if self.problem is not None:
            raise self.problem
        replace_durably(file, content)
        self.written.set()


async def until(event: threading.Event) -> None:
    """Waits for what a thread does."""
    assert await asyncio.to_thread(event.wait, LONGEST_SECONDS)
