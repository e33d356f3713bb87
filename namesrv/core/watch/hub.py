"""The open watches, and which of them each change affects."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice, takewhile

from namesrv.core.changes import Change
from namesrv.core.errors import Refused, overloaded, revision_compacted
from namesrv.core.pace import Slice, Sliced, each_in_slices
from namesrv.core.state import RouteState
from namesrv.core.watch import affected
from namesrv.core.watch.affected import AffectedTopics, Removals
from namesrv.core.watch.subscription import NOTHING, Subscription, SubscriptionChange, SubscriptionIndex

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
    clock.
    """


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
            watch.pending[topic] = (earlier + removals)[-affected.MAX_REMOVALS :]

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
