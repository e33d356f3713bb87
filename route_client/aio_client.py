"""The client for asyncio."""

from __future__ import annotations

from typing import Self

from route_client.cache import KnownRoute, any_broker_of
from route_client.queues import PublishInfo, subscribe_info
from route_client.route import MessageQueue
from route_client.source import RouteReads, route_of


class AioRouteClient(RouteReads):
    """Routes by topic, kept up to date by whichever name server answers.

    Use it in an ``async with`` statement, or call ``start`` and ``close``, on one event loop. The methods of the base
    class may be called from any thread. Create the client after a fork: in a process that was forked from its own,
    asking for a route raises ForkedProcessError, and ``close`` does nothing.
    """

    async def start(self) -> None:
        """Begins to keep routes.

        If there are topics already, asks for all of them. It succeeds even if nobody answers.
        """
        await self._source.start()

    async def close(self) -> None:
        """Ends all calls, tasks and threads, and saves routes that wait for that. Does nothing in a forked process."""
        await self._source.close()

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
        return await self._source.route(topic)

    def forget(self, topic: str) -> None:
        """Keeps a topic no longer, until it is asked for again. Its file on disk stays."""
        self._source.forget(topic)

    async def publish_info(self, topic: str) -> PublishInfo:
        """The queues to send to. A topic that does not exist has those of the default topic's brokers.

        Raises:
            MalformedOrderConfError: Its ordered configuration cannot be read, and there were no queues before.
            RouteClientError: As in ``route``; TopicNotFoundError only if there is no default topic either.
        """
        return self._publish_info(topic, await self._source.route_to_send(topic))

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
        return subscribe_info(topic, route_of(await self.route(topic)), self.settings.zone_name)

    async def any_broker_of(self, topic: str) -> str | None:
        """A random broker of a topic, a master if there is one, to ask for a group's consumers.

        Errors as in ``route``.
        """
        return any_broker_of(route_of(await self.route(topic)), self._rng)
