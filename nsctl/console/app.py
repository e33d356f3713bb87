"""Observers of name servers, the pages, and their server. Only GET and HEAD are answered, and no body is read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from math import inf
from typing import Any
from urllib.parse import urlencode

import structlog
import uvicorn
from jinja2 import Environment, PackageLoader
from namesrv_api.v1 import admin_service_pb2 as admin
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_api.v1.admin_service_pb2 import RouteExplanation as Why
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from uvicorn.protocols.http.h11_impl import H11Protocol

from namesrv_common.client.namesrv_client import NamesrvClient
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError
from namesrv_common.process.logs import configure_logs
from namesrv_common.process.program import stop_event
from namesrv_common.process.systemd import bound_socket, reload_on_hangup
from nsctl.commands.doctor import examined
from nsctl.console import rows
from nsctl.console.rows import Observation
from nsctl.held import GroupKey, lacks_writable_queue, point, read
from nsctl.output import iso, row
from nsctl.session import AnswerT, Fleet, Session, check_silence, name_servers_at

# Observers, one for each name server: they ask it again and again, so that no page waits for an answer.

POLL_SECONDS, CALL_SECONDS = 1.0, 3.0
"""Pause between two calls to a name server, and time for an answer. Without an answer, it is unreachable."""
READ_SECONDS, RENEW_SECONDS, READING_SHARE = 2.0, 5.0, 20
"""Shortest pause before the tables are read again: after a change, without one, and in times of the last reading."""
LATEST = 100
"""Entries of the journal that are read."""


class Observer:
    """One name server, polled by one task: heartbeats and the guard change no revision that could be watched."""

    def __init__(self, server: NamesrvClient) -> None:
        self.server, self.seen = server, Observation(server.endpoint)
        self.thread = ThreadPoolExecutor(1)  # of its own: one that hangs delays no other
        self._read_at, self._reading_seconds = -inf, 0.0

    def observed(self) -> Observation:
        """Asks the name server, and returns how it is now. Blocks."""
        try:
            status = self.server.route.GetNamesrvStatus(pb.GetNamesrvStatusRequest())
            seen = replace(self.seen, status=status, answered_at_millis=time.time_ns() // 1_000_000, silence=None)
            began = time.monotonic()
            is_known = seen.held is not None and point(seen.held.status) == point(status)
            pause = max(RENEW_SECONDS if is_known else READ_SECONDS, READING_SHARE * self._reading_seconds)
            if began < self._read_at + pause:
                return seen
            held = read(self.server, seen.held, most_entries=LATEST)
        except CallError as error:
            return replace(self.seen, silence=self.seen.silence or check_silence(error, CALL_SECONDS))
        routes = held.tables.routes.items()
        unwritable = frozenset(topic for topic, route in routes if lacks_writable_queue(route))
        seen = replace(seen, status=held.status, held=held, unwritable=unwritable, findings=tuple(examined(held)))
        self._read_at, self._reading_seconds = began, time.monotonic() - began
        return seen


# The pages.

PAGE, OVERVIEW_ROWS, OVERVIEW_ENTRIES, MOST_DIFFERENCES, OF_ONE = 50, 40, 5, 200, 10
"""Rows of a page, and of parts of pages."""
MAX_TEXT = 255
"""Longest name or search text: the longest topic name."""
VIEWS = {"/": "Overview", "/brokers": "Brokers", "/topics": "Topics", "/servers": "Servers", "/journal": "Journal"}
TITLES = {400: "Bad address", 404: "No such page", 405: "The console is read-only"}


class Pages:
    """The views of a fleet."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers
        self._differences = rows.Differences()
        self._templates = Environment(loader=PackageLoader("nsctl.console"), autoescape=True)
        self._templates.globals |= {"iso": iso, "ago": _ago, "link": _link, "views": VIEWS, "state_of": rows.state_of}

    @property
    def seen(self) -> list[Observation]:
        """The latest observation of each name server."""
        return [observer.seen for observer in self._observers]

    def application(self, hosts: Sequence[str]) -> Starlette:
        """The application. It takes requests that name one of these hosts."""
        views = (self.overview, self.brokers, self.broker, self.topics, self.topic, self.servers, self.journal)
        routes = [Route(f"/{view.__name__}", view, methods=["GET"]) for view in views]
        files = StaticFiles(packages=[("nsctl.console", "static")])
        return Starlette(
            routes=[Route("/", self.overview, methods=["GET"]), *routes[1:], Mount("/static", files)],
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)],
            exception_handlers={HTTPException: self.error},
        )

    async def observe(self, observer: Observer) -> None:
        """Asks a name server again and again, and notes what differs between all. Runs until cancelled."""
        while True:
            before = observer.seen
            observer.seen = now = await asyncio.get_running_loop().run_in_executor(observer.thread, observer.observed)
            if now.held is not before.held or now.reachable != before.reachable:
                self._differences.note(self.seen, time.time())
            await asyncio.sleep(POLL_SECONDS)

    def overview(self, request: Request) -> Response:
        seen, now = self.seen, time.time()
        groups = rows.group_rows(seen, now)
        found = rows.findings(seen, (kind for kind, _ in self._differences.settled(now)))
        entries = ((view.name, one) for view in seen if view.held for one in view.held.entries or ())
        latest = rows.as_one(entries)[:OVERVIEW_ENTRIES]
        told = rows.summary(found, seen, sum(len(group["brokers"]) for group in groups))
        context = {"seen": seen, "groups": groups, "findings": found, "entries": latest, "summary": told}
        return self._page(request, "overview", "Overview", context | {"most": OVERVIEW_ROWS})

    def brokers(self, request: Request) -> Response:
        contains, only = _text(request, "contains").casefold(), _text(request, "only")
        found = [
            one
            for one in rows.broker_rows(self.seen, time.time())
            if contains in " ".join(map(str, one["key"])).casefold() and not (only and rows.LIVE in one["words"])
        ]
        return self._page(request, "brokers", "Brokers", _paged(request, found) | {"only": only})

    def broker(self, request: Request) -> Response:
        """One broker group."""
        key, now = GroupKey(_text(request, "cluster"), _text(request, "name")), time.time()
        entries, problems, _ = self._entries(broker_name=key.broker, page_size=OF_ONE)
        group = next((one for one in rows.group_rows(self.seen, now) if one["key"] == key), None)
        intents = rows.intent_rows(self.seen, now, key)
        if not (group or intents or entries or problems):
            raise HTTPException(404, f"no broker group {key.broker} of cluster {key.cluster} is known")
        context = {"group": group, "intents": intents, "entries": entries[:OF_ONE], "problems": problems, "key": key}
        commands = {"drain": rows.of_group("drain --dry-run", key), "topics": rows.of_group("broker", key)}
        return self._page(request, "broker", key.broker, context | commands)

    def topics(self, request: Request) -> Response:
        contains, only = _text(request, "contains").casefold(), _text(request, "only")
        found = rows.topic_rows(self.seen, contains, only)
        return self._page(request, "topics", "Topics", _paged(request, found) | {"only": only})

    def topic(self, request: Request) -> Response:
        """The route of a topic, and why it is so: once for name servers that say the same."""
        name, routes = _text(request, "name"), dict[str, rows.Row]()
        answers, problems = self._ask(
            lambda server: server.admin.ExplainTopicRoute(admin.ExplainTopicRouteRequest(topic=name))
        )
        entries, _, _ = self._entries(topic=name, page_size=OF_ONE)
        for view, answer in answers:
            groups = [_explained(one) for one in answer.explanations]
            same = repr([(one["key"], one["words"]) for one in groups])
            routes.setdefault(same, {"at": [], "groups": groups})["at"].append(view.name)
        if answers and not entries and not any(view.held and name in view.held.tables.routes for view in self.seen):
            raise HTTPException(404, f"no broker reported the topic {name}")
        explain = rows.command("explain", "--zone=ZONE", "--", name)
        context = {"routes": routes.values(), "entries": entries[:OF_ONE], "problems": problems, "explain": explain}
        return self._page(request, "topic", name, context)

    def servers(self, request: Request) -> Response:
        """Name servers side by side, what differs between them, and the intents of operators."""
        now, seen = time.time(), self.seen
        differences, intents = list(self._differences.settled(now).values()), rows.intent_rows(seen, now)
        context = {"differences": differences, "most": MOST_DIFFERENCES, "intents": intents, "seen": seen}
        return self._page(request, "servers", "Name servers", context)

    def journal(self, request: Request) -> Response:
        """A page of the journals of all name servers as one."""
        about = {"broker_name": _text(request, "broker") or None, "topic": _text(request, "topic") or None}
        before = _number(request, "before") or None
        entries, problems, older = self._entries(**about, to_millis=before, page_size=PAGE)
        return self._page(request, "journal", "Journal", {"entries": entries, "problems": problems, "older": older})

    def error(self, request: Request, error: Exception) -> Response:
        """The page for an unknown view."""
        assert isinstance(error, HTTPException)
        title = TITLES.get(error.status_code, error.detail)
        return self._page(request, "error", title, {"detail": error.detail}, error.status_code)

    def _entries(self, **wanted: Any) -> tuple[list[rows.Row], list[str], int | None]:
        """Entries of all journals, newest first, the errors, and the time before which the next page is, if any."""
        answers, problems = self._ask(
            lambda server: server.admin.ListAuditEntries(admin.ListAuditEntriesRequest(**wanted))
        )
        found = [(view.name, entry) for view, answer in answers for entry in answer.entries]
        # What is older than the end of a page that was not the last one may lack entries.
        end = max((one.entries[-1].applied_at_millis for _, one in answers if one.next_page_token), default=0)
        # If a page has only entries of one millisecond, the others of that time are left out.
        whole = [pair for pair in found if pair[1].applied_at_millis > end]
        return rows.as_one(whole or found), problems, end + bool(whole) if end else None

    def _ask(self, call: Callable[[NamesrvClient], AnswerT]) -> tuple[list[tuple[Observation, AnswerT]], list[str]]:
        """The answers of those name servers that answered when they were asked last, and the problems of the others."""
        views = {observer.server.endpoint: observer.seen for observer in self._observers}
        asked = Fleet(one.server for one in self._observers if not views[one.server.endpoint].silence)
        answers, errors = asked.each(call)
        problems = [f"{view.name} is unreachable" for view in views.values() if view.silence]
        problems += [f"{views[at].name} {error.reason}: {error.error.message}" for at, error in errors.items()]
        return [(views[endpoint], answer) for endpoint, answer in answers.items()], problems

    def _page(self, request: Request, name: str, title: str, context: Mapping[str, Any], status: int = 200) -> Response:
        about = {"path": request.url.path, "query": dict(request.query_params), "title": title}
        return HTMLResponse(self._templates.get_template(f"{name}.html").render({**about, **context}), status)


READ_ONLY = {
    Why.CONDITION_DRAINED,
    Why.CONDITION_REPORTED_READ_ONLY,
    Why.CONDITION_ACTING_MASTER,
    Why.CONDITION_NO_MASTER,
}


def _explained(why: Why) -> rows.Row:
    key = GroupKey(why.cluster_name, why.broker_name)
    word = rows.Word(str(row(why).get("state", "unknown")).lower().replace("_", " "), "idle")
    if why.state == Why.STATE_IN_ROUTE:
        word = rows.Word("in route", "good")
        if READ_ONLY.intersection(why.conditions):
            verb = "undrain" if Why.CONDITION_DRAINED in why.conditions else "broker"
            word = rows.Word("read only", "bad", rows.of_group(verb, key))
    return {"key": key, "words": [word], "why": why.explanation}


def _text(request: Request, name: str) -> str:
    value = request.query_params.get(name, "").strip()
    if len(value) > MAX_TEXT:
        raise HTTPException(400, f"{name} has {len(value)} characters, at most {MAX_TEXT}")
    return value


def _number(request: Request, name: str) -> int:
    value = request.query_params.get(name) or "0"
    if not (value.isascii() and value.isdigit() and len(value) <= 15):
        raise HTTPException(400, f"{name} is no whole number of at most 15 digits")
    return int(value)


