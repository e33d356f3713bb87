"""The open watches, what they ask for, and which of them each change affects."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Generic, NamedTuple, TypeVar

from namesrv_api.v1 import route_service_pb2

from namesrv.core.changes import (
    Change,
    FilterServersChange,
    GroupChange,
    KvChange,
    LiveChange,
    QueuesChange,
    SettingChange,
)
from namesrv.core.errors import Refused, overloaded, revision_compacted
from namesrv.core.model import ORDER_TOPIC_CONFIG, BrokerKey, Member, RemovalReason
from namesrv.core.pace import Slice, Sliced, each_in_slices
from namesrv.core.state import RouteState
from namesrv.core.tables import broker_removal, frame

# Subscriptions of watches, and the index that finds the watches of a topic.

WatchT = TypeVar("WatchT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics that one watch asks for."""

    topics: frozenset[str]
    """Topics by name, whether they exist or not."""
    prefixes: tuple[str, ...] = ()
    """Prefixes of names; the empty prefix matches all topics."""
    zone_name: str | None = None
    """Zone that the routes are for. None: all zones."""

    @property
    def name_count(self) -> int:
        """Number of names and prefixes, each an entry of the index."""
        return len(self.topics) + len(self.prefixes)

    def without(self, other: Subscription) -> Subscription:
        """Returns the names and prefixes that the other subscription lacks."""
        prefixes = tuple(prefix for prefix in self.prefixes if prefix not in other.prefixes)
        return Subscription(self.topics - other.topics, prefixes, self.zone_name)

    def has(self, topic: str) -> bool:
        """Reports whether the subscription covers a topic."""
        return topic in self.topics or topic.startswith(self.prefixes)

    def candidates(self, topics: Collection[str]) -> tuple[str, ...]:
        """Returns all names that can be both in the given topics and in this subscription, from the shorter side."""
        return tuple(topics if self.prefixes or len(self.topics) > len(topics) else self.topics)


NOTHING = Subscription(frozenset())
"""Covers no topic."""


class SubscriptionChange(NamedTuple):
    """A change of the topics that one watch asks for."""

    after: Subscription
    added: Subscription
    removed: Subscription

    @classmethod
    def between(cls, before: Subscription, after: Subscription) -> SubscriptionChange:
        return cls(after, after.without(before), before.without(after))


class SubscriptionIndex(Generic[WatchT]):
    """The watches of each topic name and of each prefix. The hub owns it.

    Both tables are plain dictionaries. Growing one takes the event loop some 10 ms at 350,000 names, and 20 ms at
    700,000.
    """

    def __init__(self) -> None:
        self._by_topic: dict[str, dict[WatchT, None]] = {}
        self._by_prefix: dict[str, dict[WatchT, None]] = {}
        self._prefix_lengths = Counter[int]()
        """Number of prefixes by length: a topic has at most one prefix of each length."""

    def __len__(self) -> int:
        """Number of different names and prefixes."""
        return len(self._by_topic) + len(self._by_prefix)

    def add(self, watch: WatchT, subscription: Subscription) -> Sliced[None]:
        """Adds a watch. Before the last slice, ``watches_of`` finds it for some of its topics only."""
        for prefix in subscription.prefixes:
            self._prefix_lengths[len(prefix)] += prefix not in self._by_prefix
            _add(self._by_prefix, prefix, watch)
        yield from each_in_slices(subscription.topics, lambda topic: _add(self._by_topic, topic, watch))

    def remove(self, watch: WatchT, subscription: Subscription) -> Sliced[None]:
        """Removes a watch, also one that was added in part."""
        for prefix in subscription.prefixes:
            if _remove(self._by_prefix, prefix, watch):
                self._prefix_lengths[len(prefix)] -= 1
        yield from each_in_slices(subscription.topics, lambda topic: _remove(self._by_topic, topic, watch))

    def candidates(self, topics: Collection[str]) -> tuple[str, ...]:
        """Returns all names that can be both in the given topics and in the index, from the shorter side."""
        return tuple(topics if self._by_prefix or len(self._by_topic) > len(topics) else self._by_topic)

    def watches_of(self, topic: str) -> Collection[WatchT]:
        """Returns the watches of a topic, each once, in a collection that stays as it is."""
        watches = self._by_topic.get(topic, {})
        for length, count in self._prefix_lengths.items():
            if count and length <= len(topic) and (found := self._by_prefix.get(topic[:length])):
                watches = watches | found
        return tuple(watches)


