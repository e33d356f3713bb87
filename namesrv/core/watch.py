"""Watches: what each one has been sent, what is pending, and its next message."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from namesrv_api.v1 import route_data_pb2, route_service_pb2

from namesrv.core.changes import (
    Change,
    ClusterPut,
    ClusterRemoved,
    ConfigPut,
    FilterServersPut,
    GroupPut,
    GroupRemoved,
    IntentLifted,
    IntentPut,
    KvPut,
    LivePut,
    LiveRemoved,
    QueuesPut,
    QueuesRemoved,
)
from namesrv.core.encoding import frame, tag, varint
from namesrv.core.errors import Refused, overloaded, revision_compacted
from namesrv.core.model import ORDER_TOPIC_CONFIG, BrokerKey, LiveKey, RemovalReason
from namesrv.core.slices import Sliced, emptied
from namesrv.core.state import RouteState

# Topics whose routes a change affects, and the brokers that left them with it.
#
# Rows name groups; a route also changes with the addresses, the permission and the filter servers of its groups, and
# with the ordered-topic configuration. A topic may be named although its route is the same as before; a topic whose
# route changed is always named.

ORDER_MESSAGE_ENABLE = "orderMessageEnable"
"""The setting that has routes carry the ordered-topic configuration, by its name in the change log."""

MAX_GONE = 1_000
"""Most brokers that are named as gone from one topic, the latest: a reader must not collect them without end."""

_REMOVALS_NUMBER = route_service_pb2.TopicRouteChange.REMOVALS_FIELD_NUMBER


class GoneBroker(NamedTuple):
    """A broker that left routes, or a group that lost its queues of topics."""

    broker: BrokerKey
    broker_addr: str
    """Empty: the group lost its queues of the topic, whatever brokers it has."""
    fragment: bytes
    """A BrokerRemoval, framed as the field removals of a TopicRouteChange."""


class AffectedTopic(NamedTuple):
    """Topics that a change affects in the same way."""

    topics: Collection[str]
    """The topics, in a collection with quick membership tests."""
    gone: tuple[GoneBroker, ...] = ()
    """The departures from their routes, the same for all of them."""


class AffectedTopics:
    """Finds what each change affects, one change after the other.

    Where a group changes, these are the topics that it has now: any that came to it or left it since are named by the
    later changes that did that. So what left a group is remembered for topics that leave the group later.
    """

    def __init__(self, state: RouteState) -> None:
        self._state = state
        self._gone_before: dict[BrokerKey, tuple[GoneBroker, ...]] = {}

    def caught_up(self) -> None:
        """There is no later change, so groups still have the topics that they had."""
        self._gone_before = {}

    def of(self, change: Change) -> Iterator[AffectedTopic]:
        gone = _gone(change)
        of_group = self._state.tables.topics_by_broker
        for row in change.rows:
            match row:
                case QueuesPut():
                    yield AffectedTopic(row.queues)
                case QueuesRemoved(broker=broker, reason=reason):
                    left = self._gone_before.get(broker, ()) + gone.get(broker, ())
                    if reason is not RemovalReason.GROUP_GONE:
                        left += (_gone_broker(broker, None, "", reason),)
                    yield AffectedTopic(row.topics, left)
                case GroupPut(before=before, after=after) if before is not None:
                    yield AffectedTopic(of_group.get(after.key, ()), gone.get(after.key, ()))
                case FilterServersPut():
                    yield AffectedTopic(of_group.get(row.broker, ()))
                case KvPut() | ConfigPut():
                    yield AffectedTopic(self._reordered(row))
                case (
                    GroupPut()
                    | GroupRemoved()
                    | LivePut()
                    | LiveRemoved()
                    | ClusterPut()
                    | ClusterRemoved()
                    | IntentPut()
                    | IntentLifted()
                ):
                    pass  # a topic whose route it changes has a row of its own
        for group, brokers in gone.items():
            self._gone_before[group] = (self._gone_before.get(group, ()) + brokers)[-MAX_GONE:]

    def _reordered(self, row: KvPut | ConfigPut) -> Collection[str]:
        """The topics whose routes get another ordered-topic configuration."""
        if isinstance(row, KvPut):
            return (row.key,) if row.namespace == ORDER_TOPIC_CONFIG else ()
        return self._state.kv_config.entries(ORDER_TOPIC_CONFIG) if row.key == ORDER_MESSAGE_ENABLE else ()


def _gone(change: Change) -> Mapping[BrokerKey, tuple[GoneBroker, ...]]:
    """The brokers that left each group. One that is in it under another id has not left."""
    reasons = {row.live.key: row.reason for row in change.rows if isinstance(row, LiveRemoved)}
    gone: dict[BrokerKey, tuple[GoneBroker, ...]] = {}
    for row in change.rows:
        match row:
            case GroupRemoved(before=before, reason=reason):
                left = before.addrs
            case GroupPut(before=before, after=after) if before is not None:
                # Without a removal reason its address is in another group now, or another broker has its place.
                reason, kept = RemovalReason.REPLACED, set(after.addrs.values())
                left = {broker_id: addr for broker_id, addr in before.addrs.items() if addr not in kept}
            case _:
                continue
        key = before.key
        if left:
            gone[key] = tuple(
                _gone_broker(key, broker_id, addr, reasons.get(LiveKey(key.cluster_name, addr), reason))
                for broker_id, addr in left.items()
            )
    return gone


def _gone_broker(broker: BrokerKey, broker_id: int | None, broker_addr: str, reason: RemovalReason) -> GoneBroker:
    removal = route_service_pb2.BrokerRemoval(
        cluster_name=broker.cluster_name,
        broker_name=broker.broker_name,
        broker_id=broker_id,
        broker_addr=broker_addr,
        reason=route_data_pb2.RemovalReason.Name(reason.value),
    )
    return GoneBroker(broker, broker_addr, frame(_REMOVALS_NUMBER, removal.SerializeToString()))


# The changed topics that wait to be sent to one watch, in parts so that no step pays for all of them.

PART_TOPICS = 65_536
"""Topics of a part. A table of 700,000 takes 29 ms of one step to grow; one of so many less than three."""

Gone = tuple[GoneBroker, ...]
"""What left the route of a topic."""


class WaitingTopics:
    """Topics by name, each once, with what left their routes since they were sent last."""

    __slots__ = ("_count", "_parts")

    def __init__(self) -> None:
        self._parts: list[dict[str, Gone]] = [{}]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, topic: str) -> bool:
        return self._part_of(topic) is not None

    def _part_of(self, topic: str) -> dict[str, Gone] | None:
        for part in self._parts:
            if topic in part:
                return part
        return None

    def more_gone(self, topic: str, gone: Gone) -> bool:
        """Notes that more left the route of a topic that waits; whether it does wait."""
        part = self._part_of(topic)
        if part is not None and gone:
            part[topic] = _joined(part[topic], gone)
        return part is not None

    def add(self, topic: str, gone: Gone) -> None:
        """Adds a topic that does not wait yet."""
        self._last(1)[topic] = gone
        self._count += 1

    def add_all(self, topics: Mapping[str, Gone]) -> int:
        """Adds many topics of which some may wait already; how many did not. Some thirty times as quick."""
        fresh = topics
        for part in self._parts:
            if known := topics.keys() & part.keys():
                for topic in known:
                    if gone := topics[topic]:
                        part[topic] = _joined(part[topic], gone)
                fresh = {topic: gone for topic, gone in fresh.items() if topic not in known}
        self._last(len(fresh)).update(fresh)
        self._count += len(fresh)
        return len(fresh)

    def take(self) -> tuple[str, Gone]:
        """Takes one of the topics. There must be one."""
        if not self._parts[-1]:
            self._parts.pop()
        self._count -= 1
        return self._parts[-1].popitem()

    def emptied(self) -> Sliced[None]:
        """Drops all of them in slices. Nobody uses them any more."""
        self._count = 0
        for part in self._parts:
            yield from emptied(part)

    def _last(self, count: int) -> dict[str, Gone]:
        """The part with room for so many more."""
        if self._parts[-1] and len(self._parts[-1]) + count > PART_TOPICS:
            self._parts.append({})
        return self._parts[-1]


def _joined(before: Gone, gone: Gone) -> Gone:
    return (before + gone)[-MAX_GONE:]


# The watchers of each name, spread over parts so that no step pays for all names when their table grows.

PARTS = 256
"""A power of two. One table of 350,000 names takes 15 ms of one step to grow, and of 700,000 twice as long."""

_MASK = PARTS - 1


class WatchedNames:
    """Names, each with its watchers in the order in which they came."""

    __slots__ = ("_count", "_parts")

    def __init__(self) -> None:
        self._parts: list[dict[str, dict[RouteWatch, None]]] = [{} for _ in range(PARTS)]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, name: str) -> bool:
        return name in self._parts[hash(name) & _MASK]

    def add(self, name: str, watcher: RouteWatch) -> None:
        part = self._parts[hash(name) & _MASK]
        watchers = part.get(name)
        if watchers is None:
            part[name] = {watcher: None}
            self._count += 1
        else:
            watchers[watcher] = None

    def remove(self, name: str, watcher: RouteWatch) -> None:
        """Removes a watcher of a name, also one that was never added."""
        part = self._parts[hash(name) & _MASK]
        watchers = part.get(name)
        if watchers is None:
            return
        watchers.pop(watcher, None)
        if not watchers:
            del part[name]
            self._count -= 1

    def watchers(self, name: str) -> tuple[RouteWatch, ...]:
        return tuple(self._parts[hash(name) & _MASK].get(name, ()))

    def names(self) -> Iterator[str]:
        """All names, also while others come and go: of these it may or may not have each."""
        for part in self._parts:
            yield from tuple(part)


# Subscriptions of watchers, and an index of them, so that each change is read once for all watchers.

SUBSCRIBE_SLICE = 1_000
"""Names that are put into the index before giving way: about a millisecond."""

LOOK_SLICE = 2_000
"""Topics that are looked up in the index before giving way: about a millisecond."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics that one watcher asks for."""

    topics: frozenset[str]
    """Topics by name, whether they are there or not."""
    prefixes: tuple[str, ...] = ()
    """Prefixes of names; the empty one is of all topics."""
    zone_name: str | None = None
    """Zone that the routes are for; None: all zones."""

    @property
    def name_count(self) -> int:
        """Names and prefixes: what it takes in the index."""
        return len(self.topics) + len(self.prefixes)

    def without(self, other: Subscription) -> Subscription:
        """What it asks for and another one does not."""
        prefixes = tuple(prefix for prefix in self.prefixes if prefix not in other.prefixes)
        return Subscription(self.topics - other.topics, prefixes, self.zone_name)

    def has(self, topic: str) -> bool:
        """Whether it asks for a topic."""
        return topic in self.topics or topic.startswith(self.prefixes)

    def of_these(self, topics: Collection[str]) -> Iterator[str | None]:
        """The topics among some that it asks for. None stands for a pause."""
        by_name = not self.prefixes and len(self.topics) < len(topics)
        for count, topic in enumerate(self.topics if by_name else tuple(topics), 1):
            if topic in topics if by_name else self.has(topic):
                yield topic
            if count % LOOK_SLICE == 0:
                yield None


