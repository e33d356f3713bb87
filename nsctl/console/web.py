"""The HTTP server of the page: which question has which answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple, NoReturn

from aiohttp import web
from pydantic import ValidationError

from groundwork.http_connections import HttpConnections
from nsctl.console.log_in import BY_COOKIE, PATH, PERSON, LogIn, Person, Role
from nsctl.console.observer import Fleet, Observation
from nsctl.console.protection import Events, check_requests, keep_deadlines, problem
from nsctl.console.views.actions import Action, act
from nsctl.console.views.brokers import HISTORY, BrokerPages, GroupKey, Movements, Wanted, broker_rows, clusters, page
from nsctl.console.views.journal import journal
from nsctl.console.views.overview import SettledDifferences, overview
from nsctl.console.views.topics import TopicSearch, kind_of_topic, route

# What the page asks, answered.

COMPARE_SECONDS = 1.0
"""Least pause between two comparisons of the name servers."""

Json = dict[str, Any]


class _Sight(NamedTuple):
    """What is shown of one version of the fleet, made once for all viewers."""

    version: int
    rows: Sequence[Json]
    """The brokers, those that left a moment ago among them."""
    body: bytes
    """All but the brokers, as JSON."""


class Page:
    """The answers to the page. Needs the event loop that the fleet belongs to."""

    def __init__(self, fleet: Fleet, *, permit_actions: bool) -> None:
        self._fleet = fleet
        self._permit_actions = permit_actions
        self._settled = SettledDifferences()
        self._movements = Movements()
        self._search = TopicSearch(fleet)
        self._broker_pages = BrokerPages(fleet)
        self._made = _Sight(-1, (), b"{}")
        self._making = asyncio.Lock()

    async def overview(self, request: web.Request) -> web.Response:
        """What every view shows of the fleet, and what the person may do."""
        person = person_of(request)
        may = {
            "person": person.name,
            "role": person.role.name.lower(),
            "permitLogOut": request.get(BY_COOKIE, False),
            "permitActions": self._permit_actions and person.role >= Role.OPERATOR,
            "permitConfirming": self._permit_actions and person.role >= Role.ADMIN,
        }
        body = json.dumps(may).encode()[:-1] + b", " + (await self._sight()).body[1:]
        return web.Response(body=body, content_type="application/json", charset="utf-8")

    async def clusters(self, request: web.Request) -> web.Response:
        """The clusters, some of them with their first brokers."""
        wanted, unfolded, folded = _wanted(request), query_names(request, "open"), query_names(request, "shut")
        rows = (await self._sight()).rows
        return web.json_response(await asyncio.to_thread(clusters, rows, wanted, unfolded, folded))

    async def brokers(self, request: web.Request) -> web.Response:
        wanted, start = _wanted(request), query_number(request, "start") or 0
        return web.json_response(await asyncio.to_thread(page, (await self._sight()).rows, wanted, start))

    async def broker(self, request: web.Request) -> web.Response:
        """One group: its brokers, topics and history."""
        group = GroupKey(needed_text(request, "cluster"), needed_text(request, "broker"))
        contains, start = query_text(request, "contains"), query_number(request, "start") or 0
        told = await self._broker_pages.page(group, contains, start)
        rows = [row for row in (await self._sight()).rows if group == (row["cluster"], row["broker"])]
        return web.json_response({"cluster": group.cluster, "broker": group.broker, "brokers": rows, **told})

    async def topics(self, request: web.Request) -> web.Response:
        """A page of the topics with a text in their name."""
        contains, start = query_text(request, "contains"), query_number(request, "start") or 0
        differing, kind = request.query.get("differing") == "1", query_text(request, "kind")
        return web.json_response(await self._search.page(contains, start, differing=differing, kind=kind))

    async def route(self, request: web.Request) -> web.Response:
        """A topic's route at each name server."""
        topic = needed_text(request, "topic")
        answers, told = await asyncio.gather(route(self._fleet, topic), journal(self._fleet, topic, None, None))
        ordered = any(answer.get("order") for answer in answers)
        kind = kind_of_topic(topic, self._fleet.group_names, ordered=ordered)
        entries, _, problems = told
        history = {"history": entries[:HISTORY], "historyProblems": problems}
        return web.json_response({"topic": topic, "kind": kind, "answers": answers, **history})

    async def journal(self, request: web.Request) -> web.Response:
        """A page of the journals of all name servers."""
        topic, broker = query_text(request, "topic") or None, query_text(request, "broker") or None
        entries, before, problems = await journal(self._fleet, topic, broker, query_number(request, "before"))
        return web.json_response({"entries": entries, "before": before, "problems": problems})

    async def act(self, request: web.Request) -> web.Response:
        """Drains or restores, or previews it."""
        if not self._permit_actions:
            return problem(403, "ACTIONS_NOT_PERMITTED", "the console was started without --permit-actions")
        try:
            action = Action.model_validate_json(await request.read())
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the body"
            raise BadQuery(f"{where}: {str(first['msg']).removeprefix('Value error, ')}") from error
        person = person_of(request)
        if person.role < action.needs:
            needed = action.needs.name.lower()
            return problem(403, "ROLE_NOT_PERMITTED", f"{person.name} is {person.role.name.lower()}, not {needed}")
        return web.json_response({"results": await act(self._fleet, action, person.name)})

    async def compare(self) -> NoReturn:
        """Looks at each version, viewers or none: what came and left, and since when there is a difference."""
        version = 0
        while True:
            version = await self._fleet.later_than(version)
            await self._sight()
            await self._fleet.timing.sleep(COMPARE_SECONDS)

    async def _sight(self) -> _Sight:
        async with self._making:
            if self._made.version != self._fleet.version:
                version, seen, now = self._fleet.version, self._fleet.seen, self._fleet.timing.now_millis()
                self._made = await asyncio.to_thread(self._seen, version, seen, now)
            return self._made

    def _seen(self, version: int, seen: Sequence[Observation], now_millis: int) -> _Sight:
        rows = broker_rows(seen, now_millis)
        left = self._movements.note(seen, rows, now_millis)
        told = overview(seen, rows, self._settled, now_millis)
        body = json.dumps({"version": version, **told, "news": self._movements.news()})
        return _Sight(version, [*rows, *left], body.encode())


