"""JSON as RocketMQ writes it, read member by member, so that a large body never blocks the event loop.

The standard library reads standard JSON. Other values are read here, as fastjson reads them:

- Keys may have no quotes, as in RocketMQ's ``{0:"..."}``. Texts may have single ones and more escapes.
- Numbers may have a plus sign, leading zeros, or a letter of their type.
- Comments and a comma before the end are passed over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Any, Self

from namesrv.core.errors import Refused, invalid_field, limit_exceeded
from namesrv.core.pace import FEW, breathe
from namesrv.remoting.limits import MAX_DEPTH, MAX_LENIENT_TOKENS, MAX_MEMBERS, MAX_VALUE_CHARACTERS

_scan = json.JSONDecoder(strict=False).raw_decode
_BLANKS = re.compile(r"(?:[ \t\r\n\f\b]++|//[^\n]{0,1000}+|/\*.{0,1000}?\*/)*+", re.DOTALL)
"""Blanks and comments. Nothing is tried again, so 15 MB of blanks take 20 ms and no memory."""
_NEXT_KEY = re.compile(r'[ \t\r\n]*,[ \t\r\n]*"([^"\\]*)"[ \t\r\n]*:[ \t\r\n]*')
"""From behind a value to behind the next key, where that has no escapes: at once what would be several steps."""
_PIECES = 4 * 1024, 64 * 1024, MAX_VALUE_CHARACTERS
"""Characters that are read as one value, one size after the other, until the value ends within them."""
_CUT_TOKEN = 8
"""Longest token whose cut at the end of a piece is an error before that end."""
_BARE_KEY = re.compile(r"-?\d{1,20}|[A-Za-z_$][\w$]*")
_QUOTED = re.compile(r"""'((?:[^'\\]|\\.)*+)'|"((?:[^"\\]|\\.)*+)\"""", re.DOTALL)
_NOT_STANDARD = re.compile(r"""\"|\\(?:x([0-9a-fA-F]{2})|v|0|'|.)""", re.DOTALL)
_ESCAPES = {'"': r"\"", r"\'": "'", r"\v": r"\u000b", r"\0": r"\u0000"}
_NUMBER = re.compile(r"([+-]?\d{1,20})[LSB]?(?![\w.])")
"""A whole number as fastjson takes it: with any sign, leading zeros, and a letter of its type."""


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
        except json.JSONDecodeError as error:
            if error.pos < len(piece) - _CUT_TOKEN and not error.msg.startswith("Unterminated"):
                break  # a longer piece has the same error
            continue
        except RecursionError:
            break
        if end < len(piece) or at + end == len(text):  # a number that is cut is a number, too
            return value, at + end
    return _Lenient(text).value(at, 0)


class ObjectReader:
    """An object of a text, member by member: after each key, take or open the value before the next one."""

    def __init__(self, text: str, at: int = 0, members: Iterator[int] | None = None) -> None:
        """Stands before the object that begins at a position, blanks apart. ``members`` numbers those of the body."""
        self.text = text
        self.at = _after_blanks(text, at)
        """Where the next value begins, or behind the object. Other readers move it behind a value."""
        self._members = members or count(1)

    def __iter__(self) -> Iterator[str]:
        """The keys, in their order; none if the value is null. Raises INVALID_FIELD and LIMIT_EXCEEDED."""
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
            self._count()
            yield key
            while (found := _NEXT_KEY.match(text, self.at)) is not None:
                self.at = found.end()
                self._count()
                yield found[1]
            at = _after_blanks(text, self.at)
            if text.startswith("}", at):
                self.at = at + 1
                return
            at = _expect(text, at, ",")
            if text.startswith("}", at):
                self.at = at + 1
                return

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
        return ObjectReader(self.text, self.at, self._members)

    def close(self, inner: Self) -> None:
        """Continues behind an object that was opened."""
        self.at = inner.at

    def check_ended(self) -> None:
        """Checks that nothing follows the object. Raises INVALID_FIELD."""
        if _after_blanks(self.text, self.at) != len(self.text):
            raise _broken(self.at)

    def _count(self) -> None:
        members = next(self._members)
        if members > MAX_MEMBERS:
            raise limit_exceeded("members of a body", members, MAX_MEMBERS)


class _Lenient:
    """The reader of one value that is not standard JSON."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._left = MAX_LENIENT_TOKENS

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        """The value that begins at a position, and where it ends."""
        self._left -= 1
        if not self._left % FEW:
            breathe()
        if self._left < 0 or depth > MAX_DEPTH:
            raise invalid_field("body", "has a value that is too large or too deep")
        if self._text.startswith("{", at):
            return self._object(at, depth)
        if self._text.startswith("[", at):
            return self._array(at, depth)
        number = _NUMBER.match(self._text, at)
        if number is not None:
            return int(number[1]), number.end()
        if self._text.startswith(("'", '"'), at):
            return _quoted(self._text, at)
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
                if text.startswith("}", at):
                    break
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
                if text.startswith("]", at):
                    break
            value, at = self.value(at, depth + 1)
            values.append(value)
            at = _after_blanks(text, at)
        return values, at + 1


def _key(text: str, at: int) -> tuple[str, int]:
    """A key, and where it ends."""
    if text.startswith('"', at):
        with suppress(ValueError):
            key: tuple[str, int] = _scan(text, at)
            return key
    if text.startswith(("'", '"'), at):
        return _quoted(text, at)
    bare = _BARE_KEY.match(text, at)
    if bare is None:
        raise _broken(at)
    return bare.group(), bare.end()


def _quoted(text: str, at: int) -> tuple[str, int]:
    """A text in quotes of either kind, with escapes that only fastjson knows, and where it ends."""
    found = _QUOTED.match(text, at)
    if found is None:
        raise _broken(at)
    standard = _NOT_STANDARD.sub(_escape, found[1] if found[1] is not None else found[2])
    try:
        value, _ = _scan(f'"{standard}"', 0)
    except ValueError:
        raise _broken(at) from None
    return value, found.end()


def _escape(found: re.Match[str]) -> str:
    return rf"\u00{found[1]}" if found[1] else _ESCAPES.get(found[0], found[0])


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
