"""The publish info of each topic, made once for each route. Pure; may be used from any thread."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from route_client.errors import MalformedOrderConfError
from route_client.routes.publish_info import PublishInfo, default_publish_info, publish_info
from route_client.routes.route import TopicRoute
from route_client.settings import ClientSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Made:
    route: TopicRoute
    info: PublishInfo


class PublishInfoCache:
    """Remembers the publish info of the last route of each topic."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._made: dict[str, _Made] = {}

    def of_route(self, topic: str, route: TopicRoute) -> PublishInfo:
        """The queues of a topic's route.

        A route whose ordered configuration cannot be read leaves the queues as they were (RocketMQ keeps the old route,
        too): a slip of an operator must not stop producers.

        Raises:
            MalformedOrderConfError: It cannot be read, and there were no queues before.
        """
        made = self._made.get(topic)
        if made is not None and made.route is route:
            return made.info
        try:
            info = publish_info(topic, route, self._settings.zone_name)
        except MalformedOrderConfError as error:
            if made is None:
                raise
            _log.warning("the queues to send to stay as they were: %s", error)
            info = made.info
        self._made[topic] = _Made(route, info)
        return info

    def of_default_topic(self, topic: str, default_route: TopicRoute) -> PublishInfo:
        """The queues for a topic that does not exist yet."""
        made = self._made.get(topic)
        if made is not None and made.route is default_route:
            return made.info
        settings = self._settings
        info = default_publish_info(topic, default_route, settings.default_topic_queue_nums, settings.zone_name)
        self._made[topic] = _Made(default_route, info)
        return info

    def forget(self, topic: str) -> None:
        """Drops what is remembered about a topic."""
        self._made.pop(topic, None)
