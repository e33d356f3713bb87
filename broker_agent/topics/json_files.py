"""The JSON files of a broker: read whole, and their values checked, with errors that name file, field and rule."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from broker_agent.errors import AgentError
from broker_agent.topics.table import MAX_STATE_VERSION, DataVersion
from namesrv_common.files.regular_files import is_damaged, open_regular, read_as_it_is
from namesrv_common.topic_names import MAX_NAME_LENGTH

MAX_FILE_BYTES = 1024**3
"""Largest topics.json that is read: a million topics take some 250 MB, and a wrong path must not fill memory."""
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
ContentT = TypeVar("ContentT")
_MISSING = object()


class BrokenTopics(AgentError, ValueError):
    """A text is not a topics.json. The error names topic, field, value and rule in one line."""


class UnreadableTopics(BrokenTopics):
    """The file is there but may not be read: its content may be good."""


def load_file(path: Path, decode: Callable[[bytes], ContentT], *, is_ours: bool = False) -> ContentT:
    """Reads a file and decodes it. Only the agent's own file is held to its checksum: a broker writes none.

    Raises:
        UnreadableTopics: As for ``load_topic_config_table``.
        BrokenTopics: Likewise.
    """
    try:
        with open_regular(path) as stream:
            content = read_as_it_is(stream, MAX_FILE_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BrokenTopics(f"{path}: {error.strerror}") from error
    except OSError as error:
        raise UnreadableTopics(f"{path}: {error.strerror}") from error
    if is_ours and is_damaged(path, content):
        raise BrokenTopics(f"{path}: does not match its checksum")
    try:
        return decode(content)
    except BrokenTopics as error:
        raise BrokenTopics(f"{path}: {error}") from error


def decoded(content: bytes, read: Callable[[str], ContentT]) -> ContentT:
    """What a function reads from the text of a file; its ValueErrors become errors about the file.

    Raises:
        BrokenTopics: The content is too large, not UTF-8, empty, no JSON, or breaks a rule.
    """
    if len(content) > MAX_FILE_BYTES:
        raise BrokenTopics(f"the file is larger than {MAX_FILE_BYTES} bytes")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BrokenTopics(f"byte {error.start} is not UTF-8") from error
    if not text.strip():
        raise BrokenTopics("the file is empty")
    try:
        return read(text)
    except json.JSONDecodeError as error:
        raise BrokenTopics(f"not JSON, or cut off: {error}") from error
    except (ValueError, RecursionError) as error:
        raise BrokenTopics(str(error)) from error


def parsed(text: str) -> object:
    """The value of a JSON text whose keys are unique. Raises ValueError."""
    return json.loads(
        text, object_pairs_hook=_object_without_duplicates, parse_constant=_no_number, parse_float=_finite
    )


def text_of(field: str, value: object) -> str:
    """A text. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{field} is {value!r:.40}, must be a text")  # noqa: TRY004 - bad input, not a bad call
    return value


def object_of(field: str, value: object) -> Mapping[str, Any]:
    """An object. Raises ValueError."""
    if not isinstance(value, dict):
        shown = "missing" if value is None else repr(value)[:40]
        raise ValueError(f"{field} is {shown}, must be a JSON object")  # noqa: TRY004 - bad input, not a bad call
    return value


def integer_of(values: Mapping[str, Any], field: str, highest: int) -> int:
    """An integer of an object. Raises ValueError."""
    value = values.get(field, _MISSING)
    if type(value) is int and 0 <= value <= highest:  # a JSON true is an int, too, to isinstance
        return value
    shown = "missing" if value is _MISSING else f"{value!r:.40}"
    raise ValueError(f"{field} is {shown}, must be an integer from 0 to {highest}")


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuses a key that is given twice: JSON does not define what it means."""
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:MAX_NAME_LENGTH]!r} is there twice in one JSON object")
    return members


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text[:40]} is no number that JSON has room for")


def version_of(version: Mapping[str, Any]) -> DataVersion:
    """The dataVersion of a file. Raises ValueError."""
    try:
        return DataVersion(
            timestamp_millis=integer_of(version, "timestamp", INT64_MAX),
            counter=integer_of(version, "counter", INT64_MAX - 1),  # there is always a next one
            state_version=integer_of(version, "stateVersion", MAX_STATE_VERSION) if "stateVersion" in version else None,
        )
    except ValueError as error:
        raise ValueError(f"dataVersion: {error}") from error
