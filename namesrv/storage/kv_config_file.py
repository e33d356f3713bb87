"""The file that holds the KV configuration, in RocketMQ's format."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from groundwork.files import replace_durably
from namesrv.core.model import EMPTY, KvConfigTable
from namesrv.storage.durable_file import BrokenFile, DurableFile

KV_CONFIG_FILE = "kvConfig.json"
"""Name of the file (RocketMQ: kvConfigPath)."""

_TABLE = "configTable"


class KvConfigFile(DurableFile[KvConfigTable]):
    """``kvConfig.json`` and its copy in a folder. The configuration is empty if there never was a file."""

    def __init__(self, folder: Path, write: Callable[[Path, bytes], None] = replace_durably) -> None:
        super().__init__(folder / KV_CONFIG_FILE, EMPTY, _decode, _encode, write)


def _encode(table: KvConfigTable) -> bytes:
    content = json.dumps({_TABLE: table.namespaces}, ensure_ascii=False, indent=2, sort_keys=True)
    return f"{content}\n".encode()


def _decode(content: bytes) -> KvConfigTable:
    try:
        parsed = json.loads(content)
        namespaces = parsed.get(_TABLE) if isinstance(parsed, dict) else None
        if not isinstance(namespaces, dict) or not all(_is_namespace(entries) for entries in namespaces.values()):
            raise BrokenFile(f"does not hold a {_TABLE} of texts")
        return KvConfigTable.of(namespaces)
    except (ValueError, RecursionError) as error:  # also a text that cannot be encoded in UTF-8
        raise BrokenFile("is not JSON in UTF-8") from error


def _is_namespace(entries: object) -> bool:
    return isinstance(entries, dict) and all(isinstance(value, str) for value in entries.values())
