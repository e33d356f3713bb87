"""The client for asyncio."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Iterable
from types import TracebackType
from typing import Self

from route_client.cache import FoundBroker, KnownRoute, any_broker_of
from route_client.changes import Callback, Changes
from route_client.errors import TopicNotFoundError
from route_client.queues import LatencyFaults, PublishInfo, PublishInfoCache, QueueSelector, subscribe_info
from route_client.route import MessageQueue, TopicRoute
from route_client.settings import ClientSettings
from route_client.source import ClientStatus, RouteSource


class AioRouteClient:
    """Routes by topic, kept up to date by whichever name server answers.

    Use it in an ``async with`` statement, or call ``start`` and ``close``, on one event loop. What is not ``async``
    here may be called from any thread, apart from ``forget``. Create the client after a fork: in a process that was
    forked from its own, asking for a route raises ForkedProcessError, and ``close`` does nothing.
    """

    def __init__(
        self,
        endpoints: str | Iterable[str] | None = None,
        settings: ClientSettings | None = None,
        topics: Iterable[str] = (),
        rng: random.Random | None = None,
    ) -> None:
        """Connects to nobody yet.

        Args:
            endpoints: Name servers, such as ``"a:9876;b:9876"``; ``dns:name:9876`` for all addresses of a name. None
                means the environment variable NAMESRV_ADDR.
            settings: How it behaves.
            topics: Topics to keep from the start. Others are added when they are first asked for.
            rng: Source of randomness, to shuffle name servers and spread waits.

        Raises:
            EndpointListError: There is no list of name servers, or an element of it is no address.
            BadTopicNameError: A topic's name breaks the rules.
            TooManyTopicsError: They are more than the client keeps.
            OSError: The folder of the disk cache cannot be made.
        """
        self.settings = settings or ClientSettings()
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._source = RouteSource(endpoints, self.settings, topics, self._rng)
        self._infos = PublishInfoCache(self.settings)
        self.faults = LatencyFaults(time.monotonic, self._rng)
        """Brokers that were slow or failed. Used if ``send_latency_fault_enable`` is on; ``report`` to it."""
        self._selector = QueueSelector(self._rng, self.faults if self.settings.send_latency_fault_enable else None)

    async def start(self) -> None:
        """Begins to keep routes.

        If there are topics already, asks for all of them. It is no error if nobody answers.
        """
        await self._source.start()

    async def close(self, caller: threading.Thread | None = None) -> None:
        """Ends all calls, tasks and threads. Routes that wait to be saved are saved. Does nothing in a forked process.

        Args:
            caller: A thread that waits for this, if it is another one.
        """
        if not self.is_inherited:
            await self._source.close(caller or threading.current_thread())

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked from the one that made the client."""
        return self._source.is_inherited

    def check_open(self) -> None:
        """Raises ForkedProcessError or ClientClosedError where the client cannot be used."""
        self._source.check_open()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # Routes

    def cached(self, topic: str) -> KnownRoute | None:
        """What is known about a topic, without asking anybody; None if nothing."""
        return self._source.cache.get(topic)

    def known(self, topic: str) -> KnownRoute | None:
        """Like ``route``, but None where a name server would have to be asked first."""
        return self._source.known(topic)

    async def route(self, topic: str) -> KnownRoute:
        """A topic's route: from the cache, or from the first name server that answers, or from disk.

        Raises:
            TopicNotFoundError: There is no such topic.
            NoNamesrvAnsweredError: Nobody answered, and there is none on disk.
            RequestRefusedError: A name server refused to be asked.
            BadTopicNameError: The name breaks the rules.
            TooManyTopicsError: The client keeps as many topics as it may.
            ClientClosedError: The client is closed.
        """
        return await self._source.route(topic)

    def forget(self, topic: str) -> None:
        """Keeps a topic no longer, until it is asked for again. Its file on disk stays."""
        self._source.forget(topic)
        self._infos.forget(topic)

    # For producers

    async def publish_info(self, topic: str) -> PublishInfo:
        """The queues to send to. A topic that does not exist has those of the default topic's brokers.

        Raises:
            MalformedOrderConfError: Its ordered configuration cannot be read, and there were no queues before.
            RouteClientError: As in ``route``; TopicNotFoundError only if there is no default topic either.
        """
        try:
            known = await self.route(topic)
        except TopicNotFoundError as not_found:
            return self._infos.of_default_topic(topic, await self._default_route(not_found))
        return self._infos.of_route(topic, _of(known))

    def known_publish_info(self, topic: str) -> PublishInfo | None:
        """Like ``publish_info``, but None where a name server would have to be asked first."""
        try:
            known = self.known(topic)
        except TopicNotFoundError:
            default = self.cached(self.settings.default_topic)
            if default is None or default.route is None:
                return None
            return self._infos.of_default_topic(topic, default.route)
        return self._infos.of_route(topic, _of(known)) if known else None

    async def select_one_queue(self, topic: str, last_broker_name: str | None = None) -> MessageQueue:
        """The queue for the next message.

        Args:
            topic: Name of the topic.
            last_broker_name: For another try: the broker that the last one failed at.

        Raises:
            NoWritableQueueError: There is a route, but no queue to send to.
            RouteClientError: As in ``publish_info``.
        """
        return self.select_from(await self.publish_info(topic), last_broker_name)

    def select_from(self, info: PublishInfo, last_broker_name: str | None = None) -> MessageQueue:
        """The queue for the next message, from publish info at hand."""
        return self._selector.select_one_queue(info, last_broker_name)

    def find_broker_address_in_publish(self, broker_name: str, cluster_name: str | None = None) -> str | None:
        """Address of a group's master, by the kept routes; None if there is none."""
        return self._source.cache.brokers.find_in_publish(broker_name, cluster_name)

    # For consumers

    async def subscribe_info(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues to read from, sorted, for an allocation strategy. Errors as in ``route``."""
        return subscribe_info(topic, _of(await self.route(topic)), self.settings.zone_name)

    def find_broker_address_in_subscribe(
        self, broker_name: str, broker_id: int, cluster_name: str | None = None, *, only_this_broker: bool = False
    ) -> FoundBroker | None:
        """A group's broker to pull from, by the kept routes; see ``BrokerAddrTable.find_in_subscribe``."""
        return self._source.cache.brokers.find_in_subscribe(
            broker_name, broker_id, cluster_name, only_this_broker=only_this_broker
        )

    async def any_broker_of(self, topic: str) -> str | None:
        """A random broker of a topic, a master if there is one, to ask for a group's consumers.

        Errors as in ``route``.
        """
        return any_broker_of(_of(await self.route(topic)), self._rng)

    # Changes

    def on_change(self, callback: Callback, topics: Collection[str] | None = None) -> Callable[[], None]:
        """Calls back with each change of the kept topics, or of some of them, on a thread of the callback's own.

        While a call runs, further changes of one topic become one. What the callback raises is logged.

        Returns:
            Ends it; a call that is under way goes on.
        """
        return self._source.listeners.call(callback, topics).close

    def changes(self, topics: Collection[str] | None = None) -> Changes:
        """Changes of the kept topics, or of some of them, from now on: ``async for change in client.changes()``."""
        return self._source.listeners.changes(topics)

    def status(self) -> ClientStatus:
        """The status of the client."""
        return self._source.status()

    async def _default_route(self, not_found: TopicNotFoundError) -> TopicRoute:
        if not self.settings.default_topic:
            raise not_found
        try:
            return _of(await self.route(self.settings.default_topic))
        except TopicNotFoundError:
            raise not_found from None


def _of(known: KnownRoute) -> TopicRoute:
    assert known.route is not None, "routes without one are raised as not found"
    return known.route
