"""The HTTP server of the page and of the data that it asks for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from aiohttp import web
from pydantic import ValidationError

from namesrv_console.fleet.fleet import Fleet
from namesrv_console.listener.connections import Connections
from namesrv_console.listener.events import Events
from namesrv_console.listener.protection import check_requests, problem
from namesrv_console.log_in.log_in import PATH, PERSON, LogIn
from namesrv_console.log_in.people import Person, Role
from namesrv_console.pages.actions import Action, act
from namesrv_console.pages.differences import SettledDifferences
from namesrv_console.pages.overview import overview
from namesrv_console.pages.questions import journal, route
from namesrv_console.pages.topic_search import TopicSearch

MAX_BODY_BYTES = 16 * 1024
"""Largest request body: an action with its comment is below 2 KiB."""

MAX_TEXT = 255
"""Longest topic or search text: the longest topic name that there can be."""

COMPARE_SECONDS = 1.0
"""Least pause between two comparisons of the name servers."""

FILE_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

Json = dict[str, Any]


class BadQuery(Exception):
    """A parameter breaks its rule."""


class Page:
    """Answers what the page asks. Needs the event loop that the fleet belongs to."""

    def __init__(self, fleet: Fleet, *, permit_actions: bool) -> None:
        self._fleet = fleet
        self._permit_actions = permit_actions
        self._settled = SettledDifferences()
        self._search = TopicSearch(fleet)
        self._made: tuple[int, bytes] = (-1, b"")
        self._making = asyncio.Lock()

    async def overview(self, request: web.Request) -> web.Response:
        """All but the topics, made once for each version, for all viewers; and what this one may do."""
        async with self._making:
            version, body = self._made
            if version != self._fleet.version:
                version, seen, now = self._fleet.version, self._fleet.seen, self._fleet.timing.now_millis()
                body = await asyncio.to_thread(self._overview, version, seen, now)
                self._made = (version, body)
        person = _person(request)
        may = {
            "person": person.name,
            "permitActions": self._permit_actions and person.role >= Role.OPERATOR,
            "permitConfirming": self._permit_actions and person.role >= Role.ADMIN,
        }
        body = json.dumps(may).encode()[:-1] + b", " + body[1:]
        return _compressed(web.Response(body=body, content_type="application/json", charset="utf-8"))

    async def compare(self, _: web.Application) -> AsyncIterator[None]:
        """Looks for differences while the application runs, viewers or none: since when there is one is told, too."""
        comparing = asyncio.create_task(self._compare())
        yield
        comparing.cancel()

    async def topics(self, request: web.Request) -> web.Response:
        """A page of the topics with a text in their name."""
        contains, start = _text(request, "contains"), _number(request, "start") or 0
        found = await self._search.page(contains, start, differing=request.query.get("differing") == "1")
        return _compressed(web.json_response(found))

    async def route(self, request: web.Request) -> web.Response:
        """A topic's route at each name server."""
        topic = _text(request, "topic")
        if not topic:
            raise BadQuery("topic is missing")
        return _compressed(web.json_response({"topic": topic, "answers": await route(self._fleet, topic)}))

    async def journal(self, request: web.Request) -> web.Response:
        """A page of the journals of all name servers."""
        topic, broker = _text(request, "topic") or None, _text(request, "broker") or None
        entries, before, problems = await journal(self._fleet, topic, broker, _number(request, "before"))
        return _compressed(web.json_response({"entries": entries, "before": before, "problems": problems}))

    async def act(self, request: web.Request) -> web.Response:
        """Drains or restores, or previews it."""
        if not self._permit_actions:
            return problem(403, "ACTIONS_NOT_PERMITTED", "the console was started without --permit-actions")
        try:
            action = Action.model_validate_json(await request.read())
        except ValidationError as error:
            first = error.errors()[0]
            raise BadQuery(f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}") from error
        person = _person(request)
        if person.role < action.needs:
            needed = action.needs.name.lower()
            return problem(403, "ROLE_NOT_PERMITTED", f"{person.name} is {person.role.name.lower()}, not {needed}")
        return web.json_response({"results": await act(self._fleet, action, person.name)})

    async def _compare(self) -> None:
        version = 0
        while True:
            version = await self._fleet.later_than(version)
            async with self._making:
                await asyncio.to_thread(self._settled.of, self._fleet.seen, self._fleet.timing.now_millis())
            await self._fleet.timing.sleep(COMPARE_SECONDS)

    def _overview(self, version: int, seen: Any, now_millis: int) -> bytes:
        told = overview(seen, self._settled, now_millis)
        return json.dumps({"version": version, **told}).encode()


def application(
    fleet: Fleet,
    *,
    permit_actions: bool,
    host_names: list[str],
    log_in: LogIn | None = None,
    connections: Connections | None = None,
) -> tuple[web.Application, Events]:
    """The web application, and its event streams, to be closed before it is. Without a log-in it is for everybody."""
    page, events = Page(fleet, permit_actions=permit_actions), Events(fleet)
    lets_in = (lambda _: True) if log_in is None else lambda request: request.path == PATH or log_in.lets_in(request)
    middlewares = [(connections or Connections()).middleware(), check_requests(host_names, lets_in)]
    app = web.Application(middlewares=middlewares, client_max_size=MAX_BODY_BYTES)
    if log_in is not None:
        app.router.add_post(PATH, log_in.handle)
        app.router.add_get(PATH, log_in.ways)
    app.cleanup_ctx.append(page.compare)
    app.router.add_get("/api/overview", _checked(page.overview))
    app.router.add_get("/api/topics", _checked(page.topics))
    app.router.add_get("/api/route", _checked(page.route))
    app.router.add_get("/api/journal", _checked(page.journal))
    app.router.add_get("/api/events", events.handle)
    app.router.add_post("/api/actions", _checked(page.act))
    for path, body, kind in _files(files("namesrv_console") / "static", "/"):
        app.router.add_get(path, _file(body, kind))
    return app, events


def _files(folder: Traversable, at: str) -> Iterator[tuple[str, bytes, str]]:
    """The files of the page: each with its path below the address, its content and its type."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _files(entry, f"{at}{entry.name}/")
        else:
            path = at if entry.name == "index.html" else f"{at}{entry.name}"
            yield path, entry.read_bytes(), FILE_TYPES[f".{entry.name.rpartition('.')[2]}"]


def _file(body: bytes, kind: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(_: web.Request) -> web.Response:
        return _compressed(web.Response(body=body, content_type=kind, charset="utf-8"))

    return handle


def _checked(
    handler: Callable[[web.Request], Awaitable[web.Response]],
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        try:
            return await handler(request)
        except BadQuery as error:
            return problem(400, "INVALID_FIELD", str(error))

    return handle


def _compressed(response: web.Response) -> web.Response:
    response.enable_compression()
    return response


def _person(request: web.Request) -> Person:
    """Who asks; without a log-in, everybody may do what the console permits."""
    person: Person | None = request.get(PERSON)
    return person or Person(request.remote or "?", Role.ADMIN)


def _text(request: web.Request, name: str) -> str:
    value = request.query.get(name, "")
    if len(value) > MAX_TEXT:
        raise BadQuery(f"{name} has {len(value)} characters, at most {MAX_TEXT}")
    return value


def _number(request: web.Request, name: str) -> int | None:
    value = request.query.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= 15):
        raise BadQuery(f"{name} is {value[:40]!r}, not a whole number of at most 15 digits")
    return int(value)
