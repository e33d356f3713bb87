"""The clients, for threads and for asyncio, and their common base."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterable
from concurrent.futures import CancelledError
from dataclasses import asdict, dataclass, replace
from typing import Any, Self, TypeVar

from namesrv_common.topic_names import check_topic
from route_client.cache import Counters, FoundBroker, KnownRoute, any_broker_of
from route_client.endpoints import EndpointChooser, EndpointList, keep_resolved, resolve
from route_client.errors import (
    BadTopicNameError,
    ClientClosedError,
    ForkedProcessError,
    NoNamesrvAnsweredError,
    RequestRefusedError,
    TopicNotFoundError,
)
from route_client.keeper import RouteKeeper, SessionStatus
from route_client.kept_routes import Callback, Changes, KeptRoutes
from route_client.namesrv import Lookups, Namesrvs, cancelled
from route_client.queues import LatencyFaults, PublishInfo, QueueSelector, subscribe_info
from route_client.route import MessageQueue, TopicRoute
from route_client.settings import ClientSettings

ResultT = TypeVar("ResultT")

_log = logging.getLogger(__name__)


class _Process:
    """This process, also after a fork. ``os.getpid`` is a system call."""

    pid = os.getpid()

    @classmethod
    def forked(cls) -> None:
        cls.pid = os.getpid()


os.register_at_fork(after_in_child=_Process.forked)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStatus(SessionStatus):
    """A client at one moment, for operators' eyes and metrics: its session, and what it keeps."""

    topics: int
    """Topics that it keeps."""
    held_topics: tuple[str, ...]
    """Topics whose loss of all brokers is held back. Alert somebody when there are any."""
    counters: Counters
    """What happened to answers so far."""


