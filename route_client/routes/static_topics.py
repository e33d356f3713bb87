"""Static topics: queues that are the same wherever they are (RocketMQ: topicRouteData2EndpointsForStaticTopic).

Their queues are named after no broker group, but after the scope that they are shared in, and can move between groups.
"""

from __future__ import annotations

from typing import NamedTuple

from route_client.routes.route import GroupKey, MessageQueue, QueueData, StaticMapping, TopicRoute

STATIC_PREFIX = "__syslo__"
"""How broker names of static topics' queues begin (RocketMQ: LOGICAL_QUEUE_MOCK_BROKER_PREFIX); the scope follows."""

GLOBAL_SCOPE = "__global__"
"""The scope of all groups; in broker names it is ``global__`` (RocketMQ: getMockBrokerName)."""


class QueuePlace(NamedTuple):
    """Where a queue is now."""

    group: GroupKey
    """The broker group that has it: whose broker to send to, or to read from."""
    queue_id: int
    """The group's own number for it. Requests name the queue's own, and RocketMQ's broker finds this one."""


def is_static(route: TopicRoute) -> bool:
    """Whether the route is a static topic's."""
    return any(data.mapping is not None for data in route.queue_datas)


def static_queues(topic: str, route: TopicRoute) -> tuple[MessageQueue, ...]:
    """All queues of a static topic, by number, also those that no group has now; none for another topic.

    Their number is the highest that a mapping says: it does not depend on which groups have queues.
    """
    totals: dict[str, int] = {}
    for _, mapping in _mapped(route):
        totals[mapping.scope] = max(totals.get(mapping.scope, 0), mapping.total_queue_nums)
    queues = (
        MessageQueue(topic, _broker_name(scope), number) for scope, total in totals.items() for number in range(total)
    )
    return tuple(sorted(queues, key=lambda queue: (queue.queue_id, queue.broker_name)))


def place_of(route: TopicRoute, queue: MessageQueue) -> QueuePlace | None:
    """Where a queue of a route is now: for a static topic's, the group whose mapping is the newest that has it.

    Returns:
        None if it is a static topic's queue that no group has.
    """
    if not queue.broker_name.startswith(STATIC_PREFIX):
        return QueuePlace(GroupKey(queue.cluster_name, queue.broker_name), queue.queue_id)
    found: tuple[int, QueuePlace] | None = None
    for data, mapping in _mapped(route):
        own = dict(mapping.queue_ids).get(queue.queue_id) if _broker_name(mapping.scope) == queue.broker_name else None
        if own is not None and (found is None or found[0] <= mapping.epoch):
            found = mapping.epoch, QueuePlace(data.key, own)
    return None if found is None else found[1]


def _mapped(route: TopicRoute) -> list[tuple[QueueData, StaticMapping]]:
    return [(data, data.mapping) for data in route.queue_datas if data.mapping is not None]


def _broker_name(scope: str) -> str:
    return STATIC_PREFIX + (scope[2:] if scope == GLOBAL_SCOPE else scope)
