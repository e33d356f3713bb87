"""The topics.json of a broker: owned and written by the agent, or the broker's own and followed."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog

from broker_agent.errors import Reason, StartError
from broker_agent.timing import Timing
from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable
from broker_agent.topics.topics_json import (
    BrokenTopics,
    ContentT,
    TopicQueueMappings,
    UnreadableTopics,
    decode_mappings,
    decode_topics,
    encode_topics,
    load_file,
    mappings_path,
)
from namesrv_common.errors import Refused, not_durable
from namesrv_common.files import disk
from namesrv_common.files.watched_file import WatchedFile
from namesrv_common.topic_names import MAX_NAME_LENGTH

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

LOGGED_TOPICS = 20
"""Most skipped topics that are named in the log."""


def log_skipped_topics(path: Path, table: TopicConfigTable) -> None:
    """Logs which topics a table lacks because they break a rule."""
    if skipped := table.unknown.skipped_topics:
        names = [name[:MAX_NAME_LENGTH] for name in list(skipped)[:LOGGED_TOPICS]]
        problem = table.unknown.problem
        _log.warning("topics_skipped", file=str(path), count=len(skipped), topics=names, problem=problem)


# The file that the agent owns: in RocketMQ's format, written as a whole and durably, with a copy.


def signature_of(path: Path) -> tuple[int, ...] | None:
    """Returns what tells one content of a file from another unread; None if it is missing or cannot be looked at."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def copy_of(path: Path) -> Path:
    """Where RocketMQ keeps the previous content of a configuration file."""
    return path.with_name(f"{path.name}.bak")


class TopicsFile:
    """A topics.json and its copy ``.bak``, written by this process alone.

    Whatever happens, one of the two holds the table that was saved last.
    """

    def __init__(self, path: Path, write: Callable[[Path, bytes], None] | None = None) -> None:
        """Touches nothing yet. If the path is a link, its target is written."""
        self.path = path
        self._target = path.resolve()
        self._write = write or replace_keeping_copy
        self._signature: tuple[int, ...] | None = None

    def first_table(self, built_in: Collection[TopicConfig], timing: Timing) -> TopicConfigTable:
        """Reads the table for the start, and puts missing built-in topics into the file, or into a new one.

        Raises:
            StartError: The file and its copy are broken, or the file cannot be written.
        """
        table = self.load() or TopicConfigTable(DataVersion(timing.wall_millis(), 0), ())
        if problem := table.too_many_topics:
            raise StartError(f"{self.path}: {problem}")
        log_skipped_topics(self.path, table)
        missing = [topic for topic in built_in if table.get(topic.topic_name) is None]
        if missing:
            # RocketMQ leaves the version as it is, and name servers that know this version never learn of the new
            # topics.
            table = table.with_topics(missing, table.data_version.next(timing.wall_millis()))
            try:
                self.save(table)
            except Refused as error:
                raise StartError(str(error)) from error
        return table

    def load(self) -> TopicConfigTable | None:
        """Reads the table; the copy stands in, with a warning, for a file that is missing or broken.

        A broken file is kept next to it as ``.broken`` (RocketMQ removes it).

        Returns:
            None if there is neither a file nor a copy: the broker is new.

        Raises:
            StartError: The file may not be read, or it is broken and the copy is missing or broken, too. (RocketMQ
                starts empty if it is missing, and the next change destroys what could have been repaired.)
        """
        self._signature = signature_of(self._target)
        copy = copy_of(self._target)
        if self._signature is None and signature_of(copy) is None:
            return None
        try:
            return load_topic_config_table(self._target)
        except UnreadableTopics as error:
            raise StartError(str(error)) from error
        except BrokenTopics as error:
            problem = error
        try:
            table = load_topic_config_table(copy)
        except BrokenTopics as error:
            raise StartError(f"{problem}; {error}") from error
        self._restore(copy)
        _log.warning("topics_restored_from_copy", file=str(self.path), problem=str(problem), copy=str(copy))
        return table

    def save(self, table: TopicConfigTable) -> None:
        """Makes a table durable, and the former content of the file its copy.

        Raises:
            TOPICS_FILE_CHANGED: Another process has written the file since.
            NOT_DURABLE: The disk did not take it; the file is as it was.
        """
        if signature_of(self._target) != self._signature:
            text = (
                f"{self.path} was written by another process although the agent owns it: restart the agent to read it, "
                "or let it follow the file"
            )
            raise Refused(Reason.TOPICS_FILE_CHANGED, text)
        try:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            self._write(self._target, encode_topics(table))
        except OSError as error:
            raise not_durable(f"{self.path} cannot be written: {error.strerror}") from error
        finally:
            self._signature = signature_of(self._target)

    def _restore(self, copy: Path) -> None:
        """Replaces the file by the copy, so that a broken file never becomes the copy."""
        try:
            if self._target.exists():
                disk.rename(self._target, self._target.with_name(f"{self._target.name}.broken"))
            self._write(self._target, copy.read_bytes())
        except OSError as error:
            raise StartError(f"{self.path} cannot be restored from {copy}: {error.strerror}") from error
        self._signature = signature_of(self._target)


