"""A route as producers and consumers use it (RocketMQ: topicRouteData2TopicPublishInfo and ...SubscribeInfo)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from groundwork.topic_names import MAX_QUEUE_NUMS
from route_client.errors import MalformedOrderConfError
from route_client.routes.route import MessageQueue, TopicRoute
from route_client.routes.static_topics import is_static, static_queues

DEFAULT_TOPIC = "TBW102"
"""The topic whose brokers take messages of topics that do not exist yet (RocketMQ: AUTO_CREATE_TOPIC_KEY_TOPIC)."""

DEFAULT_TOPIC_QUEUE_NUMS = 4
"""Queues a group at most for such a topic (RocketMQ: defaultTopicQueueNums)."""

_QUEUES = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class PublishInfo:
    """The queues that a producer may send to."""

    topic: str
    queues: tuple[MessageQueue, ...]
    ordered: bool = False
    """Whether they come from an ordered configuration: then their order is the configuration's."""
    by_default: bool = False
    """Whether the topic does not exist yet and the queues are those of the default topic's brokers."""
    outside_zone: bool = False
    """Whether a zone was asked for and has no queue of this topic, so that the queues are everybody's."""

    @property
    def usable(self) -> bool:
        """Whether there is a queue at all."""
        return bool(self.queues)


def publish_info(topic: str, route: TopicRoute, zone_name: str | None = None) -> PublishInfo:
    """The queues of a route that a producer may send to.

    With an ordered configuration these are its queues, and those of a static topic are its own (see
    ``static_topics``), whatever permissions, groups and masters the route has. Otherwise they are the writable queues
    of groups with a master, by broker name.

    Args:
        topic: Name of the topic.
        route: Its route.
        zone_name: If given, and groups of this zone have such queues, only theirs. An ordered configuration and a
            static topic are never narrowed: which queue a message goes to depends on their number.

    Raises:
        MalformedOrderConfError: The ordered configuration cannot be read.
    """
    if route.order_topic_conf:
        return PublishInfo(topic, ordered_queues(topic, route.order_topic_conf), ordered=True)
    if is_static(route):
        return PublishInfo(topic, static_queues(topic, route))
    with_master = {group.key for group in route.broker_datas if group.master_addr is not None}
    queues = tuple(
        MessageQueue(topic, data.broker_name, queue_id, data.cluster_name)
        for data in route.queue_datas
        if data.writable and data.key in with_master
        for queue_id in range(data.write_queue_nums)
    )
    chosen, outside = own_zone_first(route, queues, zone_name)
    return PublishInfo(topic, chosen, outside_zone=outside)


def default_publish_info(
    topic: str, default_route: TopicRoute, queue_nums: int = DEFAULT_TOPIC_QUEUE_NUMS, zone_name: str | None = None
) -> PublishInfo:
    """The queues for a topic that does not exist yet, from the route of the default topic."""
    narrowed = tuple(
        replace(data, read_queue_nums=number, write_queue_nums=number)
        for data in default_route.queue_datas
        for number in [min(queue_nums, data.read_queue_nums)]
    )
    route = replace(default_route, queue_datas=narrowed)
    return replace(publish_info(topic, route, zone_name), by_default=True)


def subscribe_info(topic: str, route: TopicRoute, zone_name: str | None = None) -> tuple[MessageQueue, ...]:
    """The queues that consumers read, sorted: each readable queue, whether its group has a master or not.

    Those of a static topic are its own, all of them.
    """
    if is_static(route):
        return static_queues(topic, route)
    queues = sorted(
        MessageQueue(topic, data.broker_name, queue_id, data.cluster_name)
        for data in route.queue_datas
        if data.readable
        for queue_id in range(data.read_queue_nums)
    )
    return own_zone_first(route, tuple(queues), zone_name)[0]


def own_zone_first(
    route: TopicRoute, queues: tuple[MessageQueue, ...], zone_name: str | None
) -> tuple[tuple[MessageQueue, ...], bool]:
    """The queues of groups in a zone; all of them, and True, if the zone has none."""
    if zone_name is None:
        return queues, False
    in_zone = {group.key for group in route.broker_datas if group.zone_name == zone_name}
    own = tuple(queue for queue in queues if (queue.cluster_name, queue.broker_name) in in_zone)
    return (own, False) if own else (queues, True)


def ordered_queues(topic: str, order_topic_conf: str) -> tuple[MessageQueue, ...]:
    """The queues of an ordered configuration, ``name:number;...``, in its order.

    Raises:
        MalformedOrderConfError: A piece has no name, no colon, or no number from 0 to 65,535.
    """
    queues: list[MessageQueue] = []
    pieces = order_topic_conf.split(";")
    while pieces and not pieces[-1]:  # Java's split drops empty pieces at the end
        pieces.pop()
    for piece in pieces:
        # The last colon: the example in RocketMQ's own tests is "127.0.0.1:4", and names may be addresses.
        name, colon, number = piece.rpartition(":")
        if not name or not colon or not _QUEUES.fullmatch(number) or int(number) > MAX_QUEUE_NUMS:
            raise MalformedOrderConfError(
                f"ordered configuration of topic {topic!r} has the piece {piece[:80]!r}: "
                f"write brokerName:queues with 0 to {MAX_QUEUE_NUMS} queues"
            )
        queues.extend(MessageQueue(topic, name, queue_id) for queue_id in range(int(number)))
    return tuple(queues)