def _add(table: dict[str, dict[WatchT, None]], name: str, watch: WatchT) -> None:
    table.setdefault(name, {})[watch] = None


def _remove(table: dict[str, dict[WatchT, None]], name: str, watch: WatchT) -> bool:
    """Removes a watch from a name; returns whether it was the last one of the name."""
    watches = table.get(name, {})
    watches.pop(watch, None)
    return not watches and table.pop(name, None) is not None


# The topics whose routes a change affects, and the brokers that left these routes.
#
# Rows name groups; a route also changes with the addresses, the permission and the filter servers of its groups, and
# with the ordered-topic configuration. A topic may be named although its route is the same as before; a topic whose
# route changed is always named.

ORDER_MESSAGE_ENABLE = "orderMessageEnable"
"""The setting that has routes carry the ordered-topic configuration, by its name in the change log."""

MAX_REMOVALS = 1_000
"""Most removals that are kept for one topic, the latest: it bounds the memory that a slow client takes."""

_REMOVALS_FIELD = route_service_pb2.TopicRouteChange.REMOVALS_FIELD_NUMBER


class Removal(NamedTuple):
    """A broker that left routes, or a group that lost its queues of topics."""

    broker: BrokerKey
    broker_addr: str
    """Empty: the group lost its queues of the topic, whatever brokers it has."""
    fragment: bytes
    """A BrokerRemoval, framed as the field removals of a TopicRouteChange."""


Removals = tuple[Removal, ...]

Affected = tuple[Collection[str], Removals]
"""Topics that a change affects in the same way, with quick membership tests, and what left all of their routes."""


class AffectedTopics:
    """Finds what each change affects, one change after the other.

    Where a group changes, these are the topics that it has now. Topics that it gained or lost in between are named by
    the changes that did that. So members that left a group are remembered for topics that leave the group later.
    """

    def __init__(self, state: RouteState) -> None:
        self._state = state
        self._earlier_removals: dict[BrokerKey, Removals] = {}

    def forget_removals(self) -> None:
        """Callers must have read all changes: then groups still have the topics that they had."""
        self._earlier_removals = {}

    def of(self, change: Change) -> Iterator[Affected]:
        removals = _removals_by_group(change)
        of_group = self._state.index.topics_by_broker
        for row in change.rows:
            match row:
                case QueuesChange(key=broker, reason=RemovalReason() as reason):
                    left = self._earlier_removals.get(broker, ()) + removals.get(broker, ())
                    if reason is not RemovalReason.GROUP_GONE:
                        left += (_removal(broker, None, reason),)
                    yield row.topics, left
                case QueuesChange():
                    yield row.topics, ()
                case GroupChange() if row.before is not None and row.after is not None:
                    yield of_group.get(row.key, ()), removals.get(row.key, ())
                case FilterServersChange():
                    yield of_group.get(row.broker, ()), ()
                case KvChange(ordered_topic=str() as topic):
                    yield (topic,), ()
                case SettingChange() if row.key == ORDER_MESSAGE_ENABLE:
                    yield self._state.kv_config.entries(ORDER_TOPIC_CONFIG), ()
                case _:
                    pass  # a topic whose route it changes has a row of its own
        for group, brokers in removals.items():
            self._earlier_removals[group] = (self._earlier_removals.get(group, ()) + brokers)[-MAX_REMOVALS:]