def replace_keeping_copy(file: Path, content: bytes) -> None:
    """Replaces the file so that it holds the old content or the new one, whatever happens. The old becomes ``.bak``.

    Its folder exists. The new file gets the permissions of the old one. Raises OSError: the file is as it was.
    """
    temporary, copy = file.with_name(f"{file.name}.tmp"), copy_of(file)
    with disk.open_new(temporary) as stream:
        disk.write(stream, content)
        stream.flush()
        seal = f"{hashlib.sha256(content).hexdigest()} {os.fstat(stream.fileno()).st_mtime_ns}"
        with suppress(OSError, AttributeError):  # no such attributes on this file system, or on this operating system
            os.setxattr(stream.fileno(), ATTRIBUTE, seal.encode())
        disk.sync(stream)
    if file.exists():
        shutil.copymode(file, temporary)
        second_name = copy.with_name(f"{copy.name}.tmp")
        disk.remove(second_name)
        try:
            disk.link(file, second_name)  # a second name costs nothing, and the file is never missing
        except OSError:  # a file system without hard links
            shutil.copy2(file, second_name)
        disk.rename(second_name, copy)
    disk.rename(temporary, file)
    try:
        disk.sync_folder_of(file)
    except OSError:
        with suppress(OSError):  # without a copy there was nothing before
            disk.rename(copy, file)
        raise


# A checksum that the file carries as an extended attribute. It tells damage by a disk from edits by people.
#
# The file's format, which is RocketMQ's, cannot contain it. The attribute also has the time of the last modification.
# The checksum of a file that was edited, restored from a backup or written by a broker therefore does not count. Such a
# file, and one on a disk without extended attributes, is used as it is. Bits that flip on a disk change no time.

ATTRIBUTE = "user.namesrv.sha256"


def load_topic_config_table(path: Path) -> TopicConfigTable:
    """Reads the agent's own file or its copy. Raises UnreadableTopics, or BrokenTopics, also if it is damaged."""

    def decode(content: bytes) -> TopicConfigTable:
        if _is_damaged(path, content):
            raise BrokenTopics("does not match its checksum")
        return decode_topics(content)

    return load_file(path, decode)


def _is_damaged(file: Path, content: bytes) -> bool:
    """Whether a file has a checksum that counts, and the content that was read does not match it."""
    try:
        digest, _, modified = os.getxattr(file, ATTRIBUTE).decode(errors="replace").partition(" ")
        return modified == str(file.stat().st_mtime_ns) and digest != hashlib.sha256(content).hexdigest()
    except (OSError, AttributeError):
        return False


# The files of a broker that the agent follows: it reads them whenever they change, and never writes them.

BROKEN_SECONDS = 3.0
"""How long a file may be broken or missing before that is a fault: the broker may be writing it."""
START_SECONDS = 0.5
"""How long the start waits for a file that is broken or being written: RocketMQ's broker writes one in milliseconds."""
_RETRY_SECONDS = 0.05


