"""A disk that fails at a chosen operation, so that each of them can be made to fail in turn."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum, auto
from typing import Any, Self
from unittest import mock


class Failure(Enum):
    """What becomes of the operation that fails, and of those after it."""

    ONCE = auto()
    """It is not done; those after it are."""
    LATE = auto()
    """It is done and fails nevertheless; those after it are done."""
    FROM_THEN_ON = auto()
    """Neither it nor any after it is done."""


class FailingDisk:
    """Counts the operations that open, write and rename files, and lets the one with a number fail."""

    def __init__(self, failing_number: int, failure: Failure) -> None:
        self.failed = False
        self._failing_number = failing_number
        self._failure = failure
        self._number = 0

    def wrap(
        self, operation: Callable[..., Any], release: Callable[[Any], None] = lambda _: None
    ) -> Callable[..., Any]:
        """The operation as this disk does it. If it is done and fails, what it opened is released."""

        def run(*args: Any, **kwargs: Any) -> Any:
            self._number += 1
            fails = self._number == self._failing_number
            if fails or (self.failed and self._failure is Failure.FROM_THEN_ON):
                self.failed = True
                if self._failure is Failure.LATE:
                    release(operation(*args, **kwargs))
                raise OSError(errno.EIO, "Input/output error")
            return operation(*args, **kwargs)

        return run


class _Stream:
    """An open file. Each write counts as an operation."""

    def __init__(self, stream: Any, disk: FailingDisk) -> None:
        self._stream = stream
        self.write = disk.wrap(stream.write)
        self.flush = disk.wrap(stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


@contextmanager
def failing_disk(failing_number: int, failure: Failure) -> Iterator[FailingDisk]:
    """Lets one operation of the body fail. ``failed`` tells whether the body has had that many."""
    disk = FailingDisk(failing_number, failure)
    open_file = disk.wrap(io.open, release=lambda stream: stream.close())
    opened: list[Any] = []

    def open_stream(*args: Any, **kwargs: Any) -> _Stream:
        opened.append(open_file(*args, **kwargs))
        return _Stream(opened[-1], disk)

    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(io, "open", open_stream))
        patches.enter_context(mock.patch.object(os, "open", disk.wrap(os.open, release=os.close)))
        for name in ("fsync", "replace", "unlink"):
            patches.enter_context(mock.patch.object(os, name, disk.wrap(getattr(os, name))))
        yield disk
    assert all(stream.closed for stream in opened)
