"""Topics: search over the names of all name servers, and a topic's route at each of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from google.protobuf.message import Message
from namesrv_api.v1 import admin_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.grpc_errors import CallError
from groundwork.namesrv_client import Calls, pages
from groundwork.topic_names import TopicKind, kind_of
from nsctl.console.observer import Fleet
from nsctl.console.views.journal import Json, problem_json
from nsctl.output import route_rows, row

PAGE = 100
"""Topics in a page."""

NAMES_PAGE = 10_000
"""Names asked for at once: the most that a name server gives."""

KV_PAGE = 2_000
"""Keys asked for at once: the most that a name server gives."""

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
"""Where name servers keep the order of a topic's queues (RocketMQ: NamesrvUtil.NAMESPACE_ORDER_TOPIC_CONFIG)."""

ORDERED = "ordered"
"""The kind of such a topic."""

OF_APPLICATIONS = frozenset({TopicKind.NORMAL, ORDERED})
"""Kinds of topics that come before all others."""

MAX_NAMES = 1_000_000
"""Most names that are kept of one name server."""

LEAST_AGE_SECONDS = 3.0
"""Names are not read again before that, however often they change."""


@dataclass(frozen=True, slots=True)
class _Names:
    """The topics of one name server at one point of its history."""

    point: tuple[str, int]
    read_at: float
    names: frozenset[str]
    ordered: frozenset[str]
    """Topics whose queues are in an order that somebody set."""


def kind_of_topic(topic: str, named_after: Collection[str], *, ordered: bool) -> str:
    """Ordered, if somebody set the order of its queues, or what its name says.

    Args:
        named_after: Clusters and brokers, which have topics of their own name.
        ordered: Whether somebody did.
    """
    kind = kind_of(topic, named_after)
    return ORDERED if ordered and kind is TopicKind.NORMAL else kind


