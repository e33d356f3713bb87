"""What both clients answer without asking a name server, from any thread."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable

from route_client.cache import FoundBroker, KnownRoute
from route_client.changes import Callback, Changes
from route_client.queues import LatencyFaults, PublishInfo, QueueSelector
from route_client.route import TopicRoute
from route_client.settings import ClientSettings
from route_client.source import ClientStatus, RouteSource


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
