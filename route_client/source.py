"""The source of routes under both clients: cache, name servers and disk. The base of both clients."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from namesrv_common.endpoints import Endpoint
from namesrv_common.topic_names import check_topic
from route_client.cache import Answer, Counters, FoundBroker, KnownRoute, RouteCache, RouteChange, RoutesTooLarge, Stale
from route_client.changes import Callback, Changes, Listeners
from route_client.disk_cache import DiskCache, DiskWriter
from route_client.endpoints import DnsRefresh, EndpointChooser, EndpointList
from route_client.errors import (
    BadTopicNameError,
    ClientClosedError,
    ForkedProcessError,
    NoNamesrvAnsweredError,
    RequestRefusedError,
    TopicNotFoundError,
)
from route_client.keeper import RouteKeeper
from route_client.lookups import Lookups
from route_client.namesrv import Namesrvs
from route_client.queues import LatencyFaults, PublishInfo, PublishInfoCache, QueueSelector
from route_client.route import TopicRoute
from route_client.settings import ClientSettings
from route_client.watch_stream import KeptTopics

# The status of a client, for operators' eyes and metrics.


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """A client at one moment."""

    mode: str
    """``watch``, ``poll`` or ``disconnected``."""
    endpoint: Endpoint | None
    """The name server that keeps its routes up to date."""
    last_error: str
    """The last failure of a name server; empty if there was none."""
    sessions: int
    """How often it has chosen a name server."""
    topics: int
    """Topics that it keeps."""
    held_topics: tuple[str, ...]
    """Topics whose loss of all brokers is held back. Alert somebody when there are any."""
    counters: Counters
    """What happened to answers so far."""
    callback_failures: int
    """Calls of callbacks that raised."""
    cache_files_refused: int
    """Files of the disk cache that could not be trusted."""
    cache_writes_failed: int
    """Files of the disk cache that could not be written."""


# The source.

CLOSE_SECONDS = 5.0
"""How long ``close`` waits for callbacks and writes that run: a callback may block forever."""

_log = logging.getLogger(__name__)


class RouteSource:
    """Routes by topic, kept up to date by whichever name server answers. Belongs to one event loop."""

    def __init__(
        self, endpoints: str | Iterable[str] | None, settings: ClientSettings, topics: Iterable[str], rng: random.Random
    ) -> None:
        """Connects to nobody yet. Arguments and errors as in the clients."""
        listed = EndpointList.parse(endpoints)
        self._chooser = EndpointChooser(listed.unresolved, rng, time.monotonic)
        self.cache = RouteCache(settings.hold_seconds, time.monotonic)
        self._topics = KeptTopics(settings.max_topics)
        for topic in topics:
            self._topics.add(_checked(topic))
        self.infos = PublishInfoCache(settings)
        self.listeners = Listeners()
        self._disk = None if settings.cache_dir is None else DiskWriter(DiskCache(settings.cache_dir, settings.fleet))
        self._dns = DnsRefresh(listed, self._chooser, settings.timeout_seconds) if listed.dns_names else None
        self._namesrvs = Namesrvs(settings)
        self._lookups = Lookups(self._namesrvs, self._chooser, self._topics, self)
        self._keeper = RouteKeeper(
            settings=settings,
            namesrvs=self._namesrvs,
            chooser=self._chooser,
            topics=self._topics,
            lookups=self._lookups,
            sink=self,
            rng=rng,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._hold_timer: asyncio.TimerHandle | None = None
        self._default_topic = settings.default_topic
        self._closed = False
        self._pid = os.getpid()

    async def start(self) -> None:
        """Begins to keep routes, and asks for all topics that there are already. It succeeds even if nobody answers."""
        runs = [self._keeper.run]
        if self._disk is not None:
            runs.append(self._disk.run)
        if self._dns is not None:
            runs.append(self._dns.run)
            await self._dns.refresh()
        self._tasks = [asyncio.create_task(run(), name="route-client") for run in runs]
        for task in self._tasks:
            task.add_done_callback(_log_defect)
        topics = list(self._topics)
        if topics and await self._lookup(topics) is not None:
            for topic in topics:
                await self._restore(topic)

    async def close(self, caller: threading.Thread | None = None) -> None:
        """Ends all calls, tasks and threads, and saves routes that wait for that. Does nothing in a forked process.

        Args:
            caller: A thread that waits for this, if it is another one.
        """
        if self._closed or self.is_inherited:
            return
        self._closed = True
        if self._hold_timer is not None:
            self._hold_timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._lookups.close()
        await self._namesrvs.close()
        await self._close_disk()
        blocked = await asyncio.to_thread(self.listeners.close, CLOSE_SECONDS, caller or threading.current_thread())
        if blocked:
            _log.warning("%d callbacks still block; their threads end with them", blocked)

    def known(self, topic: str) -> KnownRoute | None:
        """A topic's route if it can be told without asking anybody.

        Raises:
            TopicNotFoundError: A name server that tells every change says that there is none.
            ClientClosedError: The client is closed.
        """
        self.check_open()
        known = self.cache.get(topic)
        if known is None or known.route is not None:
            return known
        if self._topics.is_current(topic):
            raise _not_found(known)
        return None

    async def route(self, topic: str) -> KnownRoute:
        """A topic's route: from the cache, the first name server that answers, or disk. Errors as in the clients."""
        known = self.known(topic)
        if known is not None:
            return known
        if self._topics.add(_checked(topic)):
            self._keeper.topics_changed()
        error = await self._lookup([topic])
        if error is not None:
            await self._restore(topic)
        known = self.cache.get(topic)
        if known is not None and known.route is not None:
            return known
        if error is not None:
            raise error
        raise _not_found(known or KnownRoute(topic, None))

    async def route_to_send(self, topic: str) -> KnownRoute:
        """The route of a topic or, if it does not exist, of the default topic. Errors as in ``route``."""
        try:
            return await self.route(topic)
        except TopicNotFoundError as not_found:
            if not self._default_topic:
                raise
            try:
                return await self.route(self._default_topic)
            except TopicNotFoundError:
                raise not_found from None

    def forget(self, topic: str) -> None:
        """Keeps a topic no longer. Its file on disk stays."""
        self._topics.drop(topic)
        self.cache.forget(topic)
        self.infos.forget(topic)
        self._keeper.topics_changed()

    def status(self) -> ClientStatus:
        """How the client is."""
        session, disk = self._keeper.status, self._disk
        return ClientStatus(
            mode=session.mode,
            endpoint=session.endpoint,
            last_error=session.last_error,
            sessions=session.sessions,
            topics=len(self._topics),
            held_topics=self.cache.held_topics(),
            counters=replace(self.cache.counters),
            callback_failures=self.listeners.callback_failures,
            cache_files_refused=disk.cache.refused if disk is not None else 0,
            cache_writes_failed=disk.cache.failed_writes if disk is not None else 0,
        )

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked from the one that made the client."""
        return os.getpid() != self._pid

    def check_open(self) -> None:
        """Raises ForkedProcessError or ClientClosedError where the client cannot be used."""
        if self.is_inherited:
            raise ForkedProcessError(self._pid)
        if self._closed:
            raise ClientClosedError("the client is closed")

    async def _lookup(self, topics: list[str]) -> NoNamesrvAnsweredError | None:
        """Asks for topics; returns why nobody answered. A topic that a name server refuses is not kept."""
        try:
            await self._lookups.lookup(topics)
        except NoNamesrvAnsweredError as error:
            return error
        except RequestRefusedError:
            for topic in topics:
                self.forget(topic)
            raise
        return None

    async def _restore(self, topic: str) -> None:
        if self._disk is None or self.cache.get(topic) is not None:
            return
        route = await self._disk.load(topic)
        if route is not None and topic in self._topics:
            self._tell(self.cache.restore(topic, route))

    def take(self, answer: Answer) -> RoutesTooLarge | None:
        """Takes an answer; returns why not, if it is not taken."""
        if answer.topic not in self._topics:
            return None
        try:
            self._tell(self.cache.offer(answer))
        except RoutesTooLarge as problem:
            self.refuse(problem)
            return problem
        return None

    def set_cut_off(self, cut_off: bool) -> None:
        """Notes whether no name server keeps the routes up to date, and reports routes that are stale since."""
        for change in self.cache.set_cut_off(cut_off):
            self.listeners.put(change)

    def refuse(self, problem: ValueError) -> None:
        """Counts and logs an answer that cannot be taken."""
        self.cache.counters.refused += 1
        _log.warning("an answer is not taken: %s", problem)

    def _tell(self, change: RouteChange | None) -> None:
        if change is None:
            return
        after = change.after
        is_answer = after.stale in {None, Stale.DISCONNECTED}
        if after.stale is Stale.HELD:
            _log.warning("topic %s lost all brokers and nobody says why: its route stays for now", change.topic)
            self._arm_hold_timer()
        elif is_answer and self._disk is not None:
            self._disk.save(change.topic, after.route)
        if is_answer and after.route is not None and after.route.groups_without_addresses:
            _log.warning("topic %s has queues on groups without addresses", change.topic)
        self.listeners.put(change)

    def _arm_hold_timer(self) -> None:
        """All holds last equally long, so a timer that is set already comes first."""
        ends = self.cache.next_hold_ends() if self._hold_timer is None else None
        if ends is not None and not self._closed:
            seconds = max(0.0, ends - time.monotonic())
            self._hold_timer = asyncio.get_running_loop().call_later(seconds, self._expire_holds)

    def _expire_holds(self) -> None:
        self._hold_timer = None
        for change in self.cache.expire_holds():
            _log.warning("topic %s: the loss of all brokers is taken, nothing else was heard in time", change.topic)
            self._tell(change)
        self._arm_hold_timer()

    async def _close_disk(self) -> None:
        if self._disk is None:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._disk.flush()
        except TimeoutError:
            _log.warning("the disk cache did not take all routes in time")
        self._disk.close()


def _log_defect(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (defect := task.exception()) is not None:
        _log.error("a part of the client has ended by a defect", exc_info=defect)


def _checked(topic: str) -> str:
    try:
        return check_topic(topic)
    except ValueError as error:
        raise BadTopicNameError(f"the topic's name {error}") from error


def _not_found(known: KnownRoute) -> TopicNotFoundError:
    return TopicNotFoundError(known.topic, known.origin.namesrv_name if known.origin else "nobody")


# What both clients answer without asking a name server, from any thread.


class RouteReads:
    """The base of both clients: their routes, and the methods that never wait."""

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
        self._source = RouteSource(endpoints, self.settings, topics, self._rng)
        self.faults = LatencyFaults(time.monotonic, self._rng)
        """Brokers that were slow or failed. Used if ``send_latency_fault_enable`` is on; ``report`` to it."""
        self._selector = QueueSelector(self._rng, self.faults if self.settings.send_latency_fault_enable else None)

    def cached(self, topic: str) -> KnownRoute | None:
        """The known route of a topic, without asking anybody; None if nothing is known."""
        return self._source.cache.get(topic)

    def find_broker_address_in_publish(self, broker_name: str, cluster_name: str | None = None) -> str | None:
        """Address of a group's master, by the kept routes; None if there is none."""
        return self._source.cache.brokers.find_in_publish(broker_name, cluster_name)

    def find_broker_address_in_subscribe(
        self, broker_name: str, broker_id: int, cluster_name: str | None = None, *, only_this_broker: bool = False
    ) -> FoundBroker | None:
        """A group's broker to pull from, by the kept routes; see ``BrokerAddrTable.find_in_subscribe``."""
        return self._source.cache.brokers.find_in_subscribe(
            broker_name, broker_id, cluster_name, only_this_broker=only_this_broker
        )

    def on_change(self, callback: Callback, topics: Collection[str] | None = None) -> Callable[[], None]:
        """Calls back with each change of the kept topics, or of some of them, on a thread of the callback's own.

        While a call runs, further changes of one topic become one. Exceptions of the callback are logged.

        Returns:
            Ends it; a call that is under way continues.
        """
        return self._source.listeners.call(callback, topics).close

    def changes(self, topics: Collection[str] | None = None) -> Changes:
        """Changes of the kept topics, or of some of them, from now on.

        Iterate by ``for`` in a thread or by ``async for`` on the client's event loop. The iteration ends when it or the
        client is closed.
        """
        return self._source.listeners.changes(topics)

    def status(self) -> ClientStatus:
        """The status of the client."""
        return self._source.status()

    def _publish_info(self, topic: str, known: KnownRoute) -> PublishInfo:
        """The queues of a topic by its own route, or by that of the default topic."""
        return self._source.infos.of(topic, route_of(known), by_default=known.topic != topic)


def route_of(known: KnownRoute) -> TopicRoute:
    """The route of an answer of ``route``, which always has one."""
    assert known.route is not None, "routes without one are raised as not found"
    return known.route