def _wanted(request: web.Request) -> Wanted:
    return Wanted(
        query_text(request, "contains"),
        request.query.get("unhealthy") == "1",
        query_text(request, "cluster"),
        query_text(request, "sort"),
    )


# What a request asks for, checked.

MAX_TEXT = 255
"""Longest topic or search text: the longest topic name that there can be."""

MAX_NAMES_TEXT = 4_096
"""Longest list of clusters that somebody opened or folded."""


class BadQuery(Exception):
    """A parameter breaks its rule."""


def query_text(request: web.Request, name: str, most: int = MAX_TEXT) -> str:
    """A text; empty if it is not there. Raises BadQuery."""
    value = request.query.get(name, "")
    if len(value) > most:
        raise BadQuery(f"{name} has {len(value)} characters, at most {most}")
    return value


def needed_text(request: web.Request, name: str) -> str:
    """A text that must be there. Raises BadQuery."""
    value = query_text(request, name)
    if not value:
        raise BadQuery(f"{name} is missing")
    return value


def query_names(request: web.Request, name: str) -> frozenset[str]:
    """A list of names with commas between them, of which there is none in a name. Raises BadQuery."""
    return frozenset(filter(None, query_text(request, name, MAX_NAMES_TEXT).split(",")))


def query_number(request: web.Request, name: str) -> int | None:
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


# The HTTP server of the page and of the data that it asks for.

MAX_BODY_BYTES = 16 * 1024
"""Largest request body: an action with its comment is below 2 KiB."""

FILE_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

Handler = Callable[[web.Request], Awaitable[web.Response]]


def application(
    fleet: Fleet,
    *,
    permit_actions: bool,
    host_names: list[str],
    connections: HttpConnections,
    log_in: LogIn | None = None,
) -> tuple[web.Application, Events]:
    """The web application, and its event streams, to be closed before it is. Without a log-in it is for everybody."""
    page, events = Page(fleet, permit_actions=permit_actions), Events(connections)

    def refusal(request: web.Request) -> web.Response | None:
        return None if log_in is None or request.path == PATH else log_in.refusal(request)

    async def stream(request: web.Request) -> web.StreamResponse:
        return await events.handle(request, fleet, lambda: log_in is None or log_in.lets_in(request))

    middlewares = [keep_deadlines(connections), check_requests(host_names, refusal)]
    app = web.Application(middlewares=middlewares, client_max_size=MAX_BODY_BYTES)
    if log_in is not None:
        app.router.add_post(PATH, log_in.handle)
        app.router.add_get(PATH, log_in.ways)
        app.router.add_delete(PATH, log_in.log_out)
    app.cleanup_ctx.append(_comparing(page))
    for asked in (page.overview, page.clusters, page.brokers, page.broker, page.topics, page.route, page.journal):
        app.router.add_get(f"/api/{asked.__name__}", _checked(asked))
    app.router.add_get("/api/events", stream)
    app.router.add_post("/api/actions", _checked(page.act))
    for path, body, kind in _files(files("nsctl.console") / "static", "/"):
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


def _checked(handler: Handler) -> Handler:
    """Compresses an answer, and answers a parameter that breaks its rule."""

    async def handle(request: web.Request) -> web.Response:
        try:
            return _compressed(await handler(request))
        except BadQuery as error:
            return problem(400, "INVALID_FIELD", str(error))

    return handle


def _comparing(page: Page) -> Callable[[web.Application], AsyncIterator[None]]:
    async def compare(_: web.Application) -> AsyncIterator[None]:
        comparing = asyncio.create_task(page.compare())
        yield
        comparing.cancel()

    return compare


def _compressed(response: web.Response) -> web.Response:
    response.enable_compression()
    return response
