"""The queues of a topic that producers and consumers use, and the choice of the next one."""

from __future__ import annotations

import itertools
import logging
import random
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from namesrv_common.topic_names import MAX_QUEUE_NUMS
from route_client.errors import MalformedOrderConfError, NoWritableQueueError
from route_client.route import BrokerData, GroupKey, MessageQueue, QueueData, StaticMapping, TopicRoute
from route_client.settings import ClientSettings

# Brokers to avoid for a while (RocketMQ: LatencyFaultToleranceImpl and MQFaultStrategy).

LATENCY_MAX_MILLIS = (50, 100, 550, 1_000, 2_000, 3_000, 15_000)
"""From each of these latencies on ..."""

NOT_AVAILABLE_MILLIS = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
"""... a broker is left alone for this long (RocketMQ 4.9)."""

ISOLATION_LATENCY_MILLIS = 30_000
"""The latency that a failed call counts as."""

MAX_FAULT_ITEMS = 10_000
"""Most brokers that are remembered: a fleet whose broker names change must not fill memory. Over the limit, the half
whose faults end first is forgotten."""


def not_available_millis(latency_millis: float) -> int:
    """How long a broker that took so long is left alone."""
    for bound, duration in zip(reversed(LATENCY_MAX_MILLIS), reversed(NOT_AVAILABLE_MILLIS), strict=True):
        if latency_millis >= bound:
            return duration
    return 0


@dataclass(frozen=True, slots=True)
class FaultItem:
    """What is remembered about one broker."""

    name: str
    latency_millis: float
    available_from: float
    """By the clock, in seconds."""


