"""JSON as RocketMQ writes it, read member by member, so that a large body never blocks the event loop.

It is standard JSON, but numbers that are keys may have no quotes, as in ``{0:"..."}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import count
from typing import Any

from namesrv.core.errors import Refused, invalid_field, limit_exceeded
from namesrv.core.pace import paced

MAX_VALUE_CHARACTERS = 512 * 1024
"""Longest value of a body that becomes objects at once: these take up to eighty times its memory. A topic's route of a
thousand groups has half of it. Tables and mappings are longer, and are read member by member."""

MAX_DEPTH = 32
"""Deepest nesting of a value that has keys without quotes."""

MAX_MEMBERS = 500_000
"""Most members of a JSON body that are read one by one: 200,000 topics, as many mappings, and their queues where they
are written in another form than RocketMQ's."""

_LONG_DIGITS = 20
"""Characters of the longest 64-bit number."""


def _long(digits: str) -> int:
    """A number of 64 bits. Raises INVALID_FIELD if it has more."""
    if len(digits) > _LONG_DIGITS or not -(2**63) <= (number := int(digits)) < 2**63:
        raise invalid_field("body", "has a number of more than 64 bits")
    return number


_scan = json.JSONDecoder(strict=False, parse_int=_long).raw_decode
_BLANKS = re.compile(r"[ \t\r\n]*+")
_OPENING, _CLOSING = re.compile(r"\{[ \t\r\n]*+"), re.compile(r"[ \t\r\n]*+\}[ \t\r\n]*+")
_KEY_THEN_COLON = r'(?:"([^"\\]*+(?:\\.[^"\\]*+){0,1000}+)"|(-?[0-9]{1,20}))[ \t\r\n]*+:[ \t\r\n]*+'
_FIRST_KEY = re.compile(_KEY_THEN_COLON, re.DOTALL)
_NEXT_KEY = re.compile(r"[ \t\r\n]*+,[ \t\r\n]*+" + _KEY_THEN_COLON, re.DOTALL)
"""From behind a value to behind the next key."""
_PIECES = 4 * 1024, 64 * 1024, MAX_VALUE_CHARACTERS
"""Characters that are read as one value, one size after the other, until the value ends within them."""
_CUT_TOKEN = 8
"""Longest token whose cut at the end of a piece is an error before that end."""
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{,][ \t\r\n]*+(-?[0-9]{1,20})(?=[ \t\r\n]*+:)|[\[\]{}]', re.DOTALL)
"""A text, a key without quotes, or a bracket."""
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]|(u[dD][89a-fA-F])|.)", re.DOTALL)
"""An escape in a text. The group is half of a character, without its other half."""


def read_json(text: str) -> Any:
    """A whole text. Raises INVALID_FIELD if it is no JSON."""
    reader = JsonReader(text)
    value = reader.take()
    reader.check_ended()
    return value


class JsonReader:
    """A position in a text. Large objects are read member by member, also those within others."""

    def __init__(self, text: str) -> None:
        """Stands before the first value. Raises INVALID_FIELD if a text has half of a character."""
        if (r"\ud" in text or r"\uD" in text) and any(escape[1] for escape in paced(_ESCAPE.finditer(text))):
            raise invalid_field("body", "has half of a character")
        self.text = text
        self.at = _behind(_BLANKS, text, 0)
        """Where the next value begins, or behind an object."""
        self._count = count(1)
        """Numbers the members of all objects."""

    def members(self, began: int | None = None) -> Iterator[str]:
        """The keys of the object here, none of a null. After each, its value must be read before the next is asked for.

        If others have read the first members of the object that began somewhere, it continues with the next one.
        Raises INVALID_FIELD and LIMIT_EXCEEDED.
        """
        text = self.text
        if text.startswith("null", self.at):
            self.at += 4
            return
        if began is None or began == self.at:
            self.at = _behind(_OPENING, text, self.at)
            found = _FIRST_KEY.match(text, self.at)
        else:
            found = _NEXT_KEY.match(text, self.at)
        while found is not None:
            self.at = found.end()
            if (number := next(self._count)) > MAX_MEMBERS:
                raise limit_exceeded("members of a body", number, MAX_MEMBERS)
            key = found[2] if found[1] is None else found[1]
            yield _value_at(f'"{key}"', 0)[0] if "\\" in key else key
            found = _NEXT_KEY.match(text, self.at)
        self.at = _behind(_CLOSING, text, self.at)

    @property
    def is_at_object(self) -> bool:
        return self.text.startswith("{", self.at)

    def take(self) -> Any:
        """Reads the value here. Raises INVALID_FIELD."""
        value, self.at = _value_at(self.text, self.at)
        return value

    def check_ended(self) -> None:
        """Checks that nothing follows. Raises INVALID_FIELD."""
        if _behind(_BLANKS, self.text, self.at) != len(self.text):
            raise _broken(self.at)


def _value_at(text: str, at: int) -> tuple[Any, int]:
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
    quoted, end = _with_quoted_keys(text, at)
    try:
        value, length = _scan(quoted, 0)
    except (json.JSONDecodeError, RecursionError):
        raise _broken(at) from None
    if length != len(quoted):
        raise _broken(at)
    return value, end


def _with_quoted_keys(text: str, at: int) -> tuple[str, int]:
    """The object or list that begins at a position, with quotes around the keys that have none, and where it ends."""
    parts: list[str] = []
    begin, depth = at, 0
    for token in paced(_TOKEN.finditer(text, at, at + MAX_VALUE_CHARACTERS)):
        if token[1] is not None:
            parts += text[begin : token.start(1)], f'"{token[1]}"'
            begin = token.end()
        depth += token[0].startswith(("{", "[")) - token[0].startswith(("}", "]"))
        if depth > MAX_DEPTH:
            break
        if depth <= 0 and not token[0].startswith(('"', ",")):
            parts.append(text[begin : token.end()])
            return "".join(parts), token.end()
    raise invalid_field("body", f"has a value at character {at} that is no JSON, too large or too deep")


def _behind(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where a pattern ends that must begin at a position."""
    found = pattern.match(text, at)
    if found is None:
        raise _broken(at)
    return found.end()


def _broken(at: int) -> Refused:
    return invalid_field("body", f"is no JSON from character {at} on")
