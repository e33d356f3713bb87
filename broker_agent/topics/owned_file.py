"""The topics.json that the agent owns: in RocketMQ's format, written as a whole and durably, with a copy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog

from broker_agent.errors import Reason, StartError
from broker_agent.topics.table import TopicConfigTable
from broker_agent.topics.topics_json import (
    BrokenTopics,
    UnreadableTopics,
    encode_topics,
    load_topic_config_table,
)
from namesrv_common.errors import Refused, not_durable
from namesrv_common.files import disk
from namesrv_common.files.regular_files import replace_durably

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


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
    """Replaces the file as a whole and durably; the old content becomes ``.bak``. Raises OSError: it is as it was."""
    replace_durably(file, content, copy=copy_of(file))
