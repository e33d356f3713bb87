"""A file that belongs to a broker, which may write it at any time: read again when it looks changed, never written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic

import structlog

from broker_agent.errors import StartError
from broker_agent.timing.clock import Timing
from broker_agent.topics.table import MAX_FILE_BYTES, BrokenTopics, ContentT, load_file
from broker_agent.topics.topics_file import Signature, copy_of, signature_of
from groundwork.files import NoRegularFile, open_regular, read_as_it_is

BROKEN_SECONDS = 3.0
"""How long a file may be broken or missing before that is a fault: the broker may be writing it."""
CONFIRM_SECONDS = 2.0
"""When a file is read once more although it looks the same: a second change within one tick of the file system's clock
leaves no trace in its size and time; the coarsest clocks tick every two seconds."""
START_SECONDS = 0.5
"""How long the start waits for a file that is broken or being written: RocketMQ's broker writes one in milliseconds."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class NoTopicsFile(BrokenTopics):
    """Something else than a file is in its place: no broker is about to mend that."""


class FollowedFile(Generic[ContentT]):
    """Looks at the file when it is asked to."""

    def __init__(
        self, path: Path, decode: Callable[[bytes], ContentT], timing: Timing, *, awaited: bool = False
    ) -> None:
        """Touches nothing yet.

        Args:
            path: The file, or a link to it.
            decode: Reads its content; raises BrokenTopics.
            timing: Clocks.
            awaited: Whether it is no fault that there is none yet.
        """
        self._path = path
        self._decode = decode
        self._timing = timing
        self._signature: Signature | None = None
        self._confirm_at: float | None = None
        self._digest = b""
        self._broken: BrokenTopics | None = None
        self._broken_since = 0.0
        self._awaited = awaited
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """The problem that the file has had for some seconds; None if there is none."""
        return self._problem

    def first(self, without_file: ContentT | None, pause: Callable[[], object]) -> ContentT:
        """Reads the file for the start; the copy stands in, with a warning, for one that stays broken.

        Args:
            without_file: What is there if there is neither a file nor a copy; None if that is an error.
            pause: Waits a little before the next look at a file that is broken.

        Raises:
            StartError: There is no good file and no good copy.
        """
        deadline = self._timing.clock() + START_SECONDS
        if without_file is not None and self._is_missing():
            self._awaited = True
            return without_file
        while (found := self.look()) is None:
            hopeless = self._is_missing() or isinstance(self._broken, NoTopicsFile)
            if hopeless or self._timing.clock() >= deadline:
                return self._first_of_copy()
            pause()
        return found

    def look(self) -> ContentT | None:
        """Looks at the file once.

        Returns:
            What is in it, if it is another one than at the last good look.
        """
        now = self._timing.clock()
        if signature_of(self._path) != self._signature or self._signature is None:
            self._confirm_at = now + CONFIRM_SECONDS
        elif self._confirm_at is not None and now >= self._confirm_at:
            self._confirm_at = None
        else:
            self._report_if_it_stays_broken(now)
            return None
        try:
            content = self._content()
            if content is None:
                return None
            found = self._decoded(content)
        except BrokenTopics as error:
            if self._awaited and self._is_missing():
                return None
            if self._broken is None:
                self._broken_since = now
            self._broken = error
            self._report_if_it_stays_broken(now)
            return None
        self._broken = None
        self._awaited = False
        if self._problem is not None:
            self._problem = None
            _log.info("topics_file_good_again", file=str(self._path))
        return found

    def _content(self) -> bytes | None:
        """What is in the file; None if it was written meanwhile, so that the next look must read it again.

        If the broker replaces the file meanwhile, we read the old one, which is complete, too.
        """
        self._signature = None
        try:
            with open_regular(self._path) as stream:
                before = Signature.of(os.fstat(stream.fileno()))
                content = read_as_it_is(stream, MAX_FILE_BYTES)
                after = Signature.of(os.fstat(stream.fileno()))
        except NoRegularFile as error:
            raise NoTopicsFile(str(error.strerror)) from error
        except OSError as error:
            raise BrokenTopics(str(error.strerror)) from error
        if before != after:
            return None
        self._signature = after
        return content

    def _decoded(self, content: bytes) -> ContentT | None:
        digest = hashlib.blake2b(content, digest_size=32).digest()
        if digest == self._digest:
            return None
        found = self._decode(content)
        self._digest = digest
        return found

    def _report_if_it_stays_broken(self, now: float) -> None:
        if self._broken is None or now - self._broken_since < BROKEN_SECONDS:
            return
        if self._problem is None:
            _log.warning("topics_file_broken", file=str(self._path), problem=str(self._broken), kept="last good table")
        self._problem = str(self._broken)

    def _is_missing(self) -> bool:
        return signature_of(self._path) is None and signature_of(copy_of(self._path)) is None

    def _first_of_copy(self) -> ContentT:
        problem = f"{self._path}: {self._broken or 'is being written all the time'}"
        copy = copy_of(self._path)
        if signature_of(copy) is None:
            raise StartError(problem)
        try:
            found = load_file(copy, self._decode)
        except BrokenTopics as error:
            raise StartError(f"{problem}; {error}") from error
        self._problem = str(self._broken)
        _log.warning("topics_taken_from_copy", file=str(self._path), problem=problem, copy=str(copy))
        return found
