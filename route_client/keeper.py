"""The keeper of the cache: one session after the other, each with one name server for as long as that works."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError, RichError
from route_client.endpoints import EndpointChooser
from route_client.kept_routes import KeptRoutes
from route_client.namesrv import BATCH_TOPICS, Lookups, Namesrv, Namesrvs, cancelled
from route_client.settings import ClientSettings
from route_client.watch_stream import WatchBroken, WatchStream

STEADY_SECONDS = 5.0
"""A session that lasts so long counts as an answer. One that ends earlier, again and again, must lead to backoff."""

UNREADY_SECONDS = 5.0
"""How long a session lasts with a name server that says it is not ready, before another one is looked for."""

RESYNC_SECONDS = 300.0
"""Between two polls while a watch is open, 10 % more or less: they notice a stream that wrongly stays silent. Where
polling replaces a watch, the watch is tried again after this time."""

UPDATE_SECONDS = 0.05
"""Shortest time from one request of a watch to the next. A program that asks for one topic after the other must not
cost the name server a request for each."""

FROM_THE_BEGINNING = frozenset({"EPOCH_CHANGED", "REVISION_COMPACTED"})
"""Reasons why a watch cannot be resumed. It is opened again at once, without a resume point."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatus:
    """The name server that keeps the client's routes up to date, at one moment."""

    mode: str = "disconnected"
    """``watch``, ``poll`` or ``disconnected``."""
    endpoint: Endpoint | None = None
    """The name server of the session, if there is one."""
    last_error: str = ""
    """How the last session that failed did."""