class LatencyFaults:
    """The brokers that were slow or failed. May be used from any thread."""

    def __init__(self, clock: Callable[[], float], rng: random.Random) -> None:
        """Takes a monotonic clock, in seconds, and a source of randomness for ties between equal brokers."""
        self._clock = clock
        self._rng = rng
        self._items: dict[str, FaultItem] = {}
        self._which = itertools.count(rng.randrange(1 << 16))

    def update_fault_item(self, name: str, latency_millis: float, not_available_millis: float) -> None:
        """Remembers a broker's latency and leaves it alone for a time, in milliseconds."""
        self._items[name] = FaultItem(name, latency_millis, self._clock() + not_available_millis / 1000)
        if len(self._items) > MAX_FAULT_ITEMS:
            items = sorted(self._items.values(), key=lambda item: item.available_from)
            self._items = {item.name: item for item in items[len(items) // 2 :]}

    def report(self, name: str, latency_millis: float, *, failed: bool = False) -> None:
        """Reports the result of a call to a broker: how long it took, or that it failed."""
        # Upstream remembers the latency of the failed call, so that a broker that refuses passes for a quick one.
        counted = ISOLATION_LATENCY_MILLIS if failed else latency_millis
        self.update_fault_item(name, counted, not_available_millis(counted))

    def is_available(self, name: str) -> bool:
        """Whether calls need not avoid the broker now."""
        item = self._items.get(name)
        return item is None or self._clock() >= item.available_from

    def remove(self, name: str) -> None:
        """Forgets a broker."""
        self._items.pop(name, None)

    def pick_one_at_least(self, among: Collection[str] | None = None) -> str | None:
        """One of the better half of the remembered brokers, round robin: available first, then by latency.

        Args:
            among: Only these. Upstream picks from the brokers of all topics, and forgets the fault of the one it picked
                if the topic at hand has no queue there.

        Returns:
            None if nothing is remembered about any of them.
        """
        items = [item for item in list(self._items.values()) if among is None or item.name in among]
        if not items:
            return None
        self._rng.shuffle(items)
        now = self._clock()
        items.sort(key=lambda item: (now < item.available_from, item.latency_millis, item.available_from))
        half = len(items) // 2
        return items[next(self._which) % half].name if half else items[0].name


# Static topics: queues that are the same wherever they are (RocketMQ: topicRouteData2EndpointsForStaticTopic).
#
# Their queues are named after no broker group, but after the scope that they are shared in, and can move between
# groups.

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


def place_of(route: TopicRoute | None, queue: MessageQueue) -> QueuePlace | None:
    """Where a queue of a route is now: for a static topic's, the group whose mapping is the newest that has it.

    Returns:
        None if there is no route, or if it is a static topic's queue that no group has.
    """
    if route is None:
        return None
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


# A route as producers and consumers use it (RocketMQ: topicRouteData2TopicPublishInfo and ...SubscribeInfo).


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
    outside_labels: bool = False
    """Whether labels were asked for and no broker with them has any of the queues, so that they are all used."""


DEFAULT_TOPIC_QUEUE_NUMS = 4
"""Most queues of a group for a topic that does not exist yet (RocketMQ: defaultTopicQueueNums): the broker creates the
topic with its own number at the first message."""


def publish_info(
    topic: str,
    route: TopicRoute,
    zone_name: str | None = None,
    prefer_labels: Mapping[str, str] = {},
    *,
    by_default: bool = False,
) -> PublishInfo:
    """The queues of a route that a producer may send to.

    With an ordered configuration these are its queues, and those of a static topic are its own (see
    ``static_queues``), whatever permissions, groups and masters the route has. Otherwise they are the writable queues
    of groups with a master, by broker name.

    Args:
        topic: Name of the topic.
        route: Its route.
        zone_name: If given, and groups of this zone have such queues, only theirs. An ordered configuration and a
            static topic are never narrowed: which queue a message goes to depends on their number.
        prefer_labels: If brokers with all of these labels have such queues, of the zone if one is preferred, only
            theirs.
        by_default: Whether the topic does not exist yet, and the route is that of the default topic.

    Raises:
        MalformedOrderConfError: The ordered configuration cannot be read.
    """
    if route.order_topic_conf:
        return PublishInfo(topic, ordered_queues(topic, route.order_topic_conf), ordered=True, by_default=by_default)
    if is_static(route):
        return PublishInfo(topic, static_queues(topic, route), by_default=by_default)
    with_master = {group.key for group in route.broker_datas if group.master_addr is not None}
    queues = tuple(
        MessageQueue(topic, data.broker_name, queue_id, data.cluster_name)
        for data in route.queue_datas
        if data.writable and data.key in with_master
        for queue_id in range(
            min(DEFAULT_TOPIC_QUEUE_NUMS, data.read_queue_nums) if by_default else data.write_queue_nums
        )
    )
    of_zone, outside_zone = _preferred(route, queues, zone_name is not None, lambda one: one.zone_name == zone_name)
    labelled = bool(prefer_labels)
    chosen, outside_labels = _preferred(route, of_zone, labelled, lambda one: one.is_labelled(prefer_labels))
    return PublishInfo(topic, chosen, by_default=by_default, outside_zone=outside_zone, outside_labels=outside_labels)


def subscribe_info(topic: str, route: TopicRoute, zone_name: str | None = None) -> tuple[MessageQueue, ...]:
    """The queues that consumers read, sorted: each readable queue, whether its group has a master or not.

    Of a static topic, all of its logical queues.
    """
    if is_static(route):
        return static_queues(topic, route)
    queues = sorted(
        MessageQueue(topic, data.broker_name, queue_id, data.cluster_name)
        for data in route.queue_datas
        if data.readable
        for queue_id in range(data.read_queue_nums)
    )
    return _preferred(route, tuple(queues), zone_name is not None, lambda one: one.zone_name == zone_name)[0]


def _preferred(
    route: TopicRoute, queues: tuple[MessageQueue, ...], wanted: bool, is_preferred: Callable[[BrokerData], bool]
) -> tuple[tuple[MessageQueue, ...], bool]:
    """The queues of preferred groups, if that is wanted; all of them, and True, if there are none."""
    if not wanted:
        return queues, False
    preferred = {group.key for group in route.broker_datas if is_preferred(group)}
    own = tuple(queue for queue in queues if (queue.cluster_name, queue.broker_name) in preferred)
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


# The publish info of each topic, made once for each route. Pure; may be used from any thread.

_log = logging.getLogger(__name__)


class PublishInfoCache:
    """Remembers the publish info of the last route of each topic."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._made: dict[str, tuple[TopicRoute, PublishInfo]] = {}

    def of(self, topic: str, route: TopicRoute, *, by_default: bool = False) -> PublishInfo:
        """The queues of a topic by its own route, or by that of the default topic.

        A route whose ordered configuration cannot be read leaves the queues as they were (RocketMQ keeps the old route,
        too): a slip of an operator must not stop producers.

        Raises:
            MalformedOrderConfError: It cannot be read, and there were no queues before.
        """
        known, info = self._made.get(topic, (None, None))
        if known is route and info is not None:
            return info
        preferred = self._settings.zone_name, self._settings.prefer_labels
        try:
            info = publish_info(topic, route, *preferred, by_default=by_default)
        except MalformedOrderConfError as error:
            if info is None:
                raise
            _log.warning("the queues to send to stay as they were: %s", error)
        self._made[topic] = route, info
        return info

    def forget(self, topic: str) -> None:
        """Drops what is remembered about a topic."""
        self._made.pop(topic, None)


# The choice of the queue for the next message (RocketMQ: selectOneMessageQueue, MQFaultStrategy).


class QueueSelector:
    """Takes the queues of a topic round robin, from a random one on.

    May be used from any thread; changes no shared list.
    """

    def __init__(self, rng: random.Random, faults: LatencyFaults | None = None) -> None:
        """Takes a source of randomness, and the faults to avoid, if that is on (RocketMQ: sendLatencyFaultEnable)."""
        self._index = itertools.count(rng.randrange(1 << 16))
        self._faults = faults

    def select_one_queue(self, info: PublishInfo, last_broker_name: str | None = None) -> MessageQueue:
        """The next queue.

        Args:
            info: The topic's queues.
            last_broker_name: For another try: the broker that the last one failed at. A queue of another broker is
                taken if there is one.

        Raises:
            NoWritableQueueError: There is no queue.
        """
        if not info.queues:
            raise NoWritableQueueError(f"topic {info.topic!r} has no writable queue on a group with a master")
        if self._faults is not None:
            return self._avoid_faults(info, self._faults)
        if last_broker_name is not None:
            for _ in info.queues:
                queue = self._next(info)
                if queue.broker_name != last_broker_name:
                    return queue
        return self._next(info)

    def _next(self, info: PublishInfo) -> MessageQueue:
        return info.queues[next(self._index) % len(info.queues)]

    def _avoid_faults(self, info: PublishInfo, faults: LatencyFaults) -> MessageQueue:
        """As in RocketMQ 4.9, where the broker of the last try is not looked at: its failure made it unavailable."""
        start, number = next(self._index), len(info.queues)
        for step in range(number):
            queue = info.queues[(start + step) % number]
            if faults.is_available(queue.broker_name):
                return queue
        picked = faults.pick_one_at_least({queue.broker_name for queue in info.queues})
        # Upstream writes the picked broker into the next shared queue object, and so corrupts the list.
        of_picked = [queue for queue in info.queues if queue.broker_name == picked]
        return of_picked[start % len(of_picked)] if of_picked else self._next(info)
