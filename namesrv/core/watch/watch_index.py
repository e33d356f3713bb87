"""The open watches, and which of them a change concerns.

A watch holds the names that it asked for, and which of these topics changed since its last message. A message has their
current routes. So a slow reader skips states in between, and bursts are merged: however many changes came meanwhile, a
topic is sent once. Each change is read once, with the help of an index, and not once for each watch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from namesrv.core.errors import CallRefused, Overloaded, RevisionCompacted
from namesrv.core.records.changes import Change
from namesrv.core.routes.route_info_manager import RouteInfoManager
from namesrv.core.slices import Sliced
from namesrv.core.watch.affected_topics import AffectedTopics
from namesrv.core.watch.subscriptions import Subscription, SubscriptionIndex
from namesrv.core.watch.waiting_topics import Gone, WaitingTopics

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
    failure: CallRefused | None = None
    """Why it must end."""
    behind_since: float | None = None
    """When the oldest change was published for which it was woken and which it has not been sent, by the monotonic
    clock.
    """


@dataclass(slots=True, eq=False)
class RouteWatch(Follower):
    """A reader of some topics' routes."""

    subscription: Subscription = field(kw_only=True)
    waiting: WaitingTopics = field(default_factory=WaitingTopics)
    """Topics to be sent."""
    unsaid: set[str] = field(default_factory=set)
    """Topics that are not known here, and of which nothing is said before the name server is warm."""
    is_filling: bool = True
    """Whether its first routes are not complete yet."""
    bookmark_due: bool = True
    """Whether it is to be sent a bookmark though nothing is to be said: first of all, to show that the watch stands;
    after a message that left something over; and where the revision has moved on without it."""


