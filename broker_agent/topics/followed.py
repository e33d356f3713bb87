"""A topics.json that belongs to a broker: the agent reads it again whenever it changes, and never writes it."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import structlog
import watchfiles

from broker_agent.errors import StartError
from broker_agent.timing.clock import Timing
from broker_agent.timing.periodic_thread import Wait
from broker_agent.topics.table import (
    MAX_FILE_BYTES,
    BrokenTopics,
    OnBadTopic,
    TopicConfigTable,
    decode_topics,
    load_topic_config_table,
    log_skipped_topics,
)
from broker_agent.topics.topics_file import Signature, copy_of, signature_of
from groundwork.files.bounded_read import NoRegularFile, open_regular, read_as_it_is

POLL_SECONDS = 0.25
"""Longest time between two looks at the file: some file systems do not report changes, and a folder that comes back is
not the watched one.
"""
BROKEN_SECONDS = 3.0
"""How long a file may be broken or missing before that is a fault: the broker may be writing it."""
CONFIRM_SECONDS = 2.0
"""When a file is read once more although it looks the same: a second change within one tick of the file system's clock
leaves no trace in its size and time; the coarsest clocks tick every two seconds."""
START_SECONDS = 0.5
"""How long the start waits for a file that is broken or being written: RocketMQ's broker writes one in milliseconds."""
_RETRY_SECONDS = 0.05
_DEBOUNCE_MILLIS, _STEP_MILLIS = 100, 50
"""Changes within this time count as one; it is also the period of the watcher."""
_JOIN_SECONDS = 2.0

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class NoTopicsFile(BrokenTopics):
    """Something else than a file is in its place: no broker is about to mend that."""


class FollowedTopics:
    """Looks at the file and hands on each new table. The last good table stays in force while the file is broken."""

    def __init__(self, path: Path, on_bad_topic: OnBadTopic, timing: Timing, wait: Wait = threading.Event.wait) -> None:
        """Touches nothing yet.

        Args:
            path: The topics.json, or a link to it.
            on_bad_topic: What to do with a file that has topics that break a rule.
            timing: Clocks.
            wait: How to wait; tests put virtual time here.
        """
        self._path = path
        self._on_bad_topic = on_bad_topic
        self._timing = timing
        self._wait = wait
        self._signature: Signature | None = None
        self._confirm_at: float | None = None
        self._digest = b""
        self._skipped: frozenset[str] = frozenset()
        self._broken: BrokenTopics | None = None
        self._broken_since = 0.0
        self._awaited = False
        self._problem: str | None = None
        self._stopping = threading.Event()
        self._on_table: Callable[[TopicConfigTable], None] = lambda _table: None
        self._thread = threading.Thread(target=self._run, name="broker-agent-topics", daemon=True)

    @property
    def problem(self) -> str | None:
        """The problem that the file has had for some seconds; None if there is none."""
        return self._problem

    def first_table(self, without_file: TopicConfigTable | None = None) -> TopicConfigTable:
        """Reads the table for the start; the copy stands in, with a warning, for a file that stays broken.

        Args:
            without_file: The table if there is neither a file nor a copy; None if that is an error.

        Raises:
            StartError: There is no good file and no good copy.
        """
        deadline = self._timing.clock() + START_SECONDS
        if without_file is not None and self._is_missing():
            self._awaited = True
            _log.warning("topics_file_awaited", file=str(self._path), topics_until_then=len(without_file.topics))
            return without_file
        while (table := self.look()) is None:
            hopeless = self._is_missing() or isinstance(self._broken, NoTopicsFile)
            if hopeless or self._timing.clock() >= deadline:
                return self._first_of_copy()
            self._wait(self._stopping, _RETRY_SECONDS)
        return table

    def start(self, on_table: Callable[[TopicConfigTable], None]) -> None:
        """Starts to watch; each new table goes to the function, in the watching thread."""
        self._on_table = on_table
        self._thread.start()

    def stop(self) -> None:
        """Ends watching and waits for that, for two seconds at most."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_SECONDS)

    def look(self) -> TopicConfigTable | None:
        """Looks at the file once.

        Returns:
            The table, if it is another one than at the last good look.
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
            table = self._table(content)
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
        return table

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

    def _table(self, content: bytes) -> TopicConfigTable | None:
        digest = hashlib.blake2b(content, digest_size=32).digest()
        if digest == self._digest:
            return None
        table = decode_topics(content, self._on_bad_topic)
        self._digest = digest
        skipped = frozenset(table.unknown.skipped_topics or ())
        if skipped != self._skipped:
            self._skipped = skipped
            log_skipped_topics(self._path, table)
        return table

    def _report_if_it_stays_broken(self, now: float) -> None:
        if self._broken is None or now - self._broken_since < BROKEN_SECONDS:
            return
        if self._problem is None:
            _log.warning("topics_file_broken", file=str(self._path), problem=str(self._broken), kept="last good table")
        self._problem = str(self._broken)

    def _is_missing(self) -> bool:
        return signature_of(self._path) is None and signature_of(copy_of(self._path)) is None

    def _first_of_copy(self) -> TopicConfigTable:
        problem = f"{self._path}: {self._broken or 'is being written all the time'}"
        copy = copy_of(self._path)
        if signature_of(copy) is None:
            raise StartError(problem)
        try:
            table = load_topic_config_table(copy, self._on_bad_topic)
        except BrokenTopics as error:
            raise StartError(f"{problem}; {error}") from error
        self._problem = str(self._broken)
        log_skipped_topics(copy, table)
        _log.warning("topics_taken_from_copy", file=str(self._path), problem=problem, copy=str(copy))
        return table

    def _run(self) -> None:
        last_reason = ""
        while not self._stopping.is_set():
            try:
                self._watch()
            except (OSError, RuntimeError) as error:  # a missing folder, or no more watches to be had: looks go on
                if str(error) != last_reason:
                    _log.debug("topics_file_not_watched", file=str(self._path), reason=str(error))
                last_reason = str(error)
                self._look_and_tell()
                self._wait(self._stopping, POLL_SECONDS)

    def _watch(self) -> None:
        """Looks at each event and at least every quarter of a second, until another folder is in the folder's place."""
        folder = self._path.parent
        watched = folder.stat()
        for _changes in watchfiles.watch(
            folder,
            watch_filter=None,  # links on the way to the file may change, too, as those of a mounted configuration do
            debounce=_DEBOUNCE_MILLIS,
            step=_STEP_MILLIS,
            stop_event=self._stopping,
            rust_timeout=int(POLL_SECONDS * 1000),
            yield_on_timeout=True,
            raise_interrupt=False,
            recursive=False,
        ):
            self._look_and_tell()
            now = folder.stat()
            if (now.st_dev, now.st_ino) != (watched.st_dev, watched.st_ino):
                return

    def _look_and_tell(self) -> None:
        try:
            table = self.look()
            if table is not None:
                self._on_table(table)
        except Exception:  # noqa: BLE001 - the boundary of a thread: nobody else would ever see the error
            _log.exception("topics_file_look_failed", file=str(self._path))
