"""The HTTP server of the page and of the data that it asks for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable

from aiohttp import web

from namesrv_console.fleet.fleet import Fleet
from namesrv_console.fleets import NoSuchFleet, chosen, permitted
from namesrv_console.listener.connections import Connections
from namesrv_console.listener.events import Events
from namesrv_console.listener.protection import check_requests, problem
from namesrv_console.log_in.log_in import PATH, LogIn
from namesrv_console.page import Page
from namesrv_console.query import BadQuery

MAX_BODY_BYTES = 16 * 1024
"""Largest request body: an action with its comment is below 2 KiB."""

FILE_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

Handler = Callable[[web.Request], Awaitable[web.Response]]


def application(
    fleets: Mapping[str, Fleet],
    *,
    permit_actions: bool,
    host_names: list[str],
    log_in: LogIn | None = None,
    connections: Connections | None = None,
) -> tuple[web.Application, Events]:
    """The web application, and its event streams, to be closed before it is. Without a log-in it is for everybody."""
    pages, events = {name: Page(fleet, permit_actions=permit_actions) for name, fleet in fleets.items()}, Events()
    lets_in = (lambda _: True) if log_in is None else lambda request: request.path == PATH or log_in.lets_in(request)
    middlewares = [(connections or Connections()).middleware(), check_requests(host_names, lets_in)]
    app = web.Application(middlewares=middlewares, client_max_size=MAX_BODY_BYTES)
    if log_in is not None:
        app.router.add_post(PATH, log_in.handle)
        app.router.add_get(PATH, log_in.ways)
        app.router.add_delete(PATH, log_in.log_out)
    app.cleanup_ctx.extend(_comparing(page) for page in pages.values())
    for asked in (Page.clusters, Page.brokers, Page.broker, Page.topics, Page.route, Page.journal):
        app.router.add_get(f"/api/{asked.__name__}", _checked(_of_a_page(pages, asked)))
    app.router.add_get("/api/overview", _checked(_overview(pages)))
    app.router.add_get("/api/events", _named(lambda request: events.handle(request, fleets[chosen(request, fleets)])))
    app.router.add_post("/api/actions", _checked(_of_a_page(pages, Page.act)))
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


def _of_a_page(pages: Mapping[str, Page], asked: Callable[[Page, web.Request], Awaitable[web.Response]]) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        return await asked(pages[chosen(request, pages)], request)

    return handle


def _overview(pages: Mapping[str, Page]) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        fleet = chosen(request, pages)
        return await pages[fleet].overview(request, {"fleet": fleet, "fleets": permitted(request, pages)})

    return handle


def _checked(handler: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.Response:
        return _compressed(await handler(request))

    return _named(handle)


def _named(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Answers what the handler raises."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except BadQuery as error:
            return problem(400, "INVALID_FIELD", str(error))
        except NoSuchFleet as error:
            return problem(404, "FLEET_NOT_FOUND", str(error))

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
