"""The call of AdminService that lists intents, in pages."""

from __future__ import annotations

import re
from typing import NamedTuple

from namesrv_api.v1 import admin_service_pb2 as pb

from namesrv.config import limits
from namesrv.core.encoding import intent_message
from namesrv.core.errors import InvalidField
from namesrv.core.model import HoldKey, Intent, IntentTable
from namesrv.core.registrations import RouteInfoManager
from namesrv.core.slices import Sliced
from namesrv.server.background.table_writer import run_cooperatively
from namesrv.server.rpc.handlers import Context
from namesrv.server.services import field_rules
from namesrv.server.services.paging import last_of_page_before, page_token

SLICE = 1_000
"""Intents that are looked at before giving way: about a millisecond."""

_SINCE = re.compile(r"-?[0-9]{1,19}")
"""Milliseconds since the Unix epoch, as far as 64 bits go."""


class IntentQueries:
    """Intents are listed in the order in which they were decided."""

    def __init__(self, manager: RouteInfoManager) -> None:
        self._manager = manager

    async def ListIntents(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.ListIntentsRequest, _context: Context
    ) -> pb.ListIntentsResponse:
        """What is in force, oldest first."""
        size = min(
            field_rules.page_size(request.page_size or limits.DEFAULT_INTENT_PAGE_SIZE),
            limits.MAX_INTENT_PAGE_SIZE,
        )
        after = position_of_token(request.page_token)
        # One more than fits tells whether there is a next page.
        found = await run_cooperatively(intents_after(self._manager.intents, after, size + 1))
        page = found[:size]
        return pb.ListIntentsResponse(
            header=self._manager.header(),
            intents=[intent_message(intent) for intent in page],
            next_page_token=token_of(page[-1]) if len(found) > size else "",
        )


class Position(NamedTuple):
    """A place in the list. It names what it is after and not how many, so it outlives changes."""

    since_millis: int
    name: str
    """Tells intents of one millisecond apart."""


def intents_after(table: IntentTable, after: Position | None, limit: int) -> Sliced[list[Intent]]:
    """The next intents, at most ``limit``; None starts at the beginning."""
    found: list[tuple[Position, Intent]] = []
    for count, intent in enumerate(table.intents.values(), 1):
        position = _position_of(intent)
        if after is None or position > after:
            found.append((position, intent))
        if count % SLICE == 0:
            yield
    found.sort(key=lambda entry: entry[0])  # they are nearly in order: clocks seldom step back
    return [intent for _, intent in found[:limit]]


def token_of(intent: Intent) -> str:
    """The page token of what comes after an intent."""
    position = _position_of(intent)
    return page_token(f"{position.since_millis}\n{position.name}")


def position_of_token(token: str) -> Position | None:
    """None for the first page. Raises InvalidField."""
    if not token:
        return None
    since, newline, name = last_of_page_before(token).partition("\n")
    if not (newline and _SINCE.fullmatch(since)):
        raise InvalidField("page_token", "is not a next_page_token of this call")
    return Position(int(since), name)


def _position_of(intent: Intent) -> Position:
    key = intent.key
    names = (key.topic, key.cluster_name or "") if isinstance(key, HoldKey) else key
    return Position(intent.since_millis, "\n".join((intent.kind.name, *names)))
