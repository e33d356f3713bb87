"""The fleets of a console, and which of them a request is about."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

from namesrv_console.query import person_of, text


class NoSuchFleet(Exception):
    """There is no such fleet, or not for who asks."""


def permitted(request: web.Request, names: Iterable[str]) -> list[str]:
    """Those of the fleets that who asks may see."""
    mine = person_of(request).fleets
    return [name for name in names if mine is None or name in mine]


def chosen(request: web.Request, names: Iterable[str]) -> str:
    """The fleet that a request names, or the first that who asks may see. Raises BadQuery, NoSuchFleet."""
    mine, asked = permitted(request, names), text(request, "fleet")
    if not mine:
        raise NoSuchFleet(f"{person_of(request).name} may see no fleet of this console")
    if asked and asked not in mine:
        raise NoSuchFleet(f"there is no fleet {asked!r} for {person_of(request).name}; there are {', '.join(mine)}")
    return asked or mine[0]
