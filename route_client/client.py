"""The client for threads: routes on an event loop of its own."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Coroutine, Iterable
from concurrent.futures import CancelledError
from typing import Any, Self, TypeVar

from route_client.cache import KnownRoute, any_broker_of
from route_client.errors import ClientClosedError, TopicNotFoundError
from route_client.queues import PublishInfo, subscribe_info
from route_client.route import MessageQueue
from route_client.settings import ClientSettings
from route_client.source import RouteReads, route_of

ResultT = TypeVar("ResultT")


class RouteClient(RouteReads):
    """Routes by topic, kept up to date by whichever name server answers. May be used from any thread.

    Use it in a ``with`` statement or call ``close``. Answers from the cache do not leave the calling thread. Create the
    client after a fork: in a process that was forked from its own, asking for a route raises ForkedProcessError.
    Methods have the errors of AioRouteClient's.
    """

    def __init__(
        self,
        endpoints: str | Iterable[str] | None = None,
        settings: ClientSettings | None = None,
        topics: Iterable[str] = (),
        rng: random.Random | None = None,
    ) -> None:
        """Starts, and asks for the topics if there are any. It succeeds even if nobody answers.

        Arguments and errors are those of AioRouteClient.
        """
        super().__init__(endpoints, settings, topics, rng)
        self._closing = threading.Lock()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="route-client-loop", daemon=True)
        self._thread.start()
        try:
            self._result_of(self._source.start())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends all calls and threads. Routes that wait to be saved are saved. A callback may call it, too.

        Does nothing in a forked process: threads and connections are the parent's.
        """
        if self._source.is_inherited:
            return
        with self._closing:
            if self._closed:
                return
            self._closed = True
        closing = self._source.close(caller=threading.current_thread())
        asyncio.run_coroutine_threadsafe(closing, self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def route(self, topic: str) -> KnownRoute:
        """A topic's route: from the cache, or from the first name server that answers, or from disk."""
        return self._source.known(topic) or self._result_of(self._source.route(topic))

    def forget(self, topic: str) -> None:
        """Keeps a topic no longer, until it is asked for again. Its file on disk stays."""

        async def forget() -> None:
            self._source.forget(topic)

        self._result_of(forget())

    def publish_info(self, topic: str) -> PublishInfo:
        """The queues to send to. A topic that does not exist has those of the default topic's brokers."""
        try:
            known = self._source.known(topic)
        except TopicNotFoundError:
            known = None
        return self._publish_info(topic, known or self._result_of(self._source.route_to_send(topic)))

    def select_one_queue(self, topic: str, last_broker_name: str | None = None) -> MessageQueue:
        """The queue for the next message; on another try, one of another broker than the last try's."""
        return self._selector.select_one_queue(self.publish_info(topic), last_broker_name)

    def subscribe_info(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues to read from, sorted, for an allocation strategy."""
        return subscribe_info(topic, route_of(self.route(topic)), self.settings.zone_name)

    def any_broker_of(self, topic: str) -> str | None:
        """A random broker of a topic, a master if there is one, to ask for a group's consumers."""
        return any_broker_of(route_of(self.route(topic)), self._rng)

    def _result_of(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        if self._source.is_inherited:
            work.close()
            self._source.check_open()
        with self._closing:
            if self._closed:
                work.close()
                raise ClientClosedError("the client is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise ClientClosedError("the client was closed during the call") from None

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            # Callers that still wait for an answer get an error.
            waiting = asyncio.all_tasks(self._loop)
            for task in waiting:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*waiting, return_exceptions=True))
            self._loop.close()