def _removals_by_group(change: Change) -> Mapping[BrokerKey, Removals]:
    """The brokers that left each group. One that is in it under another id has not left."""
    reasons = {row.key: row.reason for row in change.rows if isinstance(row, LiveChange)}
    removals: dict[BrokerKey, Removals] = {}
    for row in change.rows:
        if not isinstance(row, GroupChange) or row.before is None:
            continue
        kept = set(row.after.addrs.values()) if row.after else ()
        if left := [member for member in row.before.members if member.broker_addr not in kept]:
            # Without a removal reason its address is in another group now, or another broker has its id.
            other = row.reason or RemovalReason.REPLACED
            removals[row.key] = tuple(
                _removal(row.key, member, reasons.get(row.before.live_key(member)) or other) for member in left
            )
    return removals


def _removal(broker: BrokerKey, member: Member | None, reason: RemovalReason) -> Removal:
    broker_id, broker_addr = member[:2] if member else (None, "")
    removal = broker_removal(broker, broker_id, broker_addr, reason)
    return Removal(broker, broker_addr, frame(_REMOVALS_FIELD, removal.SerializeToString()))


# The watches, and which of them each change affects.

WIDE_TOPICS = 1_000
"""A watch with fewer pending topics stays open when too many are pending in all, unless they are twice too many."""

ITEMS_OF_A_CHANGE = 20
"""Reading a change costs as much as looking up so many topics."""


@dataclass(slots=True, eq=False)
class ChangeReader:
    """A reader of every change, or of some. It keeps a revision and no change, so unread changes can be dropped."""

    wake: Callable[[], None]
    """Called when there is something to read."""
    revision: int = field(default=-1, kw_only=True)
    """The position up to which it has been sent everything."""
    failure: Refused | None = field(default=None, kw_only=True)
    """Why it must end."""
    behind_since: float | None = field(default=None, kw_only=True)
    """When the oldest change was published for which it was woken and which it has not been sent, by the monotonic
    clock."""


@dataclass(slots=True, eq=False)
class RouteWatch(ChangeReader):
    """A reader of some topics' routes.

    It is in the first of these states whose condition holds:

    - failed: it has a ``failure``, and must end.
    - filling: ``is_filling``, and no message is made, because the first routes of some topics are not complete yet. A
      watch begins so, and is so again while it resubscribes.
    - pending: topics or a bookmark are to be sent.
    - synced: it has been sent everything up to ``revision``, and nothing that it covers has changed since.
    """

    subscription: Subscription
    """What it asks for now."""
    unsubscribing: Subscription = NOTHING
    """Removed topics and prefixes that are still in the index."""
    request_count: int = 1
    """Requests of the stream that the subscription has been made of."""
    pending: dict[str, Removals] = field(default_factory=dict)
    """Topics to be sent, with the brokers that left their routes since the last message.

    Growing the dictionary takes the event loop some 15 ms at 350,000 topics, and 35 ms at 700,000. Dropping it takes
    8 and 11 ms.
    """
    is_filling: bool = True
    bookmark_due: bool = True
    """Whether a bookmark is to be sent even without changes.

    It is due at first, to show that the watch is open, after each request, and after a message that left something
    over. From time to time it is due if the revision has moved on.
    """

    @property
    def name_count(self) -> int:
        """Number of names and prefixes that may be in the index."""
        return self.subscription.name_count + self.unsubscribing.name_count


