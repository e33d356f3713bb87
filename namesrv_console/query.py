"""What a request asks for, checked."""

from __future__ import annotations

from aiohttp import web

from namesrv_console.log_in.log_in import PERSON
from namesrv_console.log_in.people import Person, Role

MAX_TEXT = 255
"""Longest topic or search text: the longest topic name that there can be."""

MAX_NAMES_TEXT = 4_096
"""Longest list of clusters that somebody opened or folded."""


class BadQuery(Exception):
    """A parameter breaks its rule."""


def text(request: web.Request, name: str, most: int = MAX_TEXT) -> str:
    """A text; empty if it is not there. Raises BadQuery."""
    value = request.query.get(name, "")
    if len(value) > most:
        raise BadQuery(f"{name} has {len(value)} characters, at most {most}")
    return value


def needed(request: web.Request, name: str) -> str:
    """A text that must be there. Raises BadQuery."""
    value = text(request, name)
    if not value:
        raise BadQuery(f"{name} is missing")
    return value


def names(request: web.Request, name: str) -> frozenset[str]:
    """A list of names with commas between them, of which there is none in a name. Raises BadQuery."""
    return frozenset(filter(None, text(request, name, MAX_NAMES_TEXT).split(",")))


def number(request: web.Request, name: str) -> int | None:
    """A whole number that is not negative; None if it is not there. Raises BadQuery."""
    value = request.query.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= 15):
        raise BadQuery(f"{name} is {value[:40]!r}, not a whole number of at most 15 digits")
    return int(value)


def person_of(request: web.Request) -> Person:
    """Who asks; without a log-in, everybody may do what the console permits."""
    person: Person | None = request.get(PERSON)
    return person or Person(request.remote or "?", Role.ADMIN)