NOTHING = Subscription(frozenset())
"""Asks for no topic."""


class SubscriptionChange(NamedTuple):
    """A change of the topics that one watcher asks for."""

    after: Subscription
    added: Subscription
    removed: Subscription

    @classmethod
    def between(cls, before: Subscription, after: Subscription) -> SubscriptionChange:
        return cls(after, after.without(before), before.without(after))


class SubscriptionIndex:
    """An index of watchers by names of topics and by prefixes."""

    def __init__(self) -> None:
        self._by_topic = WatchedNames()
        self._by_prefix: dict[str, dict[RouteWatch, None]] = {}
        self._with_length: Counter[int] = Counter()
        """How many prefixes have each length."""
        self._lengths: tuple[int, ...] = ()
        """Lengths of the prefixes: a topic has at most one prefix of each length."""

    def add(self, watcher: RouteWatch, subscription: Subscription) -> Sliced[None]:
        """Adds a watcher. Until the steps are at their end, it is told of some of its topics only."""
        for prefix in subscription.prefixes:
            if prefix not in self._by_prefix:
                self._by_prefix[prefix] = {}
                self._count_length(prefix, 1)
            self._by_prefix[prefix][watcher] = None
        for count, topic in enumerate(subscription.topics, 1):
            self._by_topic.add(topic, watcher)
            if count % SUBSCRIBE_SLICE == 0:
                yield

    def remove(self, watcher: RouteWatch, subscription: Subscription) -> Sliced[None]:
        """Removes a watcher in steps, also one that was added in part. Until their end it is still found."""
        for prefix in subscription.prefixes:
            if _without(self._by_prefix, prefix, watcher):
                self._count_length(prefix, -1)
        for count, topic in enumerate(subscription.topics, 1):
            self._by_topic.remove(topic, watcher)
            if count % SUBSCRIBE_SLICE == 0:
                yield

    def _count_length(self, prefix: str, change: int) -> None:
        self._with_length[len(prefix)] += change
        self._lengths = tuple(length for length, count in self._with_length.items() if count)

    def named(self, topics: Collection[str]) -> Iterator[str | None]:
        """The topics among some that a watcher asks for by name. None stands for a pause."""
        watched = self._by_topic
        by_name = len(watched) < len(topics)
        for count, topic in enumerate(watched.names() if by_name else tuple(topics), 1):
            if topic in (topics if by_name else watched):
                yield topic
            if count % LOOK_SLICE == 0:
                yield None

    def begun(self, topics: Collection[str]) -> Iterator[tuple[str, str] | None]:
        """The topics among some that a watcher asks for by a prefix, each with the prefix.

        None stands for a pause. A topic comes once for each of its watched prefixes.
        """
        by_prefix = self._by_prefix
        if not by_prefix:
            return
        for count, topic in enumerate(tuple(topics), 1):
            for length in self._lengths:
                prefix = topic[:length]
                if prefix in by_prefix and len(prefix) == length:
                    yield prefix, topic
            if count % LOOK_SLICE == 0:
                yield None

    def watchers_of_topic(self, topic: str) -> tuple[RouteWatch, ...]:
        return self._by_topic.watchers(topic)

    def watchers_of_prefix(self, prefix: str) -> tuple[RouteWatch, ...]:
        return tuple(self._by_prefix.get(prefix, ()))


