"""Revisions: published changes of the tables, and the bounded log of the latest ones."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from namesrv.core.errors import Reason, Refused, revision_compacted
from namesrv.core.model import (
    ORDER_TOPIC_CONFIG,
    BrokerData,
    BrokerKey,
    BrokerLiveInfo,
    Intent,
    IntentKey,
    LiveKey,
    QueueData,
    RemovalReason,
    WriteRule,
)
from namesrv.core.pace import belongs_to_loop

# Rows of a change. The change log holds them; all others only read them.


class Cause(NamedTuple):
    """The cause of a change."""

    call: str
    """The call, such as ``RegisterBroker``, or another cause: ``expiry``, ``channel end``."""
    caller: str = ""
    """The caller's identity or address."""
    comment: str = ""
    """The caller's reason, in the caller's words."""


KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True)
class RowChange(Generic[KeyT, ValueT]):
    """A row that was added, changed or removed."""

    key: KeyT
    before: ValueT | None
    after: ValueT | None
    reason: RemovalReason | None = None
    """Why it was removed."""


@dataclass(frozen=True, slots=True)
class QueuesChange(RowChange[BrokerKey, Mapping[str, QueueData]]):
    """Of the queues of a group, by topic: queues that it got or changed are in ``after``, lost ones in ``before``.

    A group whose permission in force changes has all its queues in ``after``. They are as the broker reports them.
    """

    write: WriteRule = WriteRule.REPORTED
    """The rule for the reported permission."""

    @property
    def topics(self) -> Mapping[str, QueueData]:
        """The queues, got or lost."""
        return self.before if self.after is None else self.after  # type: ignore[return-value]  # one of both is there


class GroupChange(RowChange[BrokerKey, BrokerData]):
    """Of a broker group. The queues of one that goes are in a QueuesChange of the same change."""

    __slots__ = ()


class LiveChange(RowChange[LiveKey, BrokerLiveInfo]):
    """Of a live broker, which comes or changes with a registration."""

    __slots__ = ()

    @property
    def live(self) -> BrokerLiveInfo:
        """The broker as it is, or as it was before it left."""
        return self.after or self.before  # type: ignore[return-value]  # one of both is there


class ClusterChange(RowChange[str, frozenset[str]]):
    """Of a cluster that was added with all of its groups, or removed. Groups added later have a GroupChange only."""

    __slots__ = ()


class IntentChange(RowChange[IntentKey, Intent]):
    """Of an intent, which took effect, was lifted or expired."""

    __slots__ = ()

    @property
    def intent(self) -> Intent:
        """The intent in force, or the intent that was lifted."""
        return self.after or self.before  # type: ignore[return-value]  # one of both is there


@dataclass(frozen=True, slots=True)
class FilterServersChange(RowChange[LiveKey, tuple[str, ...]]):
    """Of the filter servers of a broker."""

    broker: BrokerKey = field(kw_only=True)
    """The broker's group."""


class KvChange(RowChange[tuple[str, str], str]):
    """Of an entry of the KV configuration, by namespace and key."""

    __slots__ = ()

    @property
    def ordered_topic(self) -> str | None:
        """The topic whose ordered-topic configuration it is, or None."""
        namespace, key = self.key
        return key if namespace == ORDER_TOPIC_CONFIG else None


class SettingChange(RowChange[str, str]):
    """Of a setting."""

    __slots__ = ()


Row = (
    QueuesChange
    | GroupChange
    | LiveChange
    | ClusterChange
    | FilterServersChange
    | KvChange
    | IntentChange
    | SettingChange
)


