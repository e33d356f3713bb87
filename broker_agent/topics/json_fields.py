"""Parts of JSON that must have a type and a range, with an error that names the field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from groundwork.topic_names import MAX_NAME_LENGTH

_MISSING = object()


def parsed(text: str) -> object:
    """The value of a JSON text, no key of which is there twice. Raises ValueError."""
    return json.loads(
        text,
        object_pairs_hook=_object_without_duplicates,
        parse_constant=_no_number,
        parse_float=_finite,
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