def _without(table: dict[str, dict[RouteWatch, None]], name: str, watcher: RouteWatch) -> bool:
    """Takes a watcher from a name. Whether that was the last one."""
    watchers = table.get(name, {})
    watchers.pop(watcher, None)
    if watchers or name not in table:
        return False
    del table[name]
    return True


# The open watches, and which of them a change concerns.
#
# A watch holds the names that it asked for, and which of these topics changed since its last message. A message has
# their current routes. So a slow reader skips states in between, and bursts are merged: however many changes came
# meanwhile, a topic is sent once. Each change is read once, with the help of an index, and not once for each watch.

MARK_SLICE = 2_000
"""Watches that are told of a changed topic before giving way: about a millisecond."""

CHANGE_SLICE = 50
"""Changes that are read for one watch before giving way: less than a millisecond, unless each has thousands of topics.
"""

TOPIC_SLICE = 5_000
"""Topics that a watch is told of at once before giving way: about a millisecond."""

_MANY = 1_000
"""A watch with fewer waiting topics is not ended when too many wait in all."""


@dataclass(slots=True, eq=False)
class Follower:
    """A reader of every change. It holds no change, so that none stays in memory for it."""

    wake: Callable[[], None]
    """Called when there is something to read."""
    revision: int
    """The position up to which it has been sent everything."""
    failure: Refused | None = None
    """Why it must end."""
    behind_since: float | None = None
    """When the oldest change was published for which it was woken and which it has not been sent, by the monotonic
    clock.
    """