class TopicSearch:
    """The names are read when somebody searches, again only after a change, and once for all who search."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._known: dict[Calls, _Names] = {}
        self._reading = asyncio.Lock()
        self._sorted: tuple[tuple[_Names, ...], Mapping[str, str]] = ((), {})
        """All names with their kinds, sorted, and of what they were made."""

    async def page(self, contains: str, start: int, *, differing: bool, kind: str = "") -> dict[str, Any]:
        """A page of topics.

        Args:
            contains: Only topics whose name has this in it, in whatever case; those that begin with it come first.
                Topics of applications come before all others.
            start: How many to leave out.
            differing: Only topics that are not at every name server.
            kind: Only topics of this kind; empty: of all.
        """
        async with self._reading:
            answers = await self._fleet.each(self._names_of)
            known = [None if isinstance(answer, CallError) else answer for answer in answers]
            everything = await self._all_names([names for names in known if names is not None])
        sets = [(index, names.names) for index, names in enumerate(known) if names is not None]
        # Over 100,000 names this takes tens of milliseconds.
        found = await asyncio.to_thread(_found, everything, sets, contains.casefold(), differing)
        kinds = Counter(everything[name] for name in found)
        found = [name for name in found if everything[name] == kind] if kind else found
        return {
            "total": len(everything),
            "kinds": kinds,
            "matched": len(found),
            "start": start,
            "pageSize": PAGE,
            "topics": [
                {
                    "name": name,
                    "kind": everything[name],
                    "missingAt": [index for index, names in sets if name not in names],
                }
                for name in islice(found, start, start + PAGE)
            ],
            "problems": [problem_json(answer) if isinstance(answer, CallError) else None for answer in answers],
        }

    async def _names_of(self, server: Calls) -> _Names:
        now = self._fleet.timing.monotonic()
        known = self._known.get(server)
        if known and now - known.read_at < LEAST_AGE_SECONDS:
            return known
        status = cast(
            "pb.GetNamesrvStatusResponse", await server.call("GetNamesrvStatus", pb.GetNamesrvStatusRequest())
        )
        point = (status.header.epoch, status.header.revision)
        if known is None or known.point != point:
            names: set[str] = set()
            async for page in pages(server, "ListTopics", pb.ListTopicsRequest(page_size=NAMES_PAGE)):
                names.update(cast("pb.ListTopicsResponse", page).topics)
                if len(names) >= MAX_NAMES:
                    break
            known = self._known[server] = _Names(point, now, frozenset(names), await self._ordered(server))
        return known

    @staticmethod
    async def _ordered(server: Calls) -> frozenset[str]:
        found: set[str] = set()
        request = admin_service_pb2.ListKvConfigsRequest(namespace=ORDER_NAMESPACE, page_size=KV_PAGE)
        try:
            async for page in pages(server, "ListKvConfigs", request):
                found.update(row.key for row in cast("admin_service_pb2.ListKvConfigsResponse", page).kv_configs)
        except CallError as error:  # what a name server does not tell this console makes no topic special
            if error.unreachable:
                raise
        return frozenset(found)

    async def _all_names(self, known: list[_Names]) -> Mapping[str, str]:
        made_of, everything = self._sorted
        if made_of != tuple(known):
            everything = await asyncio.to_thread(_united, known, self._fleet.group_names)
            self._sorted = (tuple(known), everything)
        return everything


def _united(known: Sequence[_Names], named_after: Collection[str]) -> Mapping[str, str]:
    ordered = frozenset[str]().union(*(names.ordered for names in known))
    everything = frozenset[str]().union(*(names.names for names in known))
    kinds = {name: kind_of_topic(name, named_after, ordered=name in ordered) for name in everything}
    return {name: kinds[name] for name in sorted(kinds, key=lambda name: (kinds[name] not in OF_APPLICATIONS, name))}


def _found(
    everything: Mapping[str, str], sets: Sequence[tuple[int, frozenset[str]]], contains: str, differing: bool
) -> list[str]:
    names = list(everything)
    if differing:
        everywhere = frozenset.intersection(*(names for _, names in sets)) if sets else frozenset()
        names = [name for name in names if name not in everywhere]
    if not contains:
        return names
    matching = [(name.casefold(), name) for name in names if contains in name.casefold()]

    def order(pair: tuple[str, str]) -> tuple[bool, bool, str]:
        return everything[pair[1]] not in OF_APPLICATIONS, not pair[0].startswith(contains), pair[1]

    return [name for _, name in sorted(matching, key=order)]


# A topic's route


async def route(fleet: Fleet, topic: str) -> list[Json]:
    """A topic's route, and why it is so, at each name server."""

    async def ask(server: Calls) -> Json:
        answers = await asyncio.gather(
            _unless_refused(server, "GetTopicRoute", pb.GetTopicRouteRequest(topic=topic)),
            _unless_refused(server, "ExplainTopicRoute", admin_service_pb2.ExplainTopicRouteRequest(topic=topic)),
        )
        found, why = answers
        told: Json = {"explanations": []}
        if isinstance(why, admin_service_pb2.ExplainTopicRouteResponse):
            told["explanations"] = [row(one) for one in why.explanations]
        if isinstance(found, pb.GetTopicRouteResponse):
            order = found.route.order_topic_conf if found.route.HasField("order_topic_conf") else None
            return told | {"order": order, "groups": route_rows(found.route)}
        return told | {"problem": problem_json(cast("CallError", found))}

    return [
        {"problem": problem_json(answer)} if isinstance(answer, CallError) else answer
        for answer in await fleet.each(ask)
    ]


async def _unless_refused(server: Calls, name: str, request: Message) -> Message | CallError:
    """The answer, or the refusal; raises CallError if the name server cannot be reached."""
    try:
        return await server.call(name, request)
    except CallError as error:
        if error.unreachable and error.error.reason != "REGISTRY_WARMING":
            raise
        return error