class BaseRouteClient:
    """The base of both clients: how they keep routes, and the methods that never wait, for any thread."""

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
            topics: Topics to keep from the start. Other topics are added when they are first asked for.
            rng: Source of randomness, to shuffle name servers and spread waits.

        Raises:
            EndpointListError: There is no list of name servers, or an element of it is no address.
            BadTopicNameError: A topic's name breaks the rules.
            TooManyTopicsError: They are more than the client keeps.
            OSError: The folder of the disk cache cannot be made.
        """
        self.settings = settings or ClientSettings()
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._listed = EndpointList.parse(endpoints)
        self._chooser = EndpointChooser(self._listed.unresolved, self._rng, time.monotonic)
        self._routes = KeptRoutes(self.settings)
        for topic in topics:
            self._routes.topics.add(_checked(topic))
        self._namesrvs = Namesrvs(self.settings)
        self._lookups = Lookups(self._namesrvs, self._chooser, self._routes)
        self._keeper = RouteKeeper(self.settings, self._namesrvs, self._chooser, self._routes, self._lookups, self._rng)
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False
        self._pid = _Process.pid
        self.faults = LatencyFaults(time.monotonic, self._rng)
        """Brokers that were slow or failed. Used if ``send_latency_fault_enable`` is on; ``report`` to it."""
        self._selector = QueueSelector(self._rng, self.faults if self.settings.send_latency_fault_enable else None)
        self._made()

    def _made(self) -> None:
        """Called by ``__init__`` at its end."""

    def cached(self, topic: str) -> KnownRoute | None:
        """The known route of a topic, without asking anybody; None if nothing is known."""
        return self._routes.cache.get(topic)

    def find_broker_address_in_publish(self, broker_name: str, cluster_name: str | None = None) -> str | None:
        """Address of a group's master, by the kept routes; None if there is none."""
        return self._routes.cache.brokers.find_in_publish(broker_name, cluster_name)

    def find_broker_address_in_subscribe(
        self, broker_name: str, broker_id: int, cluster_name: str | None = None, *, only_this_broker: bool = False
    ) -> FoundBroker | None:
        """A group's broker to pull from, by the kept routes; see ``BrokerAddrTable.find_in_subscribe``."""
        return self._routes.cache.brokers.find_in_subscribe(
            broker_name, broker_id, cluster_name, only_this_broker=only_this_broker
        )

    def on_change(self, callback: Callback, topics: Collection[str] | None = None) -> Callable[[], None]:
        """Calls back with each change of the kept topics, or of some of them, on a thread of the callback's own.

        While a call runs, further changes of one topic become one. Exceptions of the callback are logged.

        Returns:
            Ends it; a call that is under way continues.
        """
        return self._routes.listeners.call(callback, topics).close

    def changes(self, topics: Collection[str] | None = None) -> Changes:
        """Changes of the kept topics, or of some of them, from now on.

        Iterate by ``for`` in a thread or by ``async for`` on the client's event loop. The iteration ends when it or the
        client is closed.
        """
        return self._routes.listeners.changes(topics)

    def status(self) -> ClientStatus:
        """The status of the client."""
        topics, cache = self._routes.topics.additions, self._routes.cache
        return ClientStatus(
            **asdict(self._keeper.status),
            topics=len(topics),
            held_topics=cache.held_topics(),
            counters=replace(cache.counters),
        )

    async def _start(self) -> None:
        works = [self._keeper.run()]
        if self._listed.dns_names:
            dns = (self._listed, self._chooser, self.settings.timeout_seconds)
            await resolve(*dns)
            works.append(keep_resolved(*dns))
        self._tasks = [asyncio.create_task(work, name="route-client") for work in works]
        for task in self._tasks:
            task.add_done_callback(_log_defect)
        topics = list(self._routes.topics.additions)
        if topics:
            await self._lookup(topics)

    async def _end(self, caller: threading.Thread) -> None:
        """Ends all calls, tasks and threads but the caller, which waits for this."""
        await cancelled(self._tasks)
        await self._lookups.close()
        await self._namesrvs.close()
        await self._routes.close(caller)

    def _known(self, topic: str) -> KnownRoute | None:
        """A topic's route, if there is one in the cache. Raises ClientClosedError if the client is closed."""
        if self._closed or self._pid != _Process.pid:  # without a call: each message asks for a route
            self._check_open()
        known = self._routes.cache.get(topic)
        return known if known is not None and known.route is not None else None

    async def _route(self, topic: str) -> KnownRoute:
        known = self._known(topic)
        if known is not None:
            return known
        if not self._routes.topics.is_current(topic):
            if self._routes.topics.add(_checked(topic)):
                self._keeper.topics_changed.set()
            error = await self._lookup([topic])
            known = self._known(topic)
            if known is not None:
                return known
            if error is not None:
                raise error
        known = self.cached(topic)
        raise TopicNotFoundError(topic, known.origin.namesrv_name if known and known.origin else "nobody")

    async def _route_to_send(self, topic: str) -> KnownRoute:
        """The route of a topic or, if it does not exist, of the default topic. Errors as in ``route``."""
        try:
            return await self._route(topic)
        except TopicNotFoundError as not_found:
            if not self.settings.default_topic:
                raise
            try:
                return await self._route(self.settings.default_topic)
            except TopicNotFoundError:
                raise not_found from None

    def _forget(self, topic: str) -> None:
        self._routes.forget(topic)
        self._keeper.topics_changed.set()

    def _publish_info(self, topic: str, known: KnownRoute) -> PublishInfo:
        """The queues of a topic by its own route, or by that of the default topic."""
        return self._routes.infos.of(topic, _route_of(known), by_default=known.topic != topic)

    async def _lookup(self, topics: list[str]) -> NoNamesrvAnsweredError | None:
        """Asks for topics, or if nobody answers takes them from disk; returns why nobody answered.

        A topic that a name server refuses is not kept.
        """
        try:
            await self._lookups.lookup(topics)
        except NoNamesrvAnsweredError as error:
            for topic in topics:
                await self._routes.restore(topic)
            return error
        except RequestRefusedError:
            for topic in topics:
                self._forget(topic)
            raise
        return None

    def _check_open(self) -> None:
        """Raises ForkedProcessError or ClientClosedError where the client cannot be used."""
        if self._pid != _Process.pid:
            raise ForkedProcessError(self._pid)
        if self._closed:
            raise ClientClosedError("the client is closed")