@dataclass(slots=True, eq=False)
class RouteWatch:
    """A reader of some topics' routes."""

    wake: Callable[[], None]
    """Called when there is something to read."""
    revision: int
    """The position up to which it has been sent everything."""
    subscription: Subscription
    """What it asks for now."""
    leaving: Subscription = NOTHING
    """Removed topics and prefixes that are leaving the index."""
    request_count: int = 1
    """Requests of the stream that the subscription has been made of."""
    failure: Refused | None = None
    """Why it must end."""
    behind_since: float | None = None
    """When the oldest change was published for which it was woken and which it has not been sent, by the monotonic
    clock.
    """
    waiting: WaitingTopics = field(default_factory=WaitingTopics)
    """Topics to be sent."""
    unsaid: set[str] = field(default_factory=set)
    """Topics that are not known here, and of which nothing is said before the name server is warm."""
    is_filling: bool = True
    """Whether the first routes of some of its topics are not complete yet: no message is made."""
    bookmark_due: bool = True
    """Whether it is to be sent a bookmark though nothing is to be said: first of all, to show that the watch stands;
    after each of its requests; after a message that left something over; and where the revision has moved on without
    it."""

    @property
    def name_count(self) -> int:
        """Names and prefixes that it has in the index, or may have."""
        return self.subscription.name_count + self.leaving.name_count


ChangeReader = Follower | RouteWatch


class WatchIndex:
    """All watches and followers of one name server, which is told of every change."""

    def __init__(
        self,
        state: RouteState,
        *,
        is_warm: bool,
        max_waiting: int,
    ) -> None:
        """Starts without watches.

        Args:
            is_warm: Whether what is not in the tables does not exist, from the beginning.
            max_waiting: Most changed topics that wait to be sent, of all watches together.
        """
        self._state = state
        self._max_waiting = max_waiting
        self._touches = AffectedTopics(state)
        self._index = SubscriptionIndex()
        self._watches: dict[RouteWatch, None] = {}
        self._followers: dict[Follower, None] = {}
        self._to_wake: dict[ChangeReader, None] = {}
        self._unsaid_until = -1 if is_warm else None
        """Revision at which all watches had been told what is absent; None: that is still to come."""
        self.revision = state.revision
        """Changes up to this one have been read."""
        self.waiting_count = 0
        """Topics that wait to be sent, of all watches together."""

    @property
    def is_settled(self) -> bool:
        """Whether all changes have been read."""
        return self.revision == self._state.revision

    # Opening and closing

    def open(self, subscription: Subscription, wake: Callable[[], None]) -> RouteWatch:
        """Opens a watch: told nothing before ``join``, and sent nothing before ``fill`` or ``catch_up`` is done."""
        return RouteWatch(wake, -1, subscription=subscription)

    def join(self, watch: RouteWatch) -> Sliced[None]:
        """Has a watch told of changes from now on.

        ``settle`` before it, or it is told of changes from before, too; and afterwards, or one under way may be missed.
        """
        self._watches[watch] = None
        yield from self._index.add(watch, watch.subscription)

    def fill(self, watch: RouteWatch) -> Sliced[None]:
        """Has a watch begin with the current routes of its topics."""
        yield from self._fill(watch, watch.subscription)
        watch.is_filling = False

    def begin_resubscribing(self, watch: RouteWatch, change: SubscriptionChange) -> Sliced[None]:
        """Adds topics of a watch to the index. Until ``end_resubscribing``, the watch is sent nothing.

        ``settle`` before it, or the watch is sent losses from before, too.
        """
        watch.is_filling = True
        watch.subscription, watch.leaving = change.after, change.removed
        yield from self._index.add(watch, change.added)

    def end_resubscribing(self, watch: RouteWatch, change: SubscriptionChange) -> Sliced[None]:
        """Removes topics of a watch from the index; added topics begin with their current routes.

        ``settle`` before it: a change under way at the beginning would be missed for a topic that was watched by name
        and is watched by a prefix now.
        """
        yield from self._fill(watch, change.added)
        yield from self._index.remove(watch, watch.leaving)
        watch.unsaid -= watch.leaving.topics
        watch.leaving = NOTHING
        watch.request_count += 1
        watch.bookmark_due = True
        watch.is_filling = False

    def _fill(self, watch: RouteWatch, subscription: Subscription) -> Sliced[None]:
        for count, topic in enumerate(subscription.topics, 1):
            self._mark(watch, topic, ())
            if count % MARK_SLICE == 0:
                yield
        for prefix in subscription.prefixes:
            yield from self._fill_prefix(watch, prefix)

    def _fill_prefix(self, watch: RouteWatch, prefix: str) -> Sliced[None]:
        names = yield from self._state.topic_lists.names().in_steps()
        for count, name in enumerate(islice(names, bisect_left(names, prefix), None), 1):
            if not name.startswith(prefix):
                return
            self._mark(watch, name, ())
            if count % MARK_SLICE == 0:
                yield

    def catch_up(self, watch: RouteWatch, after_revision: int) -> Sliced[None]:
        """Has a watch begin with what changed after a revision. All changes must have been read.

        Raises:
            REVISION_COMPACTED: The change log does not reach back to it.
            REVISION_NOT_REACHED: It is still to come.
        """
        log, target = self._state.change_log, self.revision
        log.check_reaches(after_revision)
        watch.revision = after_revision
        change = log.after(after_revision)
        count, touches = 0, AffectedTopics(self._state)
        while change is not None and change.revision <= target:
            for touch in touches.of(change):
                for topic in watch.subscription.of_these(touch.topics):
                    if topic is None:
                        yield
                    else:
                        self._mark(watch, topic, touch.gone)
            count += 1
            if count % CHANGE_SLICE == 0:
                yield
            change = change.next
        if self._unsaid_until is None or after_revision <= self._unsaid_until:
            yield from self._mark_unknown(watch, watch.subscription.topics)
        watch.is_filling = False

    def _mark_unknown(self, watch: RouteWatch, topics: frozenset[str] | set[str]) -> Sliced[None]:
        """Has a watch told which of its topics are absent: it was not told before the name server was warm."""
        for count, topic in enumerate(tuple(topics), 1):
            if watch not in self._watches:
                return  # it was closed meanwhile
            if topic not in self._state.tables.topic_queue_table:
                self._mark(watch, topic, ())
            if count % MARK_SLICE == 0:
                yield

    def close(self, watch: RouteWatch, on_left: Callable[[], None] = lambda: None) -> None:
        """Forgets a watch. Its names leave the index in slices; ``on_left`` is called when they have left."""
        self._watches.pop(watch, None)
        self._to_wake.pop(watch, None)
        self._drop_waiting(watch)
        self._state.leftovers.add(self._leave(watch, on_left))

    def _leave(self, watch: RouteWatch, on_left: Callable[[], None]) -> Sliced[None]:
        yield from self._index.remove(watch, watch.subscription)
        yield from self._index.remove(watch, watch.leaving)
        on_left()

    def _drop_waiting(self, watch: RouteWatch) -> None:
        waiting, watch.waiting = watch.waiting, WaitingTopics()
        self.waiting_count -= len(waiting)
        self._state.leftovers.add(waiting.emptied())

    def follow(self, follower: Follower) -> None:
        """Has somebody woken at every change from now on."""
        self._followers[follower] = None

    def unfollow(self, follower: Follower) -> None:
        self._followers.pop(follower, None)
        self._to_wake.pop(follower, None)

    # Changes

    def settle(self) -> Sliced[None]:
        """Reads all changes up to the current revision. Two of these must not be under way at once."""
        log, before = self._state.change_log, self.revision
        while not self.is_settled:
            if not self._watches:
                self.revision = self._state.revision
            elif self.revision < log.compacted_revision:
                self._lose_count()
            else:
                change = log.after(self.revision)
                assert change is not None, "there are later ones"
                yield from self._index_change(change)
                self.revision = change.revision
                yield
        self._touches.caught_up()
        if self.revision != before:
            self._to_wake.update(dict.fromkeys(self._followers))

    def _index_change(self, change: Change) -> Sliced[None]:
        by_topic: dict[str, Gone] = {}
        by_prefix: dict[str, list[dict[str, Gone]]] = {}
        for touch in self._touches.of(change):
            for topic in self._index.named(touch.topics):
                if topic is None:
                    yield
                else:
                    by_topic[topic] = by_topic.get(topic, ()) + touch.gone
            for found in self._index.begun(touch.topics):
                if found is None:
                    yield
                else:
                    _note(by_prefix, *found, touch.gone)
        yield from self._mark_by_topic(by_topic)
        yield from self._mark_by_prefix(by_prefix)

    def _mark_by_topic(self, touched: Mapping[str, Gone]) -> Sliced[None]:
        count = 0
        for topic, gone in touched.items():
            for watch in self._index.watchers_of_topic(topic):
                if watch in self._watches:  # it may have been closed meanwhile
                    self._mark(watch, topic, gone)
                    self._to_wake[watch] = None
                count += 1
                if count % MARK_SLICE == 0:
                    yield

    def _mark_by_prefix(self, touched: Mapping[str, list[dict[str, Gone]]]) -> Sliced[None]:
        count = 0
        for prefix, slices in touched.items():
            for watch, topics in itertools.product(self._index.watchers_of_prefix(prefix), slices):
                if watch in self._watches:
                    self._mark_all(watch, topics)
                    self._to_wake[watch] = None
                count += 2 + len(topics)
                if count >= TOPIC_SLICE:
                    count = 0
                    yield

    def _lose_count(self) -> None:
        """Handles that the change log has dropped some of the changes since the last look."""
        log, last = self._state.change_log, self._state.revision
        for watch in self._watches:
            watch.failure = revision_compacted(watch.revision, log.compacted_revision, last)
        self._to_wake.update(dict.fromkeys(self._watches))
        self.revision = last

    def _mark(self, watch: RouteWatch, topic: str, gone: Gone) -> None:
        if not watch.waiting.more_gone(topic, gone) and self._has_room(watch, 1):
            watch.waiting.add(topic, gone)
            self.waiting_count += 1

    def _mark_all(self, watch: RouteWatch, topics: dict[str, Gone]) -> None:
        if self._has_room(watch, len(topics)):
            self.waiting_count += watch.waiting.add_all(topics)

    def _has_room(self, watch: RouteWatch, count: int) -> bool:
        """Whether so many more topics may wait for a watch. If too many wait in all, a watch with many of them ends.

        If twice as many wait, any watch ends.
        """
        most = self._max_waiting if len(watch.waiting) + count >= _MANY else 2 * self._max_waiting
        if self.waiting_count + count > most:
            self._drop_waiting(watch)
            watch.failure = overloaded(f"{self._max_waiting} changed topics wait to be sent to watches already")
            self._to_wake[watch] = None
        return watch.failure is None

    def announce_missing(self) -> Sliced[None]:
        """The name server is warm: from now on what is not there is said to be absent."""
        for watch in tuple(self._watches):
            if watch.unsaid:
                yield from self._mark_unknown(watch, watch.unsaid)
                if watch in self._watches:
                    self._to_wake[watch] = None
        # Not before: a bookmark that was sent meanwhile may be later than the beginning, and lack what is absent.
        self._unsaid_until = self._state.revision

    def make_bookmarks_due(self, part: int, parts: int) -> Sliced[None]:
        """Makes a bookmark due for each watch of one part that has been sent none at the current revision."""
        for count, watch in enumerate(tuple(self._watches)):
            if count % parts == part and watch.revision < self.revision:
                watch.bookmark_due = True
                self._to_wake[watch] = None
            if count % MARK_SLICE == MARK_SLICE - 1:
                yield

    def take_to_wake(self) -> list[ChangeReader]:
        """Watches and followers that have something to read; those that have waited longest come first."""
        to_wake, self._to_wake = list(self._to_wake), {}
        return to_wake

    def take_waiting(self, watch: RouteWatch) -> tuple[str, Gone]:
        """Takes one of the topics that wait for a watch, with what left its route."""
        self.waiting_count -= 1
        return watch.waiting.take()

    def wake_later(self, watch: RouteWatch) -> None:
        """Has a watch woken when all changes have been passed over."""
        self._to_wake[watch] = None


