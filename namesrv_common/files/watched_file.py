"""Values that are read from files, and read again when these change. The user of a value looks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

CHECK_SECONDS = 1.0
"""Time between two looks at the files. A change is taken once the files have looked the same twice, so that files that
are replaced one after the other are taken together.
"""

ValueT = TypeVar("ValueT")

_Stamp = tuple[tuple[int, int, int, int] | None, ...]
_CHANGED: _Stamp = ()
"""A stamp that no file has."""


class _Requests:
    """How often this process was asked to read all files again."""

    count = 0


def request_reload() -> None:
    """Makes each value load its files at its next look, also if they look unchanged. Signal handlers may call it."""
    _Requests.count += 1


class WatchedFile(Generic[ValueT]):
    """A value of one file or of several that belong together.

    Thread-safe. A change that cannot be used leaves the value as it was, and is reported once; the next change is tried
    again. Files that change while they are read are read again.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        load: Callable[[], ValueT],
        *,
        first: Callable[[], ValueT] | None = None,
        on_reloaded: Callable[[ValueT], None] = lambda _: None,
        on_kept: Callable[[ValueError], None] = lambda _: None,
        grace_seconds: float = 0.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Makes the value for the first time.

        Args:
            load: Makes the value; raises ValueError if the files cannot be used.
            first: Makes the first value instead of unusable files. The next check loads them.
            on_reloaded: Called with each value but the first.
            on_kept: Called with why a change could not be used.
            grace_seconds: How long files may be unusable before that is reported: they may be being written.

        Raises:
            ValueError: The files cannot be used.
        """
        self._paths = tuple(paths)
        self._load = load
        self._on_reloaded = on_reloaded
        self._on_kept = on_kept
        self._grace_seconds = grace_seconds
        self._monotonic = monotonic
        self._requests_seen = _Requests.count
        self._broken: ValueError | None = None
        self._broken_since = 0.0
        self._problem: str | None = None
        self._loaded = self._seen = self._stamp()
        self._value = (1, (first or load)())
        if first is not None or self._stamp() != self._loaded:
            self._loaded = _CHANGED
        self._checked_at = monotonic()
        self._checking = threading.Lock()

    @property
    def value(self) -> ValueT:
        return self._value[1]

    @property
    def generation(self) -> int:
        """How often it has been made."""
        return self._value[0]

    @property
    def problem(self) -> str | None:
        """Why the files cannot be used, once that was reported; None while they can."""
        return self._problem

    def refreshed(self) -> tuple[int, ValueT]:
        """Generation and value, after a look at the files if it is time for one. Costs microseconds otherwise."""
        return self.look() if self._is_due() else self._value

    def refreshed_within(self, seconds: float) -> tuple[int, ValueT]:
        """Like ``refreshed``, but a look that takes longer ends in a thread of its own: a disk may hang.

        Until it has ended, nobody waits for another.
        """
        if self._is_due() and not self._checking.locked():
            looking = threading.Thread(target=self.look, name="watched-files", daemon=True)
            with suppress(RuntimeError):  # at the end of the process there are no more threads
                looking.start()
                looking.join(seconds)
        return self._value

    def look(self) -> tuple[int, ValueT]:
        """Generation and value, after a look at the files, unless another thread is looking."""
        if self._checking.acquire(blocking=False):
            try:
                self._checked_at = self._monotonic()
                self._look()
            finally:
                self._checking.release()
        return self._value

    def _is_due(self) -> bool:
        return self._monotonic() - self._checked_at >= CHECK_SECONDS or self._requests_seen != _Requests.count

    def _look(self) -> None:
        stamp, requests = self._stamp(), _Requests.count
        if requests != self._requests_seen:
            self._requests_seen = requests
            self._reload(stamp)
        elif stamp == self._loaded:
            self._seen = stamp
        elif stamp != self._seen:
            self._seen = stamp  # may be in the middle of a change
        else:
            self._reload(stamp)
        self._report_if_it_stays_broken()

    def _reload(self, stamp: _Stamp) -> None:
        self._loaded = self._seen = stamp
        try:
            value = self._load()
        except ValueError as error:
            if self._broken is None and self._problem is None:
                self._broken_since = self._checked_at
            self._broken = error
        else:
            if self._stamp() != stamp:
                self._loaded = _CHANGED
                return
            self._broken = self._problem = None
            self._value = (self._value[0] + 1, value)
            self._on_reloaded(value)

    def _report_if_it_stays_broken(self) -> None:
        if self._broken is not None and self._checked_at - self._broken_since >= self._grace_seconds:
            error, self._broken = self._broken, None
            self._problem = str(error)
            self._on_kept(error)

    def _stamp(self) -> _Stamp:
        return tuple(_stamp_of(path) for path in self._paths)


def _stamp_of(path: Path) -> tuple[int, int, int, int] | None:
    """A value that changes when the file is written, replaced or made readable."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino
