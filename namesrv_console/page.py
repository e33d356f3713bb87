"""What one fleet's page asks, answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from aiohttp import web
from pydantic import ValidationError

from namesrv_console import query
from namesrv_console.fleet.fleet import Fleet
from namesrv_console.fleet.observation import Observation
from namesrv_console.listener.protection import problem
from namesrv_console.log_in.log_in import BY_COOKIE
from namesrv_console.log_in.people import Role
from namesrv_console.pages.actions import Action, act
from namesrv_console.pages.broker import HISTORY, BrokerPages, GroupKey
from namesrv_console.pages.broker_rows import Wanted, broker_rows, clusters, page
from namesrv_console.pages.differences import SettledDifferences
from namesrv_console.pages.movements import Movements
from namesrv_console.pages.overview import overview
from namesrv_console.pages.questions import journal, route
from namesrv_console.pages.topic_search import TopicSearch, kind_of_topic

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
    """Answers for one fleet. Needs the event loop that the fleet belongs to."""

    def __init__(self, fleet: Fleet, *, permit_actions: bool) -> None:
        self._fleet = fleet
        self._permit_actions = permit_actions
        self._settled = SettledDifferences()
        self._movements = Movements()
        self._search = TopicSearch(fleet)
        self._broker_pages = BrokerPages(fleet)
        self._made = _Sight(-1, (), b"{}")
        self._making = asyncio.Lock()

    async def overview(self, request: web.Request, place: Json) -> web.Response:
        """What every view shows of the fleet, and what who asks may do; ``place`` says which fleets there are."""
        person = query.person_of(request)
        may = place | {
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
        wanted, unfolded, folded = _wanted(request), query.names(request, "open"), query.names(request, "shut")
        rows = (await self._sight()).rows
        return web.json_response(await asyncio.to_thread(clusters, rows, wanted, unfolded, folded))

    async def brokers(self, request: web.Request) -> web.Response:
        """A page of the brokers."""
        wanted, start = _wanted(request), query.number(request, "start") or 0
        return web.json_response(await asyncio.to_thread(page, (await self._sight()).rows, wanted, start))

    async def broker(self, request: web.Request) -> web.Response:
        """One group: its brokers, topics and history."""
        group = GroupKey(query.needed(request, "cluster"), query.needed(request, "broker"))
        contains, start = query.text(request, "contains"), query.number(request, "start") or 0
        told = await self._broker_pages.page(group, contains, start)
        rows = [row for row in (await self._sight()).rows if group == (row["cluster"], row["broker"])]
        return web.json_response({"cluster": group.cluster, "broker": group.broker, "brokers": rows, **told})

    async def topics(self, request: web.Request) -> web.Response:
        """A page of the topics with a text in their name."""
        contains, start = query.text(request, "contains"), query.number(request, "start") or 0
        differing, kind = request.query.get("differing") == "1", query.text(request, "kind")
        return web.json_response(await self._search.page(contains, start, differing=differing, kind=kind))

    async def route(self, request: web.Request) -> web.Response:
        """A topic's route at each name server."""
        topic = query.needed(request, "topic")
        answers, told = await asyncio.gather(route(self._fleet, topic), journal(self._fleet, topic, None, None))
        ordered = any(answer.get("order") for answer in answers)
        kind = kind_of_topic(topic, self._fleet.group_names, ordered=ordered)
        entries, _, problems = told
        history = {"history": entries[:HISTORY], "historyProblems": problems}
        return web.json_response({"topic": topic, "kind": kind, "answers": answers, **history})

    async def journal(self, request: web.Request) -> web.Response:
        """A page of the journals of all name servers."""
        topic, broker = query.text(request, "topic") or None, query.text(request, "broker") or None
        entries, before, problems = await journal(self._fleet, topic, broker, query.number(request, "before"))
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
            raise query.BadQuery(f"{where}: {str(first['msg']).removeprefix('Value error, ')}") from error
        person = query.person_of(request)
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
        query.text(request, "contains"),
        request.query.get("unhealthy") == "1",
        query.text(request, "cluster"),
        query.text(request, "sort"),
    )