def _note(by_prefix: dict[str, list[dict[str, Gone]]], prefix: str, topic: str, gone: Gone) -> None:
    """Notes that a topic with this prefix was affected. A watch is told of one slice at a time."""
    slices = by_prefix.setdefault(prefix, [{}])
    if len(slices[-1]) >= TOPIC_SLICE and topic not in slices[-1]:
        slices.append({})
    topics = slices[-1]
    before = topics.get(topic)
    topics[topic] = before + gone if before else gone


# Messages of a watch: current routes of topics, joined and framed once for all watches that get the same.
#
# A message is made in one step, and only when all changes up to the current revision have been read. If it leaves
# nothing over, it has a bookmark, and all that was sent is then exactly the state at that revision.

MESSAGE_TOPICS = 500
"""Most topics in a message: making it is one step, of about a millisecond."""

MESSAGE_BYTES = 256 * 1024
"""Size from which on no further topic is put into a message."""

SHARED_BYTES = 8 * 1024 * 1024
"""Most bytes of routes and messages that are kept to be sent to the next watcher of the same topics."""

_RESPONSE = route_service_pb2.WatchTopicRoutesResponse
_CHANGE = route_service_pb2.TopicRouteChange
_CHANGES_TAG = tag(_RESPONSE.CHANGES_FIELD_NUMBER)
_TOPIC_TAG = tag(_CHANGE.TOPIC_FIELD_NUMBER)
_ROUTE_TAG = tag(_CHANGE.ROUTE_FIELD_NUMBER)
_BOOKMARK = varint(_RESPONSE.BOOKMARK_FIELD_NUMBER << 3) + varint(1) + varint(_RESPONSE.REQUEST_COUNT_FIELD_NUMBER << 3)

