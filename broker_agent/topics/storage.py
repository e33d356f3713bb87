"""The topics.json: owned and written by the agent, or followed where the broker writes it."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Generic, NamedTuple, Self

import structlog
import watchfiles

from broker_agent.errors import NotDurable, StartError, TopicsFileChanged
from broker_agent.timing import Timing, Wait
from broker_agent.topics.files import (
    MAX_FILE_BYTES,
    BrokenTopics,
    ContentT,
    OnBadTopic,
    TopicQueueMappings,
    UnreadableTopics,
    decode_mappings,
    decode_topics,
    encode_topics,
    load_file,
    load_topic_config_table,
    log_skipped_mappings,
    log_skipped_topics,
    mappings_path,
)
from broker_agent.topics.table import TopicConfigTable
from groundwork import disk
from groundwork.files import NoRegularFile, open_regular, read_as_it_is, replace_durably

# The topics.json that the agent owns: in RocketMQ's format, written as a whole and durably, with a copy.

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Signature(NamedTuple):
    """A signature that tells one content of a file from another without reading it."""

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, stat: os.stat_result) -> Self:
        """The signature of a file that looks like that."""
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)


def signature_of(path: Path) -> Signature | None:
    """The file's signature; None if it is missing or cannot be looked at."""
    try:
        return Signature.of(path.stat())
    except OSError:
        return None


def copy_of(path: Path) -> Path:
    """Where RocketMQ keeps the previous content of a configuration file."""
    return path.with_name(f"{path.name}.bak")


class TopicsFile:
    """A topics.json and its copy ``.bak``, written by this process alone.

    Whatever happens, one of the two holds the table that was saved last.
    """

    def __init__(
        self,
        path: Path,
        on_bad_topic: OnBadTopic = "refuse",
        write: Callable[[Path, bytes], None] | None = None,
    ) -> None:
        """Touches nothing yet.

        Args:
            path: The file; a link is followed, and its target written.
            on_bad_topic: What to do with topics that break a rule.
            write: Replaces the file as a whole and durably, or raises OSError.
        """
        self.path = path
        self._target = path.resolve()
        self._on_bad_topic = on_bad_topic
        self._write = write or replace_keeping_copy
        self._signature: Signature | None = None

    def load(self) -> TopicConfigTable | None:
        """Reads the table; the copy stands in, with a warning, for a file that is missing or broken.

        A broken file is kept beside it as ``.broken`` (RocketMQ removes it).

        Returns:
            None if there is neither a file nor a copy: the broker is new.

        Raises:
            StartError: The file may not be read, or it is broken and the copy is missing or broken, too. (RocketMQ
                starts empty if it is missing, and the next change destroys what could have been mended.)
        """
        self._signature = signature_of(self._target)
        copy = copy_of(self._target)
        if self._signature is None and signature_of(copy) is None:
            return None
        try:
            return load_topic_config_table(self._target, self._on_bad_topic)
        except UnreadableTopics as error:
            raise StartError(str(error)) from error
        except BrokenTopics as error:
            problem = error
        try:
            table = load_topic_config_table(copy, self._on_bad_topic)
        except BrokenTopics as error:
            raise StartError(f"{problem}; {error}") from error
        self._restore(copy)
        _log.warning("topics_restored_from_copy", file=str(self.path), problem=str(problem), copy=str(copy))
        return table

    def save(self, table: TopicConfigTable) -> None:
        """Makes a table durable, and the former content of the file its copy.

        Raises:
            TopicsFileChanged: Another process has written the file since.
            NotDurable: The disk did not take it; the file is as it was.
        """
        if signature_of(self._target) != self._signature:
            raise TopicsFileChanged(str(self.path))
        try:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            self._write(self._target, encode_topics(table))
        except OSError as error:
            raise NotDurable(f"{self.path} cannot be written: {error.strerror}") from error
        finally:
            self._signature = signature_of(self._target)

    def _restore(self, copy: Path) -> None:
        """Puts the copy in the file's place, so that a broken file never becomes the copy."""
        try:
            if self._target.exists():
                disk.rename(self._target, self._target.with_name(f"{self._target.name}.broken"))
            self._write(self._target, copy.read_bytes())
        except OSError as error:
            raise StartError(f"{self.path} cannot be restored from {copy}: {error.strerror}") from error
        self._signature = signature_of(self._target)


