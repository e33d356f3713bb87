"""The topics.json that the agent owns: in RocketMQ's format, written as a whole and durably, with a copy."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring as _quoted
from pathlib import Path
from typing import Any, NamedTuple, Self

import structlog

from broker_agent.errors import StartError
from broker_agent.rpc_errors import NotDurable, TopicsFileChanged
from broker_agent.topics.table import (
    BrokenTopics,
    DataVersion,
    OnBadTopic,
    TopicConfig,
    TopicConfigTable,
    UnreadableTopics,
    load_topic_config_table,
)
from groundwork import disk
from groundwork.files import replace_durably

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


def encode_topics(table: TopicConfigTable) -> bytes:
    """A table as RocketMQ's fastjson prints it: fields by name, tabs, no space after a colon, no line at the end."""
    unknown = table.unknown
    # The rule for names leaves nothing in them to escape.
    topics = {f'"{topic.topic_name}"': _topic(topic) for topic in table.topics}
    for name, value in (unknown.skipped_topics or {}).items():
        topics.setdefault(_quoted(name), _json(value, 2))
    root = _members(unknown.root, 1) | {
        '"dataVersion"': _object(_version(table.data_version, unknown.data_version), 1),
        '"topicConfigTable"': _object(topics, 1),
    }
    # Half of a surrogate pair is legal in JSON but not in UTF-8, so it is written as JSON's escape.
    return _object(_by_name(root), 0).encode("utf-8", errors="backslashreplace")


def _version(version: DataVersion, unknown: Mapping[str, Any] | None) -> dict[str, str]:
    members = _members(unknown, 2) | {'"counter"': str(version.counter), '"timestamp"': str(version.timestamp_millis)}
    if version.state_version is not None:
        members['"stateVersion"'] = str(version.state_version)
    return _by_name(members)


def _topic(topic: TopicConfig) -> str:
    members: dict[str, str] = {}
    if topic.attributes is not None:
        texts = {_quoted(name): _quoted(value) for name, value in topic.attributes.items()}
        members['"attributes"'] = _object(texts, 3)
    members['"order"'] = "true" if topic.order else "false"
    members['"perm"'] = str(topic.perm)
    members['"readQueueNums"'] = str(topic.read_queue_nums)
    members['"topicFilterType"'] = _quoted(topic.topic_filter_type)
    members['"topicName"'] = f'"{topic.topic_name}"'
    members['"topicSysFlag"'] = str(topic.topic_sys_flag)
    members['"writeQueueNums"'] = str(topic.write_queue_nums)
    if topic.unknown:
        members = _by_name(members | _members(topic.unknown, 3))
    return _object(members, 2)


def _members(values: Mapping[str, Any] | None, depth: int) -> dict[str, str]:
    return {_quoted(name): _json(value, depth) for name, value in (values or {}).items()}


def _by_name(members: Mapping[str, str]) -> dict[str, str]:
    return dict(sorted(members.items()))


def _object(members: Mapping[str, str], depth: int) -> str:
    """A JSON object at a depth of tabs; names and values are JSON already."""
    if not members:
        return "{}"
    tabs = "\t" * (depth + 1)
    lines = f",\n{tabs}".join([f"{name}:{value}" for name, value in members.items()])
    return f"{{\n{tabs}{lines}\n{tabs[1:]}}}"


def _json(value: Any, depth: int) -> str:
    """Any JSON value at a depth of tabs. Line breaks inside texts are escaped, so all others are layout."""
    text = json.dumps(value, ensure_ascii=False, indent="\t", separators=(",", ":"))
    return text.replace("\n", "\n" + "\t" * depth)