class AioRouteClient(BaseRouteClient):
    """Routes by topic, kept up to date by whichever name server answers.

    Use it in an ``async with`` statement, or call ``start`` and ``close``, on one event loop. The methods of the base
    class may be called from any thread. Create the client after a fork: in a process that was forked from its own,
    asking for a route raises ForkedProcessError, and ``close`` does nothing.
    """

    async def start(self) -> None:
        """Begins to keep routes.

        If there are topics already, asks for all of them. It succeeds even if nobody answers.
        """
        await self._start()

    async def close(self) -> None:
        """Ends all calls, tasks and threads, and saves routes that wait for that. Does nothing in a forked process."""
        if not self._closed and self._pid == _Process.pid:
            self._closed = True
            await self._end(threading.current_thread())

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

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
        return await self._route(topic)

    def forget(self, topic: str) -> None:
        """Keeps a topic no longer, until it is asked for again. Its file on disk stays."""
        self._forget(topic)

    async def publish_info(self, topic: str) -> PublishInfo:
        """The queues to send to. A topic that does not exist has those of the default topic's brokers.

        Raises:
            MalformedOrderConfError: Its ordered configuration cannot be read, and there were no queues before.
            RouteClientError: As in ``route``; TopicNotFoundError only if there is no default topic either.
        """
        return self._publish_info(topic, await self._route_to_send(topic))

    async def select_one_queue(self, topic: str, last_broker_name: str | None = None) -> MessageQueue:
        """The queue for the next message.

        Args:
            topic: Name of the topic.
            last_broker_name: For another try: the broker that the last one failed at.

        Raises:
            NoWritableQueueError: There is a route, but no queue to send to.
            RouteClientError: As in ``publish_info``.
        """
        return self._selector.select_one_queue(await self.publish_info(topic), last_broker_name)

    async def subscribe_info(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues to read from, sorted, for an allocation strategy. Errors as in ``route``."""
        return subscribe_info(topic, _route_of(await self.route(topic)), self.settings.zone_name)

    async def any_broker_of(self, topic: str) -> str | None:
        """A random broker of a topic, a master if there is one, to ask for a group's consumers.

        Errors as in ``route``.
        """
        return any_broker_of(_route_of(await self.route(topic)), self._rng)


class RouteClient(BaseRouteClient):
    """Routes by topic, kept up to date by whichever name server answers. May be used from any thread.

    It starts when it is made, and asks for its topics if there are any, which succeeds even if nobody answers. Use it
    in a ``with`` statement or call ``close``. Answers from the cache do not leave the calling thread. Create the client
    after a fork: in a process that was forked from its own, asking for a route raises ForkedProcessError. Methods have
    the errors of AioRouteClient's.
    """

    def _made(self) -> None:
        self._closing = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="route-client-loop", daemon=True)
        self._thread.start()
        try:
            self._result_of(self._start)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends all calls and threads. Routes that wait to be saved are saved. A callback may call it, too.

        Does nothing in a forked process: threads and connections are the parent's.
        """
        if self._pid != _Process.pid:
            return
        with self._closing:
            if self._closed:
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(self._end(threading.current_thread()), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def route(self, topic: str) -> KnownRoute:
        """A topic's route: from the cache, or from the first name server that answers, or from disk."""
        return self._known(topic) or self._result_of(lambda: self._route(topic))

    def forget(self, topic: str) -> None:
        """Keeps a topic no longer, until it is asked for again. Its file on disk stays."""

        async def forget() -> None:
            self._forget(topic)

        self._result_of(forget)

    def publish_info(self, topic: str) -> PublishInfo:
        """The queues to send to. A topic that does not exist has those of the default topic's brokers."""
        known = self._known(topic) or self._result_of(lambda: self._route_to_send(topic))
        return self._publish_info(topic, known)

    def select_one_queue(self, topic: str, last_broker_name: str | None = None) -> MessageQueue:
        """The queue for the next message; on another try, one of another broker than the last try's."""
        return self._selector.select_one_queue(self.publish_info(topic), last_broker_name)

    def subscribe_info(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues to read from, sorted, for an allocation strategy."""
        return subscribe_info(topic, _route_of(self.route(topic)), self.settings.zone_name)

    def any_broker_of(self, topic: str) -> str | None:
        """A random broker of a topic, a master if there is one, to ask for a group's consumers."""
        return any_broker_of(_route_of(self.route(topic)), self._rng)

    def _result_of(self, work: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        self._check_open()  # first, as the parent may have held the lock when this process was forked
        with self._closing:
            self._check_open()
            future = asyncio.run_coroutine_threadsafe(work(), self._loop)
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
            self._loop.run_until_complete(cancelled(asyncio.all_tasks(self._loop)))
            self._loop.close()


def _log_defect(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (defect := task.exception()) is not None:
        _log.error("a part of the client has ended by a defect", exc_info=defect)


def _checked(topic: str) -> str:
    try:
        return check_topic(topic)
    except ValueError as error:
        raise BadTopicNameError(f"the topic's name {error}") from error


def _route_of(known: KnownRoute) -> TopicRoute:
    """The route of an answer of ``route``, which always has one."""
    assert known.route is not None, "routes without one are raised as not found"
    return known.route
