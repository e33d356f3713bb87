"""The client for threads: an AioRouteClient on an event loop of its own."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, Self, TypeVar

from route_client.aio_client import AioRouteClient
from route_client.cache import FoundBroker, KnownRoute
from route_client.changes import Callback, Changes
from route_client.errors import ClientClosedError
from route_client.queues import LatencyFaults, PublishInfo
from route_client.route import MessageQueue
from route_client.settings import ClientSettings
from route_client.source import ClientStatus

ResultT = TypeVar("ResultT")


class RouteClient:
    """Routes by topic, kept up to date by whichever name server answers. May be used from any thread.

    Use it in a ``with`` statement or call ``close``. Answers from the cache do not leave the calling thread. Create the
    client after a fork: in a process that was forked from its own, asking for a route raises ForkedProcessError.
    """

    def __init__(
        self,
        endpoints: str | Iterable[str] | None = None,
        settings: ClientSettings | None = None,
        topics: Iterable[str] = (),
        rng: random.Random | None = None,
    ) -> None:
        """Starts.

        If there are topics, asks for all of them. It is no error if nobody answers. Arguments and errors are those of
        AioRouteClient.
        """
        self._client = AioRouteClient(endpoints, settings, topics, rng)
        self._closing = threading.Lock()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="route-client-loop", daemon=True)
        self._thread.start()
        try:
            self._result_of(self._client.start())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends all calls and threads. Routes that wait to be saved are saved. A callback may call it, too.

        Does nothing in a forked process: threads and connections are the parent's.
        """
        if self._client.is_inherited:
            return
        with self._closing:
            if self._closed:
                return
            self._closed = True
        closing = self._client.close(caller=threading.current_thread())
        asyncio.run_coroutine_threadsafe(closing, self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def faults(self) -> LatencyFaults:
        """Brokers that were slow or failed. Used if ``send_latency_fault_enable`` is on; ``report`` to it."""
        return self._client.faults

    def cached(self, topic: str) -> KnownRoute | None:
        """What is known about a topic, without asking anybody; None if nothing."""
        return self._client.cached(topic)

    def route(self, topic: str) -> KnownRoute:
        """A topic's route; see AioRouteClient.route."""
        return self._client.known(topic) or self._result_of(self._client.route(topic))

    def forget(self, topic: str) -> None:
        """Keeps a topic no longer, until it is asked for again. Its file on disk stays."""

        async def forget() -> None:
            self._client.forget(topic)

        self._result_of(forget())

    def publish_info(self, topic: str) -> PublishInfo:
        """The queues to send to; see AioRouteClient.publish_info."""
        return self._client.known_publish_info(topic) or self._result_of(self._client.publish_info(topic))

    def select_one_queue(self, topic: str, last_broker_name: str | None = None) -> MessageQueue:
        """The queue for the next message; see AioRouteClient.select_one_queue."""
        return self._client.select_from(self.publish_info(topic), last_broker_name)

    def subscribe_info(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues to read from, sorted, for an allocation strategy."""
        return self._result_of(self._client.subscribe_info(topic))

    def find_broker_address_in_publish(self, broker_name: str, cluster_name: str | None = None) -> str | None:
        """Address of a group's master, by the kept routes; None if there is none."""
        return self._client.find_broker_address_in_publish(broker_name, cluster_name)

    def find_broker_address_in_subscribe(
        self, broker_name: str, broker_id: int, cluster_name: str | None = None, *, only_this_broker: bool = False
    ) -> FoundBroker | None:
        """A group's broker to pull from, by the kept routes; see ``BrokerAddrTable.find_in_subscribe``."""
        return self._client.find_broker_address_in_subscribe(
            broker_name, broker_id, cluster_name, only_this_broker=only_this_broker
        )

    def any_broker_of(self, topic: str) -> str | None:
        """A random broker of a topic, a master if there is one, to ask for a group's consumers."""
        return self._result_of(self._client.any_broker_of(topic))

    def on_change(self, callback: Callback, topics: Collection[str] | None = None) -> Callable[[], None]:
        """Calls back with each change, on a thread of the callback's own; see AioRouteClient.on_change."""
        return self._client.on_change(callback, topics)

    def changes(self, topics: Collection[str] | None = None) -> Changes:
        """Changes of the kept topics, or of some of them, from now on: ``for change in client.changes()``.

        The iteration ends when it or the client is closed.
        """
        return self._client.changes(topics)

    def status(self) -> ClientStatus:
        """The status of the client."""
        return self._client.status()

    def _result_of(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        if self._client.is_inherited:
            work.close()
            self._client.check_open()
        with self._closing:
            if self._closed:
                work.close()
                raise ClientClosedError("the client is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise ClientClosedError("the client was closed meanwhile") from None

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            # Callers that still wait for an answer learn that there will be none.
            waiting = asyncio.all_tasks(self._loop)
            for task in waiting:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*waiting, return_exceptions=True))
            self._loop.close()
