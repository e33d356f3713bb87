"""JSON as RocketMQ writes it, read member by member, so that a large body never holds up the event loop.

fastjson writes numbers as keys without quotes (``{0:"..."}``). What standard JSON has nothing against is read by the
standard library; only a value that it refuses is read here, with such keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Self

from namesrv.core.errors import Refused, invalid_field
from namesrv.remoting.limits import MAX_DEPTH, MAX_LENIENT_TOKENS, MAX_VALUE_CHARACTERS

_scan = json.JSONDecoder(strict=False).raw_decode
_BLANKS = re.compile(r"[ \t\r\n]*")
_NEXT_KEY = re.compile(r'[ \t\r\n]*,[ \t\r\n]*"([^"\\]*)"[ \t\r\n]*:[ \t\r\n]*')
"""From behind a value to behind the next key, where that has no escapes: at once what would be several steps."""
_PIECES = 4 * 1024, 64 * 1024, MAX_VALUE_CHARACTERS
"""Characters that are read as one value, one size after the other, until the value ends within them."""
_NUMBER_KEY = re.compile(r"-?\d{1,20}")


def read_json(text: str) -> Any:
    """A whole text. Raises INVALID_FIELD if it is no JSON."""
    value, end = value_at(text, _after_blanks(text, 0))
    if _after_blanks(text, end) != len(text):
        raise _broken(end)
    return value


def value_at(text: str, at: int) -> tuple[Any, int]:
    """The value that begins at a position, and where it ends. Raises INVALID_FIELD, also if it is too long."""
    for size in _PIECES:
        piece = text[at : at + size]
        try:
            value, end = _scan(piece, 0)
        except (ValueError, RecursionError):
            continue
        if end < len(piece) or at + end == len(text):  # a number that is cut is a number, too
            return value, at + end
    return _Lenient(text).value(at, 0)


class ObjectReader:
    """An object of a text, member by member: after each key, take or open the value before the next one."""

    def __init__(self, text: str, at: int = 0) -> None:
        """Stands before the object that begins at a position, blanks apart."""
        self.text = text
        self.at = _after_blanks(text, at)
        """Where the next value begins, or behind the object. Who reads on by other means moves it behind a value."""

    def __iter__(self) -> Iterator[str]:
        """The keys, in their order; none if the value is null. Raises INVALID_FIELD."""
        text = self.text
        if text.startswith("null", self.at):
            self.at += 4
            return
        at = _expect(text, self.at, "{")
        if text.startswith("}", at):
            self.at = at + 1
            return
        while True:
            key, at = _key(text, at)
            self.at = _expect(text, at, ":")
            yield key
            while (found := _NEXT_KEY.match(text, self.at)) is not None:
                self.at = found.end()
                yield found[1]
            at = _after_blanks(text, self.at)
            if text.startswith("}", at):
                self.at = at + 1
                return
            at = _expect(text, at, ",")

    @property
    def is_at_object(self) -> bool:
        """Whether the value of the key is an object."""
        return self.text.startswith("{", self.at)

    def take(self) -> Any:
        """The value of the key. Raises INVALID_FIELD."""
        value, self.at = value_at(self.text, self.at)
        return value

    def opened(self) -> ObjectReader:
        """The value of the key, which is an object; give it back with ``close`` once its keys have been read."""
        return ObjectReader(self.text, self.at)

    def close(self, inner: Self) -> None:
        """Goes on behind an object that was opened."""
        self.at = inner.at

    def check_ended(self) -> None:
        """Checks that nothing follows the object. Raises INVALID_FIELD."""
        if _after_blanks(self.text, self.at) != len(self.text):
            raise _broken(self.at)


class _Lenient:
    """The reader of one value with numbers as keys."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._left = MAX_LENIENT_TOKENS

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        """The value that begins at a position, and where it ends."""
        self._left -= 1
        if self._left < 0 or depth > MAX_DEPTH:
            raise invalid_field("body", "has a value that is too large or too deep")
        if self._text.startswith("{", at):
            return self._object(at, depth)
        if self._text.startswith("[", at):
            return self._array(at, depth)
        try:
            return _scan(self._text, at)
        except (ValueError, RecursionError):
            raise _broken(at) from None

    def _object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        text = self._text
        members: dict[str, Any] = {}
        at = _expect(text, at, "{")
        while not text.startswith("}", at):
            if members:
                at = _expect(text, at, ",")
            key, at = _key(text, at)
            members[key], at = self.value(_expect(text, at, ":"), depth + 1)
            at = _after_blanks(text, at)
        return members, at + 1

    def _array(self, at: int, depth: int) -> tuple[list[Any], int]:
        text = self._text
        values: list[Any] = []
        at = _expect(text, at, "[")
        while not text.startswith("]", at):
            if values:
                at = _expect(text, at, ",")
            value, at = self.value(at, depth + 1)
            values.append(value)
            at = _after_blanks(text, at)
        return values, at + 1


def _key(text: str, at: int) -> tuple[str, int]:
    """A key, and where it ends."""
    if text.startswith('"', at):
        try:
            key: tuple[str, int] = _scan(text, at)
        except ValueError:
            raise _broken(at) from None
        return key
    number = _NUMBER_KEY.match(text, at)
    if number is None:
        raise _broken(at)
    return number.group(), number.end()


def _expect(text: str, at: int, character: str) -> int:
    """Where what follows a character begins."""
    at = _after_blanks(text, at)
    if not text.startswith(character, at):
        raise _broken(at)
    return _after_blanks(text, at + 1)


def _after_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return at if found is None else found.end()


def _broken(at: int) -> Refused:
    return invalid_field("body", f"is no JSON from character {at} on")
