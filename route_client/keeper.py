"""The keeper of the cache: one session after the other, each with one name server for as long as that works."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc

from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import CallError, RichError
from route_client.cache import Answer, RouteCache
from route_client.endpoints import EndpointChooser
from route_client.lookups import BATCH_TOPICS
from route_client.namesrv import Namesrv, Namesrvs
from route_client.settings import ClientSettings
from route_client.watch import KeptTopics, WatchBroken, WatchSession

STEADY_SECONDS = 5.0
"""A session that lasts so long counts as an answer. One that ends earlier, again and again, must lead to backoff."""

UNREADY_SECONDS = 5.0
"""How long a session lasts with a name server that says it is not ready, before another one is looked for."""

RESYNC_SECONDS = 300.0
"""Between two polls beside a watch, 10 % more or less: a stream that wrongly stays silent is noticed then. Where
polling replaces a watch, the watch is tried again after this time."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class SessionStatus:
    """With whom the client keeps its routes up to date."""

    mode: str = "disconnected"
    """``watch``, ``poll`` or ``disconnected``."""
    endpoint: Endpoint | None = None
    """The name server of the session, if there is one."""
    last_error: str = ""
    """How the last session that failed did."""
    sessions: int = 0
    """Sessions begun so far."""
    up_to_date: set[str] = field(default_factory=set)
    """Topics of which a watch says every change."""


class RouteKeeper:
    """Watches or polls all kept topics."""

    def __init__(
        self,
        *,
        settings: ClientSettings,
        namesrvs: Namesrvs,
        chooser: EndpointChooser,
        cache: RouteCache,
        topics: KeptTopics,
        take: Callable[[Answer], object],
        refuse: Callable[[ValueError], None],
        rng: random.Random,
    ) -> None:
        """Takes where answers go, and routes that cannot be read."""
        self._settings = settings
        self._namesrvs = namesrvs
        self._chooser = chooser
        self._cache = cache
        self._topics = topics
        self._take = take
        self._refuse = refuse
        self._rng = rng
        self._topics_changed = asyncio.Event()
        self.status = SessionStatus()

    def topics_changed(self) -> None:
        """Tells that topics were added or dropped."""
        self._topics_changed.set()

    async def run(self) -> None:
        """Keeps the routes up to date until cancelled."""
        while True:
            await asyncio.sleep(self._chooser.delay_seconds())
            endpoint = self._chooser.current
            try:
                await self._session(endpoint)
            except (CallError, WatchBroken) as failed:
                is_news = self.status.mode != "disconnected" or not self.status.last_error
                level = logging.WARNING if is_news else logging.DEBUG
                _log.log(level, "routes are not kept up to date by %s: %s", endpoint, _text(failed))
                self.status.last_error = _text(failed)
                retry_after = failed.error.retry_after_seconds if isinstance(failed, CallError) else None
                self._leave(endpoint, retry_after)
            except Exception as defect:  # noqa: BLE001 - otherwise routes would go stale for ever, without a word
                _log.exception("a defect of the client; it goes on with the next name server")
                self.status.last_error = repr(defect)
                self._leave(endpoint, None)
            finally:
                self.status.mode, self.status.endpoint = "disconnected", None

    def _leave(self, endpoint: Endpoint, retry_after: float | None) -> None:
        self._chooser.failed(endpoint, retry_after)
        if self._chooser.all_failed:
            self._cache.cut_off = True
        self._namesrvs.drop(endpoint)

    async def _session(self, endpoint: Endpoint) -> None:
        """Ends without an error when it is time to look for a better name server, or to try the watch again."""
        namesrv = self._namesrvs.at(endpoint)
        ready = await namesrv.is_serving()
        if not ready and not self._chooser.all_failed:
            raise _not_ready(endpoint)
        self.status.sessions += 1
        lasts = UNREADY_SECONDS if not ready else None
        loop = asyncio.get_running_loop()
        steady = loop.call_later(STEADY_SECONDS, self._chooser.succeeded, endpoint) if ready else None
        try:
            if await self._watched(namesrv, lasts):
                return
            await self._poll(namesrv, lasts)
        finally:
            if steady is not None:
                steady.cancel()

    async def _watched(self, namesrv: Namesrv, lasts: float | None) -> bool:
        """Watches; False if the name server has no watch for this client, so that it must be polled."""
        loop = asyncio.get_running_loop()
        steady_at = loop.time() + STEADY_SECONDS
        try:
            async with asyncio.timeout(lasts):
                await self._watch_session(namesrv, lasts).run(self._topics_changed)
        except TimeoutError:
            return True
        except CallError as failed:
            if failed.error.reason == "WATCH_EXPIRED" and loop.time() >= steady_at:
                self._chooser.choose_anew()
                return True
            if failed.error.code != grpc.StatusCode.UNIMPLEMENTED and failed.error.reason != "LIMIT_EXCEEDED":
                raise
            _log.warning("routes are polled: %s", _text(failed))
            self.status.last_error = _text(failed)
            return False
        return True

    def _watch_session(self, namesrv: Namesrv, lasts: float | None) -> WatchSession:
        return WatchSession(
            namesrv,
            self._topics,
            take=self._take,
            refuse=self._refuse,
            up_to_date=self.status.up_to_date,
            stands=lambda: self._connected("watch", namesrv),
            poll=lambda: self._poll_once(namesrv, while_ready=lasts is None),
            resync_seconds=RESYNC_SECONDS * self._rng.uniform(0.9, 1.1),
            timeout_seconds=self._settings.timeout_seconds,
        )

    async def _poll(self, namesrv: Namesrv, lasts: float | None) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + (lasts or RESYNC_SECONDS)
        while True:
            await self._poll_once(namesrv, while_ready=lasts is None)
            self._connected("poll", namesrv)
            pause = self._settings.poll_seconds * self._rng.uniform(0.9, 1.1)
            if loop.time() + pause > until:
                await asyncio.sleep(until - loop.time())
                return
            await asyncio.sleep(pause)

    async def _poll_once(self, namesrv: Namesrv, *, while_ready: bool) -> None:
        if while_ready and not await namesrv.is_serving():
            raise _not_ready(namesrv.endpoint)
        topics = list(self._topics)
        for start in range(0, len(topics), BATCH_TOPICS):
            batch = await namesrv.lookup(topics[start : start + BATCH_TOPICS])
            for answer in batch.answers:
                self._take(answer)
            for problem in batch.refused:
                self._refuse(problem)

    def _connected(self, mode: str, namesrv: Namesrv) -> None:
        self._cache.cut_off = False
        self.status.mode, self.status.endpoint = mode, namesrv.endpoint


def _text(failed: CallError | WatchBroken) -> str:
    """What is wrong, with the code of a failed call, which says more to engineers than its reason alone."""
    return f"{failed.endpoint}: {failed.error}" if isinstance(failed, CallError) else str(failed)


def _not_ready(endpoint: Endpoint) -> CallError:
    return CallError(endpoint, RichError(grpc.StatusCode.UNAVAILABLE, "says that it is not ready"))
