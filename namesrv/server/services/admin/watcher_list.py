"""The call of AdminService that lists the open streams of changes."""

from __future__ import annotations

import re

from namesrv_api.v1 import admin_service_pb2 as pb

from namesrv.config import limits
from namesrv.core.errors import InvalidField
from namesrv.core.registrations import RouteInfoManager
from namesrv.core.watch import RouteWatch
from namesrv.server.background.watch_streams import WatchStream, WatchStreams
from namesrv.server.rpc.handlers import Context
from namesrv.server.services import field_rules
from namesrv.server.services.paging import last_of_page_before, page_token

_NUMBER = re.compile(r"[0-9]{1,18}")


class WatcherListCalls:
    """Watchers are listed in the order in which they came."""

    def __init__(self, manager: RouteInfoManager, watchers: WatchStreams) -> None:
        self._manager = manager
        self._watch_streams = watchers

    async def ListWatchers(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.ListWatchersRequest, _context: Context
    ) -> pb.ListWatchersResponse:
        """Who watches what, and how far behind."""
        size = min(
            field_rules.page_size(request.page_size or limits.DEFAULT_WATCHER_PAGE_SIZE),
            limits.MAX_WATCHER_PAGE_SIZE,
        )
        # One more than fits tells whether there is a next page.
        found = self._watch_streams.after(_number_of(request.page_token), size + 1)
        return pb.ListWatchersResponse(
            header=self._manager.header(),
            watchers=[self._row(watcher) for watcher in found[:size]],
            next_page_token=page_token(str(found[size - 1].number)) if len(found) > size else "",
        )

    def _row(self, watcher: WatchStream) -> pb.Watcher:
        reader = watcher.reader
        row = pb.Watcher(
            peer=watcher.peer,
            call=watcher.call,
            revision=max(0, reader.revision),
            events_behind=self._watch_streams.events_behind(watcher),
            opened_at_millis=watcher.opened_at_millis,
        )
        if isinstance(reader, RouteWatch):
            row.topic_count = len(reader.subscription.topics)
            row.topic_prefixes.extend(reader.subscription.prefixes)
        return row


def _number_of(token: str) -> int:
    """The number of the last watcher of the page before; 0 for the first page. Raises InvalidField."""
    number = last_of_page_before(token) if token else "0"
    if not _NUMBER.fullmatch(number):
        raise InvalidField("page_token", "is not a next_page_token of this call")
    return int(number)
