"""The changes of this epoch that can still be read: a bounded, singly linked list, oldest dropped first.

A publisher never waits for a reader; a reader that holds a change walks on from it (the way of Consul's event buffer).
The same list is the journal of what was changed, by whom and why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from namesrv.core.errors import RevisionCompacted
from namesrv.core.records.changes import Cause, Change, Row

MAX_CHANGES = 100_000
"""Most changes that are kept: about 50 MB if each is of one broker."""

MAX_CHANGE_ROWS = 500_000
"""Most rows that all kept changes may have together, each topic of a group counted: about 40 MB."""

Listener = Callable[[Change], None]
"""Told each change right after it was published, on the same step: it must be quick and must not raise."""


class ChangeLog:
    """Appends changes, drops the oldest over the bounds, and tells listeners."""

    def __init__(self, max_changes: int = MAX_CHANGES, max_rows: int = MAX_CHANGE_ROWS) -> None:
        self._changes: deque[Change] = deque()
        self._rows = 0
        self._max_changes = max_changes
        self._max_rows = max_rows
        self._listeners: list[Listener] = []
        self.last = Change(0, 0, Cause("start"), ())
        """The latest change; before the first one, a change without rows at revision 0."""
        self.compacted_revision = 0
        """Changes after this revision can be read."""

    def __len__(self) -> int:
        return len(self._changes)

    def begin_at(self, revision: int) -> None:
        """Has the first change be the one after a revision, where the state at that came from somewhere else."""
        assert not self._changes, "it begins before the first change"
        self.last = Change(revision, 0, Cause("start"), ())
        self.compacted_revision = revision

    def append(self, applied_at_millis: int, cause: Cause, rows: tuple[Row, ...]) -> Change:
        """Adds the next revision. The newest change is always kept, whatever its size."""
        change = Change(self.last.revision + 1, applied_at_millis, cause, rows)
        self.last.next = change
        self.last = change
        self._changes.append(change)
        self._rows += change.weight
        while len(self._changes) > 1 and (len(self._changes) > self._max_changes or self._rows > self._max_rows):
            dropped = self._changes.popleft()
            self._rows -= dropped.weight
            self.compacted_revision = dropped.revision
        for listener in self._listeners:
            listener(change)
        return change

    def listen(self, listener: Listener) -> None:
        """Has a listener told of every change from now on."""
        self._listeners.append(listener)

    def check_reaches(self, revision: int) -> None:
        """Checks that the changes after a revision can be read.

        Raises:
            RevisionCompacted: They were dropped, or the revision is still to come.
        """
        if not self.compacted_revision <= revision <= self.last.revision:
            raise RevisionCompacted(revision, self.compacted_revision, self.last.revision)

    def after(self, revision: int) -> Change | None:
        """The first change after a revision; None if there is none yet.

        The revision must be one that ``check_reaches`` has nothing against.
        """
        if revision >= self.last.revision:
            return None
        first = self._changes[0].revision
        return self._changes[revision + 1 - first]

    def newest_first(self) -> list[Change]:
        """All that is kept, newest first."""
        return list(reversed(self._changes))