assert _RESPONSE.HEADER_FIELD_NUMBER == 1, "headers are framed as field 1"


class WatchMessages:
    """Makes the messages of all watches, as of the current revision."""

    def __init__(self, state: RouteState, watches: WatchIndex, is_warm: Callable[[], bool]) -> None:
        self._state = state
        self._watches = watches
        self._is_warm = is_warm
        self._revision = -1
        self._shared: dict[tuple[str, str | None], tuple[Gone, bytes]] = {}
        """By topic and zone, those of the current revision: what left the route, and the encoded change."""
        self._joined: dict[tuple[bytes, ...], bytes] = {}
        """Messages of the current revision by their parts: watches that are told the same get one and the same."""
        self._shared_bytes = 0

    def next_message(self, watch: RouteWatch) -> bytes | None:
        """What to send to a watch now; None if there is nothing, or not yet: then it will be woken.

        Raises:
            Refused: The watch must end.
        """
        if watch.failure is not None:
            raise watch.failure
        if watch.is_filling:
            return None
        if not self._watches.is_settled:
            self._watches.wake_later(watch)
            return None
        changes = self._take_changes(watch)
        if not changes and not watch.bookmark_due:
            return None
        is_all = not watch.waiting
        watch.revision = self._state.revision
        watch.bookmark_due = not is_all  # also if nothing is to be said of what is left over
        return self._message((*changes, _BOOKMARK, varint(watch.request_count)) if is_all else tuple(changes))

    def _message(self, parts: tuple[bytes, ...]) -> bytes:
        if self._revision != self._state.revision:  # a bookmark alone
            self._renew()
        joined = self._joined.get(parts)
        if joined is None:
            joined = self._joined[parts] = b"".join((self._state.header_fragment(), *parts))
            self._shared_bytes += len(joined)
        return joined

    def _renew(self) -> None:
        """Forgets what is not of the current revision, or takes too much memory."""
        if self._revision != self._state.revision or self._shared_bytes > SHARED_BYTES:
            self._revision, self._shared_bytes = self._state.revision, 0
            self._shared, self._joined = {}, {}

    def _take_changes(self, watch: RouteWatch) -> list[bytes]:
        """Takes the changes of a message from those that wait; takes all of them if there is nothing to say of any."""
        zone_name, is_warm = watch.subscription.zone_name, self._is_warm()
        changes: list[bytes] = []
        size = 0
        while watch.waiting and len(changes) < MESSAGE_TOPICS and size < MESSAGE_BYTES:
            topic, gone = self._watches.take_waiting(watch)
            if not watch.subscription.has(topic):
                watch.unsaid.discard(topic)
                continue  # it was removed while it waited
            change = self._current(topic, zone_name, gone)
            if change is None and not is_warm:
                watch.unsaid.add(topic)
                continue
            watch.unsaid.discard(topic)
            changes.append(_change(topic, None, ()) if change is None else change)
            size += len(changes[-1])
        return changes

    def _current(self, topic: str, zone_name: str | None, gone: Gone) -> bytes | None:
        """A TopicRouteChange, framed as the field changes; None if there is no route, and nothing left it."""
        self._renew()
        shared = self._shared.get((topic, zone_name))
        if shared is not None and shared[0] == gone:
            return shared[1]
        route = self._state.route(topic, zone_name)
        if route is None and not gone:
            return None
        encoded = _change(topic, route, self._really_gone(topic, gone) if gone else ())
        self._shared[topic, zone_name] = gone, encoded
        self._shared_bytes += len(encoded)
        return encoded

    def _really_gone(self, topic: str, gone: Gone) -> list[bytes]:
        """Encoded removals: the last of each broker, and only of those that are not in the route again.

        The loss of a group's queues of the topic is included also if the group has some again: they may be other
        brokers'.
        """
        tables = self._state.tables
        brokers = (queue_data.broker for queue_data in tables.queue_datas_of(topic))
        addrs = {broker: set(tables.broker_addr_table[broker].addrs.values()) for broker in brokers}
        latest = {(broker, addr): fragment for broker, addr, fragment in gone}
        return [fragment for (broker, addr), fragment in latest.items() if addr not in addrs.get(broker, ())]


def _change(topic: str, route: bytes | None, removals: Sequence[bytes]) -> bytes:
    name = topic.encode()
    parts = [_TOPIC_TAG, varint(len(name)), name]
    if route is not None:
        parts += (_ROUTE_TAG, varint(len(route)), route)
    parts += removals
    body = b"".join(parts)
    return b"".join((_CHANGES_TAG, varint(len(body)), body))
