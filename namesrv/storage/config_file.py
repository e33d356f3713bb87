"""The file with the settings that operators changed over the wire."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from groundwork.files import replace_durably
from namesrv.storage.durable_file import BrokenFile, DurableFile

CONFIG_FILE = "namesrv_config.json"


class ConfigFile(DurableFile[Mapping[str, str]]):
    """``namesrv_config.json`` and its copy in a folder: a JSON object with the new values, as text, by key.

    Whether keys and values make sense is not checked here. To take a change back, an operator stops the name server
    and removes the key from the file, or everything with both files.
    """

    def __init__(self, folder: Path, write: Callable[[Path, bytes], None] = replace_durably) -> None:
        self.path = folder / CONFIG_FILE
        super().__init__(self.path, {}, _decode, _encode, write)


def _encode(texts: Mapping[str, str]) -> bytes:
    return f"{json.dumps(texts, ensure_ascii=False, indent=2, sort_keys=True)}\n".encode()


def _decode(content: bytes) -> dict[str, str]:
    try:
        texts = json.loads(content)
    except (ValueError, RecursionError) as error:  # also a text that cannot be encoded in UTF-8
        raise BrokenFile("is not JSON in UTF-8") from error
    if not isinstance(texts, dict):
        raise BrokenFile("does not hold an object of texts")
    for key, text in texts.items():
        if not isinstance(text, str):
            raise BrokenFile(f"has no text in quotes as the value of {key!r}")
    return texts