def replace_keeping_copy(file: Path, content: bytes) -> None:
    """Replaces the file as a whole and durably; the old content becomes ``.bak``. Raises OSError: it is as it was."""
    replace_durably(file, content, copy=copy_of(file))


# A file that belongs to a broker, which may write it at any time: read again when it looks changed, never written.

BROKEN_SECONDS = 3.0
"""How long a file may be broken or missing before that is a fault: the broker may be writing it."""
CONFIRM_SECONDS = 2.0
"""When a file is read once more although it looks the same: a second change within one tick of the file system's clock
leaves no trace in its size and time; the coarsest clocks tick every two seconds."""
START_SECONDS = 0.5
"""How long the start waits for a file that is broken or being written: RocketMQ's broker writes one in milliseconds."""


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


# The files that belong to a broker: the agent reads them again whenever they change, and never writes them.

POLL_SECONDS = 0.25
"""Longest time between two looks at the file: some file systems do not report changes, and a folder that comes back is
not the watched one.
"""
_RETRY_SECONDS = 0.05
_DEBOUNCE_MILLIS, _STEP_MILLIS = 100, 50
"""Changes within this time count as one; it is also the period of the watcher."""
_JOIN_SECONDS = 2.0


class FollowedTopics:
    """Looks at topics.json and the mappings of static topics beside it, and hands on each new table of both.

    The last good content stays in force while a file is broken.
    """

    def __init__(self, path: Path, on_bad_topic: OnBadTopic, timing: Timing, wait: Wait = threading.Event.wait) -> None:
        """Touches nothing yet.

        Args:
            path: The topics.json, or a link to it.
            on_bad_topic: What to do with a file that has topics that break a rule.
            wait: How to wait; tests put virtual time here.
        """
        self._path = path
        self._wait = wait
        self._topics = FollowedFile(path, lambda content: decode_topics(content, on_bad_topic), timing)
        self._mappings = FollowedFile(
            mappings_path(path), lambda content: decode_mappings(content, on_bad_topic), timing, awaited=True
        )
        self._table: TopicConfigTable | None = None
        self._mapped = TopicQueueMappings()
        self._skipped: frozenset[str] = frozenset()
        self._skipped_mappings: frozenset[str] = frozenset()
        self._stopping = threading.Event()
        self._on_table: Callable[[TopicConfigTable], None] = lambda _table: None
        self._thread = threading.Thread(target=self._run, name="broker-agent-topics", daemon=True)

    @property
    def problem(self) -> str | None:
        """The problem that a file has had for some seconds; None if there is none."""
        of_mappings = self._mappings.problem
        return self._topics.problem or (of_mappings and f"{mappings_path(self._path).name}: {of_mappings}")

    def first_table(self, without_file: TopicConfigTable | None = None) -> TopicConfigTable:
        """Reads the table for the start; the copy stands in, with a warning, for a file that stays broken.

        Args:
            without_file: The table if there is neither a file nor a copy; None if that is an error.

        Raises:
            StartError: There is no good file and no good copy.
        """
        pause = partial(self._wait, self._stopping, _RETRY_SECONDS)
        table = self._topics.first(without_file, pause)
        if table is without_file:
            _log.warning("topics_file_awaited", file=str(self._path), topics_until_then=len(table.topics))
        return self._taken(table, self._mappings.first(TopicQueueMappings(), pause))

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
        """Looks at both files once.

        Returns:
            The table with its mappings, if it is another one than at the last good look.
        """
        table, mapped = self._topics.look(), self._mappings.look()
        if table is None and mapped is None:
            return None
        self._table, self._mapped = table or self._table, mapped or self._mapped
        return None if self._table is None else self._taken(self._table, self._mapped)

    def _taken(self, table: TopicConfigTable, mapped: TopicQueueMappings) -> TopicConfigTable:
        self._table, self._mapped = table, mapped
        skipped = frozenset(table.unknown.skipped_topics or ())
        if skipped != self._skipped:
            self._skipped = skipped
            log_skipped_topics(self._path, table)
        if mapped.skipped != self._skipped_mappings:
            self._skipped_mappings = mapped.skipped
            log_skipped_mappings(mappings_path(self._path), mapped)
        return mapped.put_into(table)

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
