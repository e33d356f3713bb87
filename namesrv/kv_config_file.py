"""The file that holds the KV configuration, in RocketMQ's format, and the copy before it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

from namesrv.core.kv_config import EMPTY, KvConfigTable
from namesrv.data_dir import DataDirError, write_atomically

KV_CONFIG_FILE = "kvConfig.json"
"""Name of the file (RocketMQ: kvConfigPath)."""

_TABLE = "configTable"

_log = structlog.get_logger(__name__)


class _Broken(Exception):
    """A file does not hold a KV configuration; the text says why."""


class KvConfigFile:
    """``kvConfig.json`` and ``kvConfig.json.bak`` in a folder.

    Whatever happens, one of the two holds the configuration that was made durable last. Once ``load`` has returned,
    the file itself does, so a copy of it never replaces a good copy by a broken one.
    """

    def __init__(self, folder: Path, write: Callable[[Path, bytes], None] = write_atomically) -> None:
        """Touches nothing yet.

        Args:
            folder: The data directory.
            write: Replaces a file as a whole and durably, or raises OSError.
        """
        self._file = folder / KV_CONFIG_FILE
        self._copy = folder / f"{KV_CONFIG_FILE}.bak"
        self._write = write

    def load(self) -> KvConfigTable:
        """Reads the configuration; an empty one if there never was a file.

        If the file is broken, or missing beside its copy, the copy takes its place, and a broken file is kept under
        the name ``kvConfig.json.broken`` (RocketMQ does not start then; it never reads its copy).

        Raises:
            DataDirError: Neither holds a configuration, or one of them cannot be read or written.
        """
        try:
            return self._load()
        except OSError as error:
            raise DataDirError(f"{error.filename or self._file}: {error.strerror}") from error

    def save(self, table: KvConfigTable) -> None:
        """Makes a configuration durable. Blocks: not for the event loop.

        Raises:
            OSError: It could not; the file is as it was.
        """
        before = self._file.read_bytes() if self._file.exists() else None
        if before is not None:
            self._write(self._copy, before)
        try:
            self._write(self._file, _encode(table))
        except OSError:
            with suppress(OSError):
                self._put_back(before)  # the new file may be in place, and only its durability in doubt
            raise

    def _load(self) -> KvConfigTable:
        try:
            if self._file.exists():
                return _decode(self._file)
            if not self._copy.exists():
                return EMPTY
            problem = f"{self._file} is missing"
        except _Broken as broken:
            problem = str(broken)
        table = self._load_copy(problem)
        if self._file.exists():
            self._file.replace(self._file.with_name(f"{KV_CONFIG_FILE}.broken"))
        self._write(self._file, self._copy.read_bytes())
        _log.warning("kv_config_restored_from_copy", problem=problem, copy=str(self._copy), keys=table.key_count)
        return table

    def _load_copy(self, problem: str) -> KvConfigTable:
        try:
            if self._copy.exists():
                return _decode(self._copy)
        except _Broken as broken:
            raise DataDirError(f"{problem}; {broken}") from broken
        raise DataDirError(f"{problem}; {self._copy} is missing")

    def _put_back(self, before: bytes | None) -> None:
        if before is None:
            self._file.unlink(missing_ok=True)
        else:
            self._write(self._file, before)


def _encode(table: KvConfigTable) -> bytes:
    content = json.dumps({_TABLE: table.namespaces}, ensure_ascii=False, indent=2, sort_keys=True)
    return f"{content}\n".encode()


def _decode(file: Path) -> KvConfigTable:
    try:
        content = json.loads(file.read_bytes())
        namespaces = content.get(_TABLE) if isinstance(content, dict) else None
        if not isinstance(namespaces, dict) or not all(_is_namespace(entries) for entries in namespaces.values()):
            raise _Broken(f"{file} does not hold a {_TABLE} of texts")
        return KvConfigTable.of(namespaces)
    except (ValueError, RecursionError) as error:  # also a text that has no UTF-8
        raise _Broken(f"{file} is not JSON in UTF-8") from error


def _is_namespace(entries: object) -> bool:
    return isinstance(entries, dict) and all(isinstance(value, str) for value in entries.values())