def _weight_of(texts: Iterable[str]) -> int:
    return sum(1 + len(text) // LENGTH_LIKE_A_ROW for text in texts)


@dataclass(slots=True, eq=False)
class Change:
    """All that one revision changes: made in the preparation of a change, and published by the change log."""

    cause: Cause
    rows: tuple[Row, ...]
    revision: int = 0
    """Its number; 0 until it is published."""
    applied_at_millis: int = 0
    """When it was published, by the wall clock, milliseconds since the Unix epoch."""
    topics: Collection[str] = field(init=False)
    """The topics whose routes change otherwise: not those that lose the queues of a group that is in ``groups``."""
    groups: frozenset[BrokerKey] = field(init=False)
    """The groups that routes show differently from now on, or no longer."""
    weight: int = field(init=False)
    """How many rows it has for the bound of the change log: topics, labels and filter servers count."""
    next: Change | None = None
    """The change after it; None as long as there is none. Readers walk along these links, each at its own pace."""

    def __post_init__(self) -> None:
        topics: list[Collection[str]] = []
        groups: list[BrokerKey] = []
        self.weight = 1
        for row in self.rows:
            match row:
                case QueuesChange():
                    self.weight += len(row.topics)
                    if row.reason is not RemovalReason.GROUP_GONE:
                        topics.append(row.topics)
                    continue
                case GroupChange():
                    groups.append(row.key)
                case FilterServersChange():
                    groups.append(row.broker)
                    self.weight += _weight_of(row.after or ())
                case LiveChange():
                    self.weight += _weight_of(key + value for key, value in row.live.labels)
                case KvChange(ordered_topic=str() as topic):
                    topics.append((topic,))
                case _:
                    pass
            self.weight += 1
        # Nearly always one collection, which the row holds anyway.
        self.topics = topics[0] if len(topics) == 1 else tuple(itertools.chain.from_iterable(topics))
        self.groups = frozenset(groups)


# The changes of this epoch that can still be read: a bounded, singly linked list, oldest dropped first.
#
# A publisher never waits for a reader. A reader that holds a change follows the list from it, as in Consul's event
# buffer. The same list is the journal of changes, callers and reasons.

MAX_CHANGES = 100_000
"""Most changes that are kept: about 50 MB if each is of one broker."""

MAX_CHANGE_ROWS = 500_000
"""Most rows that all kept changes may have together, topics, labels and filter servers counted: about 40 MB."""

LENGTH_LIKE_A_ROW = 80
"""Characters of a label or a filter server that count as one more row: a broker may send others each time."""

Listener = Callable[[Change], None]
"""Called with each change right after it was published, in the same step. It must be quick, and raises nothing."""


class ListenerFailed(Exception):
    """A listener of the change log has raised an error. Those after it have not been called."""

    def __init__(self, listener: Listener, change: Change) -> None:
        self.listener = getattr(listener, "__qualname__", repr(listener))
        super().__init__(f"{self.listener} failed at revision {change.revision} ({change.cause.call})")


class ChangeLog:
    """Appends changes, drops the oldest over the bounds, and tells listeners."""

    def __init__(self, max_changes: int = MAX_CHANGES, max_rows: int = MAX_CHANGE_ROWS) -> None:
        self._changes: deque[Change] = deque()
        self._rows = 0
        self._max_changes = max_changes
        self._max_rows = max_rows
        self._listeners: list[Listener] = []
        self.last = Change(Cause("start"), ())
        """The latest change; before the first one, a change without rows at revision 0."""
        self.compacted_revision = 0
        """Changes after this revision can be read."""

    def __len__(self) -> int:
        return len(self._changes)

    def append(self, change: Change, applied_at_millis: int) -> None:
        """Publishes a change as the next revision. The newest is always kept, however large. Raises ListenerFailed."""
        belongs_to_loop()
        change.revision, change.applied_at_millis = self.last.revision + 1, applied_at_millis
        self.last.next = change
        self.last = change
        self._changes.append(change)
        self._rows += change.weight
        while len(self._changes) > 1 and (len(self._changes) > self._max_changes or self._rows > self._max_rows):
            dropped = self._changes.popleft()
            self._rows -= dropped.weight
            self.compacted_revision = dropped.revision
        for listener in self._listeners:
            try:
                listener(change)
            except Exception as error:
                raise ListenerFailed(listener, change) from error

    def listen(self, listener: Listener, *, first: bool = False) -> None:
        """Has a listener called with each change from now on.

        Args:
            first: Whether it is called before the others. The engine's cache is, which answers without Python.
        """
        self._listeners.insert(0 if first else len(self._listeners), listener)

    def check_reaches(self, revision: int) -> None:
        """Raises REVISION_COMPACTED if later changes were dropped, REVISION_NOT_REACHED if the revision is to come."""
        if revision > self.last.revision:
            last = self.last.revision
            text = f"revision {revision} is not reached yet, the last is {last}; try again, or ask its name server"
            raise Refused(Reason.REVISION_NOT_REACHED, text, revision=revision, last_revision=last)
        if revision < self.compacted_revision:
            raise revision_compacted(revision, self.compacted_revision, self.last.revision)

    def after(self, revision: int) -> Change | None:
        """The first change after a revision; None if there is none yet.

        The revision must be one that ``check_reaches`` has nothing against.
        """
        if revision >= self.last.revision:
            return None
        first = self._changes[0].revision
        return self._changes[revision + 1 - first]

    def newest_first(self) -> list[Change]:
        return list(reversed(self._changes))