class FollowedTopics:
    """Reads topics.json and the file of static topics' mappings, and makes a table of both.

    The last good content stays in force while a file is broken.
    """

    def __init__(self, path: Path, timing: Timing) -> None:
        """Touches nothing yet."""
        self._timing = timing
        self._path = path
        self._generations = (1, 1)
        self._skipped: frozenset[str] = frozenset()
        self._skipped_mappings: frozenset[str] = frozenset()

    @property
    def problem(self) -> str | None:
        """The problem that a file has had for some seconds, or of a mapping that is left out; None if there is none."""
        if (of_topics := self._topics.problem) is not None:
            return of_topics.removeprefix(f"{self._path}: ")
        if (of_mappings := self._mappings.problem) is not None:
            return of_mappings.removeprefix(f"{self._path.parent}/")
        return self._mappings.value.problem

    def first_table(self, without_file: TopicConfigTable | None = None) -> TopicConfigTable:
        """Reads the table for the start; the copy stands in, with a warning, for a file that stays broken.

        Args:
            without_file: The table if there is neither a file nor a copy; None if that is an error.

        Raises:
            StartError: There is no good file and no good copy.
        """
        self._topics = self._followed(self._path, _decode_followed, without_file)
        table = self._topics.value
        if table is without_file:
            _log.warning("topics_file_awaited", file=str(self._path), topics_until_then=len(table.topics))
        self._mappings = self._followed(mappings_path(self._path), decode_mappings, TopicQueueMappings())
        return self._taken(table, self._mappings.value)

    def look(self) -> TopicConfigTable | None:
        """Looks at both files once. Returns the table with its mappings, if a file was read again."""
        problem = self._topics.problem or self._mappings.problem
        (of_topics, table), (of_mappings, mapped) = self._topics.look(), self._mappings.look()
        if problem is not None and not (self._topics.problem or self._mappings.problem):
            _log.info("topics_file_good_again", file=str(self._path))
        before, self._generations = self._generations, (of_topics, of_mappings)
        return None if self._generations == before else self._taken(table, mapped)

    def _followed(
        self, path: Path, decode: Callable[[bytes], ContentT], without_file: ContentT | None
    ) -> WatchedFile[ContentT]:
        """Reads a file for the start, or its copy. Raises StartError."""
        awaited = without_file

        def load() -> ContentT:
            nonlocal awaited
            if awaited is not None and _is_missing(path):
                return awaited
            found = load_file(path, decode)
            awaited = None  # from now on a missing file is a fault
            return found

        def kept(error: ValueError) -> None:
            _log.warning("topics_file_broken", file=str(path), problem=str(error), kept="last good table")

        file = partial(
            WatchedFile, [path], load, on_kept=kept, grace_seconds=BROKEN_SECONDS, monotonic=self._timing.clock
        )
        deadline = self._timing.clock() + START_SECONDS
        while True:
            try:
                return file()
            except BrokenTopics as error:
                problem = error
            if _is_missing(path) or self._timing.clock() >= deadline:
                break
            self._timing.wait(threading.Event(), _RETRY_SECONDS)
        copy = copy_of(path)
        if signature_of(copy) is None:
            raise StartError(str(problem)) from problem
        try:
            found = load_file(copy, decode)
        except BrokenTopics as error:
            raise StartError(f"{problem}; {error}") from error
        _log.warning("topics_taken_from_copy", file=str(path), problem=str(problem), copy=str(copy))
        return file(first=lambda: found)

    def _taken(self, table: TopicConfigTable, mapped: TopicQueueMappings) -> TopicConfigTable:
        skipped = frozenset(table.unknown.skipped_topics or ())
        if skipped != self._skipped:
            self._skipped = skipped
            log_skipped_topics(self._path, table)
        if mapped.skipped != self._skipped_mappings:
            self._skipped_mappings = mapped.skipped
            if mapped.skipped:
                file, count, problem = str(mappings_path(self._path)), len(mapped.skipped), mapped.problem
                names = [name[:MAX_NAME_LENGTH] for name in sorted(mapped.skipped)[:LOGGED_TOPICS]]
                _log.warning("mappings_skipped", file=file, count=count, topics=names, problem=problem)
        return mapped.put_into(table)


def _decode_followed(content: bytes) -> TopicConfigTable:
    """The table of a broker's topics.json. Raises BrokenTopics, also if no name server would take so many topics."""
    table = decode_topics(content)
    if problem := table.too_many_topics:
        raise BrokenTopics(problem)
    return table


def _is_missing(path: Path) -> bool:
    """Whether there is neither the file nor its copy."""
    return signature_of(path) is None and signature_of(copy_of(path)) is None