class WatchIndex:
    """All watches and followers of one name server, which is told of every change."""

    def __init__(
        self,
        manager: RouteInfoManager,
        *,
        is_warm: bool,
        max_waiting: int,
        is_copy: bool = False,
    ) -> None:
        """Starts without watches.

        Args:
            manager: Whose routes they watch.
            is_warm: Whether what is not in the tables does not exist, from the beginning.
            max_waiting: Most changed topics that wait to be sent, of all watches together.
            is_copy: Whether the manager is one of several copies. A watch that resumes here may have been at another
                copy, which was not warm yet when this one was.
        """
        self._manager = manager
        self._max_waiting = max_waiting
        self._touches = AffectedTopics(manager)
        self._index: SubscriptionIndex[RouteWatch] = SubscriptionIndex()
        self._watches: dict[RouteWatch, None] = {}
        self._followers: dict[Follower, None] = {}
        self._to_wake: dict[Follower, None] = {}
        self._is_copy = is_copy
        self._unsaid_until = -1 if is_warm and not is_copy else None
        """Revision at which all watches had been told what is absent; None: that is still to come, or cannot be known.
        """
        self.revision = manager.revision
        """Changes up to this one have been read."""
        self.waiting_count = 0
        """Topics that wait to be sent, of all watches together."""
        self.is_retired = False
        """Whether nobody reads changes any more: names need not leave the index, which goes as a whole."""

    @property
    def is_settled(self) -> bool:
        """Whether all changes have been read."""
        return self.revision == self._manager.revision

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
        for count, topic in enumerate(watch.subscription.topics, 1):
            self._mark(watch, topic, ())
            if count % MARK_SLICE == 0:
                yield
        for prefix in watch.subscription.prefixes:
            yield from self._fill_prefix(watch, prefix)
        watch.is_filling = False

    def _fill_prefix(self, watch: RouteWatch, prefix: str) -> Sliced[None]:
        after, first = prefix, self._manager.tables.topic_queue_table.get(prefix)
        if first is not None:  # a list has what comes after a name
            self._mark(watch, prefix, ())
        while names := (yield from self._manager.topic_lists.all_after(after, MARK_SLICE)):
            for name in names:
                if not name.startswith(prefix):
                    return
                self._mark(watch, name, ())
            after = names[-1]
            yield

    def catch_up(self, watch: RouteWatch, after_revision: int) -> Sliced[None]:
        """Has a watch begin with what changed after a revision. All changes must have been read.

        Raises:
            RevisionCompacted: The change log does not reach back to it.
        """
        log, target = self._manager.change_log, self.revision
        log.check_reaches(after_revision)
        watch.revision = after_revision
        change = log.after(after_revision)
        count, touches = 0, AffectedTopics(self._manager)
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
            if topic not in self._manager.tables.topic_queue_table:
                self._mark(watch, topic, ())
            if count % MARK_SLICE == 0:
                yield

    def close(self, watch: RouteWatch, on_left: Callable[[], None] = lambda: None) -> None:
        """Forgets a watch. Its names leave the index in slices; ``on_left`` is called when they have left."""
        self._watches.pop(watch, None)
        self._to_wake.pop(watch, None)
        if self.is_retired:
            on_left()
            return
        self._drop_waiting(watch)
        self._manager.leftovers.add(self._leave(watch, on_left))

    def _leave(self, watch: RouteWatch, on_left: Callable[[], None]) -> Sliced[None]:
        yield from self._index.remove(watch, watch.subscription)
        on_left()

    def _drop_waiting(self, watch: RouteWatch) -> None:
        waiting, watch.waiting = watch.waiting, WaitingTopics()
        self.waiting_count -= len(waiting)
        self._manager.leftovers.add(waiting.emptied())

    def follow(self, follower: Follower) -> None:
        """Has somebody woken at every change from now on."""
        self._followers[follower] = None

    def unfollow(self, follower: Follower) -> None:
        """Forgets a follower."""
        self._followers.pop(follower, None)
        self._to_wake.pop(follower, None)

    # Changes

    def settle(self) -> Sliced[None]:
        """Reads all changes up to the current revision. Two of these must not be under way at once."""
        log, before = self._manager.change_log, self.revision
        while not self.is_settled:
            if not self._watches:
                self.revision = self._manager.revision
            elif self.revision < log.compacted_revision:
                self._lose_count()
            else:
                change = log.after(self.revision)
                assert change is not None, "there are later ones"
                yield from self._pass_over(change)
                self.revision = change.revision
                yield
        self._touches.caught_up()
        if self.revision != before:
            self._to_wake.update(self._followers)

    def _pass_over(self, change: Change) -> Sliced[None]:
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
        log, last = self._manager.change_log, self._manager.revision
        for watch in self._watches:
            watch.failure = RevisionCompacted(watch.revision, log.compacted_revision, last)
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
        """Whether so many more topics may wait for a watch. If too many wait in all, a watch with many of them ends."""
        if self.waiting_count + count > self._max_waiting and len(watch.waiting) + count >= _MANY:
            self._drop_waiting(watch)
            watch.failure = Overloaded(f"{self._max_waiting} changed topics wait to be sent to watches already")
            self._to_wake[watch] = None
        return watch.failure is None

    def say_what_is_absent(self) -> Sliced[None]:
        """The name server is warm: from now on what is not there is said to be absent."""
        for watch in tuple(self._watches):
            if watch.unsaid:
                yield from self._mark_unknown(watch, watch.unsaid)
                if watch in self._watches:
                    self._to_wake[watch] = None
        # Not before: a bookmark that was sent meanwhile may be later than the beginning, and lack what is absent.
        if not self._is_copy:
            self._unsaid_until = self._manager.revision

    def make_bookmarks_due(self, part: int, parts: int) -> Sliced[None]:
        """Makes a bookmark due for each watch of one part that has been sent none at the current revision."""
        for count, watch in enumerate(tuple(self._watches)):
            if count % parts == part and watch.revision < self.revision:
                watch.bookmark_due = True
                self._to_wake[watch] = None
            if count % MARK_SLICE == MARK_SLICE - 1:
                yield

    def take_to_wake(self) -> list[Follower]:
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
