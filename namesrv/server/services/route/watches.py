"""The call of RouteService that watches topics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.topic_rules import MAX_RETRY_TOPIC_LENGTH, check_name
from namesrv.config import limits
from namesrv.core.errors import InvalidField, LimitExceeded, RegistryWarming
from namesrv.core.registrations import RouteInfoManager
from namesrv.core.slices import Sliced
from namesrv.core.warm_up import WarmUp
from namesrv.core.watch import RouteWatch, Subscription
from namesrv.server.auth.callers import sharer_of
from namesrv.server.background.table_writer import run_cooperatively
from namesrv.server.background.watch_streams import WatchStreams
from namesrv.server.rpc.handlers import Context
from namesrv.server.rpc.shared_writes import shared_writer
from namesrv.server.services import field_rules
from namesrv.server.services.route import requests
from namesrv.server.services.route.resuming import resume_revision

CHECK_SLICE = 500
"""Topic names that are checked before giving way: about a millisecond."""


class WatchCalls:
    """Each stream sends what the core has for it, and waits to be woken."""

    def __init__(self, manager: RouteInfoManager, warm_up: WarmUp, watchers: WatchStreams) -> None:
        self._manager = manager
        self._warm_up = warm_up
        self._watch_streams = watchers

    async def WatchTopicRoutes(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.WatchTopicRoutesRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """The routes of the subscribed topics, then each change of them as it happens."""
        if self._warm_up.must_wait():
            raise RegistryWarming("any route (needWaitForService)")
        subscription = await run_cooperatively(_subscription(request))
        after = resume_revision(self._manager, "resume_after", request.resume_after) if _resumes(request) else None
        del request  # with ten thousand names it is larger than all else that an open watch holds
        opening = self._watch_streams.watching(
            subscription, after, context.peer(), shared_writer(context), sharer_of(context)
        )
        async with opening as watcher:
            assert isinstance(watcher.reader, RouteWatch), "that is what was opened"
            while True:
                watcher.woken.clear()
                while message := self._watch_streams.messages.next_message(watcher.reader):
                    yield message
                    self._watch_streams.sent(watcher)
                    await asyncio.sleep(0)  # a message that the transport takes at once would not give the loop back
                await watcher.idle()


def _resumes(request: pb.WatchTopicRoutesRequest) -> bool:
    return request.HasField("resume_after")


def _subscription(request: pb.WatchTopicRoutesRequest) -> Sliced[Subscription]:
    """What a request asks to watch.

    Raises:
        InvalidField: It names nothing, or something that breaks a rule.
        LimitExceeded: It names too much.
    """
    for what, names, most in (
        ("topics of one watch", request.topics, limits.MAX_WATCH_TOPICS),
        ("prefixes of one watch", request.topic_prefixes, limits.MAX_WATCH_PREFIXES),
    ):
        if len(names) > most:
            raise LimitExceeded(what, len(names), most)
    if not request.topics and not request.topic_prefixes:
        raise InvalidField("topics", "is empty; name topics, or beginnings of their names in topic_prefixes")
    for index, prefix in enumerate(request.topic_prefixes):
        _check_prefix(f"topic_prefixes[{index}]", prefix)
    for index, topic in enumerate(request.topics):
        field_rules.check_topic(f"topics[{index}]", topic)
        if index % CHECK_SLICE == CHECK_SLICE - 1:
            yield
    prefixes = tuple(dict.fromkeys(request.topic_prefixes))
    return Subscription(frozenset(request.topics), prefixes, requests.zone_name(request))


def _check_prefix(field: str, prefix: str) -> None:
    """Checks that topics can begin like this; all do with the empty one. Raises InvalidField."""
    try:
        if prefix:
            check_name(prefix, MAX_RETRY_TOPIC_LENGTH)
    except ValueError as error:
        raise InvalidField(field, str(error)) from None