def _paged(request: Request, found: Sequence[Any]) -> rows.Row:
    start = _number(request, "start")
    return {"rows": found[start : start + PAGE], "matched": len(found), "start": start, "size": PAGE}


def _link(path: str, query: rows.Row | None = None, **changed: object) -> str:
    """An address with a query; empty values are left out."""
    told = {key: value for key, value in {**(query or {}), **changed}.items() if value}
    return f"{path}?{urlencode(told)}" if told else path


def _ago(millis: float) -> str:
    """How long ago a time was."""
    seconds = max(0, int(time.time() - millis / 1000))
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:,} {unit} ago"
    return f"{seconds} s ago"


# The server of the pages: uvicorn, bounded.

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
HEAD_SECONDS = 10.0
"""Time for the head of a request, from the beginning of the connection or from the response before it."""


class BoundedHead(H11Protocol):
    """Closes a connection that sends no whole head of a request in time: uvicorn bounds only its size."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(HEAD_SECONDS, self._close_without_head_after, None)

    def on_response_complete(self) -> None:
        answered = self.cycle
        super().on_response_complete()
        self.loop.call_later(HEAD_SECONDS, self._close_without_head_after, answered)

    def _close_without_head_after(self, answered: object) -> None:
        if self.cycle is answered:
            self.transport.abort()


LIMITS = {"limit_concurrency": 200, "h11_max_incomplete_event_size": 16_384, "timeout_graceful_shutdown": 3}
LOGS = {"log_config": None, "log_level": "warning", "access_log": False}
SERVER: Any = {"http": BoundedHead, "ws": "none", "lifespan": "off", "server_header": False, **LIMITS, **LOGS}


async def serve(session: Session, listen: Endpoint, *, behind_proxy: bool) -> None:
    """Serves the page until SIGTERM or SIGINT. Raises OSError if it cannot listen."""
    endpoints = [server.endpoint for server in session.servers]
    with bound_socket(listen) as listener, name_servers_at(endpoints, CALL_SECONDS, session.security) as servers:
        configure_logs("text", "info")
        reload_on_hangup()
        stop, log, at = stop_event(), structlog.get_logger("nsctl.console"), Endpoint(*listener.getsockname()[:2])
        observers = [Observer(server) for server in servers]
        pages = Pages(observers)
        # Another site's name must not be pointed at loopback (DNS rebinding). A proxy has a name of its own.
        hosts = ["*"] if behind_proxy else ["localhost", "127.0.0.1", "::1", "[::1]", listen.host]
        server = uvicorn.Server(uvicorn.Config(pages.application(hosts), headers=list(HEADERS.items()), **SERVER))
        server.capture_signals = nullcontext  # type: ignore[assignment, method-assign]  # they are for the event
        log.info("console_started", page=f"http://{at}/", namesrv=[str(endpoint) for endpoint in endpoints])
        if behind_proxy:
            log.warning("behind_proxy", advice="the proxy must authenticate: the page asks nobody who they are")
        async with asyncio.TaskGroup() as tasks:  # one that fails ends all: the page would show old state
            background = [tasks.create_task(pages.observe(one)) for one in observers]
            serving = tasks.create_task(server.serve([listener]))
            await stop.wait()
            server.should_exit = True
            await serving
            for work in background:
                work.cancel()