class WatchHub:
    """All watches and followers of one name server. It reads every change."""

    def __init__(self, state: RouteState, *, max_pending: int) -> None:
        """Starts without watches.

        Args:
            state: The routes that are watched.
            max_pending: Most pending topics of all watches together.
        """
        self._state = state
        self._max_pending = max_pending
        self._affected = AffectedTopics(state)
        self._index = SubscriptionIndex[RouteWatch]()
        self._watches: dict[RouteWatch, None] = {}
        self._followers: dict[ChangeReader, None] = {}
        self._to_wake: dict[ChangeReader, None] = {}
        self.revision = state.revision
        """Changes up to this one have been read."""
        self.pending_count = 0
        """Pending topics of all watches together."""

    @property
    def is_current(self) -> bool:
        """Whether all changes have been read."""
        return self.revision == self._state.revision

    @property
    def name_count(self) -> int:
        """Number of different names and prefixes that are watched."""
        return len(self._index)

    # Opening and closing

    def join(self, watch: RouteWatch) -> Sliced[None]:
        """Has changes from now on affect a watch. No message is made for it before ``fill`` or ``catch_up`` is done.

        Callers must read all changes before, or the watch gets earlier ones, too; and afterwards, or it may miss one.
        """
        self._watches[watch] = None
        yield from self._index.add(watch, watch.subscription)

    def fill(self, watch: RouteWatch) -> Sliced[None]:
        """Makes the current routes of all topics of a watch pending."""
        yield from self._fill(watch, watch.subscription)
        watch.is_filling = False

    def begin_resubscribing(self, watch: RouteWatch, change: SubscriptionChange) -> Sliced[None]:
        """Adds topics of a watch to the index. Until ``end_resubscribing``, no message is made.

        Callers must read all changes before, or the watch is sent losses from before, too.
        """
        watch.is_filling = True
        watch.subscription, watch.unsubscribing = change.after, change.removed
        yield from self._index.add(watch, change.added)

    def end_resubscribing(self, watch: RouteWatch, change: SubscriptionChange) -> Sliced[None]:
        """Removes topics of a watch from the index, and makes the current routes of added topics pending.

        Callers must read all changes before. Otherwise a change that was being read at the beginning is missed for a
        topic that was watched by name and is now watched by a prefix.
        """
        yield from self._fill(watch, change.added)
        yield from self._index.remove(watch, watch.unsubscribing)
        watch.unsubscribing = NOTHING
        watch.request_count += 1
        watch.bookmark_due = True
        watch.is_filling = False

    def _fill(self, watch: RouteWatch, subscription: Subscription) -> Sliced[None]:
        yield from self._add_all(watch, subscription.topics)
        for prefix in subscription.prefixes:
            names = yield from self._state.topic_lists.names().in_steps()
            later_names = islice(names, bisect_left(names, prefix), None)
            yield from self._add_all(watch, takewhile(lambda name, prefix=prefix: name.startswith(prefix), later_names))  # type: ignore[misc]

    def catch_up(self, watch: RouteWatch, after_revision: int) -> Sliced[None]:
        """Makes pending the topics that changed after a revision, and absent ones. Callers must have read all changes.

        Raises:
            REVISION_COMPACTED: The change log does not reach back to it.
            REVISION_NOT_REACHED: It is still to come.
        """
        log, target, subscription = self._state.change_log, self.revision, watch.subscription
        log.check_reaches(after_revision)
        watch.revision = after_revision
        change, earlier, work = log.after(after_revision), AffectedTopics(self._state), Slice()
        while change is not None and change.revision <= target:
            for topics, removals in earlier.of(change):
                for topic in subscription.candidates(topics):
                    if topic in topics and subscription.has(topic):
                        self._add_pending(watch, topic, removals)
                    if work.is_over():
                        yield
            if work.is_over(ITEMS_OF_A_CHANGE):
                yield
            change = change.next
        yield from self._add_absent(watch)
        watch.is_filling = False

    def close(self, watch: RouteWatch) -> Sliced[None]:
        """Forgets a watch at once. The steps remove its names from the index."""
        self._watches.pop(watch, None)
        self._to_wake.pop(watch, None)
        self._drop_pending(watch)
        return self._leave(watch)

    def _leave(self, watch: RouteWatch) -> Sliced[None]:
        yield from self._index.remove(watch, watch.subscription)
        yield from self._index.remove(watch, watch.unsubscribing)

    def follow(self, follower: ChangeReader) -> None:
        """Wakes a follower at every change from now on."""
        self._followers[follower] = None

    def unfollow(self, follower: ChangeReader) -> None:
        self._followers.pop(follower, None)
        self._to_wake.pop(follower, None)

    # Changes

    def read_changes(self) -> Sliced[None]:
        """Reads all changes up to the current revision. Callers must never run two of these at once."""
        log, before = self._state.change_log, self.revision
        while not self.is_current:
            if not self._watches:
                self.revision = self._state.revision
            elif self.revision < log.compacted_revision:
                self._fail_all()
            else:
                change = log.after(self.revision)
                assert change is not None, "there are later ones"
                yield from self._read(change)
                self.revision = change.revision
                yield
        self._affected.forget_removals()
        if self.revision != before:
            self._to_wake.update(dict.fromkeys(self._followers))

    def _read(self, change: Change) -> Sliced[None]:
        work = Slice()
        for topics, removals in self._affected.of(change):
            for topic in self._index.candidates(topics):
                for watch in self._index.watches_of(topic) if topic in topics else ():
                    if watch in self._watches:  # it may have been closed in between
                        self._add_pending(watch, topic, removals)
                        self._to_wake[watch] = None
                    if work.is_over():
                        yield
                if work.is_over():
                    yield

    def _fail_all(self) -> None:
        """Ends all watches: the change log has dropped changes that have not been read."""
        log, last = self._state.change_log, self._state.revision
        for watch in self._watches:
            watch.failure = revision_compacted(watch.revision, log.compacted_revision, last)
        self._to_wake.update(dict.fromkeys(self._watches))
        self.revision = last

    def add_absent(self) -> Sliced[None]:
        """Makes all watched names pending that are not in the tables.

        Callers must wait until the name server is warm: until then, messages leave such names out.
        """
        for watch in tuple(self._watches):
            yield from self._add_absent(watch)
            if watch.pending:
                self._to_wake[watch] = None

    def _add_absent(self, watch: RouteWatch) -> Sliced[None]:
        # The watch may be closed between two slices.
        table = self._state.tables.topic_queue_table
        absent = (topic for topic in watch.subscription.topics if topic not in table and watch in self._watches)
        return self._add_all(watch, absent)

    def make_bookmarks_due(self, part: int, parts: int) -> Sliced[None]:
        """Makes a bookmark due for each watch of one part that has been sent none at the current revision."""

        def make_due(watch: RouteWatch) -> None:
            if watch.revision < self.revision:
                watch.bookmark_due = True
                self._to_wake[watch] = None

        yield from each_in_slices(tuple(self._watches)[part::parts], make_due)

    def take_to_wake(self) -> list[ChangeReader]:
        """Takes the readers that have something to read, longest waiting first."""
        to_wake, self._to_wake = list(self._to_wake), {}
        return to_wake

    def wake_later(self, watch: RouteWatch) -> None:
        """Has a watch woken when all changes have been read."""
        self._to_wake[watch] = None

    # Pending topics

    def take_pending(self, watch: RouteWatch) -> tuple[str, Removals]:
        """Takes one of the pending topics of a watch, with what left its route."""
        self.pending_count -= 1
        return watch.pending.popitem()

    def _add_all(self, watch: RouteWatch, topics: Iterable[str]) -> Sliced[None]:
        return each_in_slices(topics, lambda topic: self._add_pending(watch, topic, ()))

    def _add_pending(self, watch: RouteWatch, topic: str, removals: Removals) -> None:
        earlier = watch.pending.get(topic)
        if earlier is None and self._has_room(watch):
            watch.pending[topic] = removals
            self.pending_count += 1
        elif earlier is not None and removals:
            watch.pending[topic] = (earlier + removals)[-MAX_REMOVALS:]

    def _has_room(self, watch: RouteWatch) -> bool:
        """Reports whether a watch may have one more pending topic. If too many are pending in all, a wide watch ends.

        If twice as many are pending, any watch ends.
        """
        most = self._max_pending if len(watch.pending) + 1 >= WIDE_TOPICS else 2 * self._max_pending
        if self.pending_count + 1 > most:
            self._drop_pending(watch)
            watch.failure = overloaded(f"{self._max_pending} changed topics wait to be sent to watches already")
            self._to_wake[watch] = None
        return watch.failure is None

    def _drop_pending(self, watch: RouteWatch) -> None:
        self.pending_count -= len(watch.pending)
        watch.pending = {}