@dataclass(eq=False)
class RouteKeeper:
    """Watches or polls all kept topics at the current name server, and goes to the next one when that fails."""

    settings: ClientSettings
    namesrvs: Namesrvs
    chooser: EndpointChooser
    routes: KeptRoutes
    """Get all answers."""
    lookups: Lookups
    rng: random.Random
    status: SessionStatus = field(default_factory=SessionStatus)
    topics_changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when topics were added or dropped: the name server is sent them."""

    async def run(self) -> None:
        """Keeps the routes up to date until cancelled."""
        while True:
            await asyncio.sleep(self.chooser.delay_seconds())
            endpoint = self.chooser.current
            try:
                await self._session(endpoint)
            except (CallError, WatchBroken) as failed:
                is_news = self.status.mode != "disconnected" or not self.status.last_error
                level = logging.WARNING if is_news else logging.DEBUG
                _log.log(level, "routes are not kept up to date by %s: %s", endpoint, _text(failed))
                retry_after = failed.error.retry_after_seconds if isinstance(failed, CallError) else None
                self._leave(endpoint, _text(failed), retry_after)
            except Exception as defect:  # noqa: BLE001 - otherwise routes would silently become stale
                _log.exception("a defect of the client; it continues with the next name server")
                self._leave(endpoint, repr(defect))
            finally:
                self.status = replace(self.status, mode="disconnected", endpoint=None)

    def _leave(self, endpoint: Endpoint, error: str, retry_after: float | None = None) -> None:
        self.status = replace(self.status, last_error=error)
        self.chooser.failed(endpoint, retry_after)
        if self.chooser.all_failed:
            self.routes.set_cut_off(True)
        self.namesrvs.drop(endpoint)

    async def _session(self, endpoint: Endpoint) -> None:
        """Ends without an error when it is time to look for a better name server, or to try the watch again."""
        namesrv = self.namesrvs.at(endpoint)
        ready = await namesrv.is_serving()
        if not ready and not self.chooser.all_failed:
            raise _not_ready(endpoint)
        loop = asyncio.get_running_loop()
        steady = loop.call_later(STEADY_SECONDS, self.chooser.succeeded, endpoint) if ready else None
        steady_at = loop.time() + STEADY_SECONDS
        try:
            async with asyncio.timeout(None if ready else UNREADY_SECONDS):
                await _first_end(self._watch(namesrv), self._resync(namesrv, while_ready=ready))
        except TimeoutError:
            self.chooser.choose_anew()
        except CallError as failed:
            if failed.error.reason == "WATCH_EXPIRED" and loop.time() >= steady_at:
                self.chooser.choose_anew()
            elif failed.error.code == grpc.StatusCode.UNIMPLEMENTED or failed.error.reason == "LIMIT_EXCEEDED":
                _log.warning("routes are polled: %s", _text(failed))
                self.status = replace(self.status, last_error=_text(failed))
                await self._poll(namesrv, ready=ready)
            else:
                raise
        finally:
            if steady is not None:
                steady.cancel()

    async def _watch(self, namesrv: Namesrv) -> None:
        """Watches until an error is raised; once more, from the beginning, if the watch cannot be resumed."""
        topics = self.routes.topics
        try:
            await self._watch_once(namesrv)
        except CallError as failed:
            if failed.error.reason not in FROM_THE_BEGINNING or topics.resume_at(namesrv.endpoint) is None:
                raise
            topics.watched = None
            await self._watch_once(namesrv)

    async def _watch_once(self, namesrv: Namesrv) -> None:
        topics = self.routes.topics
        while not topics.additions:
            self._connected("watch", namesrv)
            self.topics_changed.clear()
            await self.topics_changed.wait()
        await self.lookups.wait()  # the watch resumes after them
        session = WatchSession(namesrv, self.routes, self.topics_changed, self.settings.timeout_seconds)
        try:
            await _first_end(session.read(lambda: self._connected("watch", namesrv)), session.send_updates())
        finally:
            topics.stream = None

    async def _resync(self, namesrv: Namesrv, *, while_ready: bool) -> None:
        while True:
            await asyncio.sleep(RESYNC_SECONDS * self.rng.uniform(0.9, 1.1))
            await self._poll_once(namesrv, while_ready=while_ready)

    async def _poll(self, namesrv: Namesrv, *, ready: bool) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + (RESYNC_SECONDS if ready else UNREADY_SECONDS)
        while loop.time() < until:
            await self._poll_once(namesrv, while_ready=ready)
            self._connected("poll", namesrv)
            pause = self.settings.poll_seconds * self.rng.uniform(0.9, 1.1)
            await asyncio.sleep(min(pause, until - loop.time()))

    async def _poll_once(self, namesrv: Namesrv, *, while_ready: bool) -> None:
        if while_ready and not await namesrv.is_serving():
            raise _not_ready(namesrv.endpoint)
        topics = list(self.routes.topics.additions)
        for start in range(0, len(topics), BATCH_TOPICS):
            for answer in await namesrv.lookup(topics[start : start + BATCH_TOPICS]):
                self.routes.take(answer)

    def _connected(self, mode: str, namesrv: Namesrv) -> None:
        self.routes.set_cut_off(False)
        self.status = replace(self.status, mode=mode, endpoint=namesrv.endpoint)


class WatchSession:
    """A watch of all kept topics at one name server: where the last one ended, if that was here."""

    def __init__(self, namesrv: Namesrv, routes: KeptRoutes, wake: asyncio.Event, timeout_seconds: float) -> None:
        """Opens the watch. There must be topics.

        The event wakes it when topics have changed. While a request has no answer, each message must arrive in time.
        """
        self._namesrv = namesrv
        self._routes = routes
        self._wake = wake
        self._timeout_seconds = timeout_seconds
        self._clock = asyncio.get_running_loop().time
        self._stream = WatchStream(routes.topics, namesrv.endpoint)
        self._requests: asyncio.Queue[pb.WatchTopicRoutesRequest | None] = asyncio.Queue()
        self._requests.put_nowait(self._stream.opening())
        self._asked_at = self._heard_at = self._clock()

    async def read(self, on_message: Callable[[], None]) -> None:
        """Reads the watch until an error is raised.

        Args:
            on_message: Called after each message once the name server has sent all routes.
        """
        stream = self._stream
        try:
            async with aclosing(self._namesrv.watch(self._sent())) as messages:
                async for response in messages:
                    self._heard_at = self._clock()
                    was_waiting = stream.is_waiting
                    for answer in stream.take(response):
                        self._routes.take(answer)
                    if stream.stands:
                        on_message()
                    if was_waiting and not stream.is_waiting:
                        self._wake.set()  # the next request can be sent
        finally:
            self._requests.put_nowait(None)  # gRPC waits for the next one even after the call

    async def _sent(self) -> AsyncGenerator[pb.WatchTopicRoutesRequest, None]:
        while (request := await self._requests.get()) is not None:
            yield request

    async def send_updates(self) -> None:
        """Asks for the topics that were added and dropped. Raises CallError if a request has no answer in time."""
        while True:
            self._wake.clear()
            seconds = self._update()
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _update(self) -> float | None:
        """Asks for changed topics if it is time; returns the seconds to the next look, None if there is none."""
        now = self._clock()
        if self._stream.is_waiting:
            if now >= self._heard_at + self._timeout_seconds:
                error = RichError(grpc.StatusCode.DEADLINE_EXCEEDED, "did not answer a request of the watch in time")
                raise CallError(self._namesrv.endpoint, error)
            return self._heard_at + self._timeout_seconds - now
        if now < self._asked_at + UPDATE_SECONDS:
            return self._asked_at + UPDATE_SECONDS - now
        request = self._stream.update()
        if request is None:
            return None
        self._requests.put_nowait(request)
        self._asked_at = self._heard_at = now
        return self._timeout_seconds


async def _first_end(*parts: Coroutine[Any, Any, None]) -> None:
    """Runs coroutines until one of them ends or fails, and cancels the others."""
    tasks = [asyncio.create_task(part, name="route-client-session") for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await cancelled(tasks)


def _text(failed: CallError | WatchBroken) -> str:
    """What is wrong, with the code of a failed call, which says more to engineers than its reason alone."""
    return f"{failed.endpoint}: {failed.error}" if isinstance(failed, CallError) else str(failed)


def _not_ready(endpoint: Endpoint) -> CallError:
    return CallError(endpoint, RichError(grpc.StatusCode.UNAVAILABLE, "says that it is not ready"))
