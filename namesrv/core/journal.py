"""The journal's entries: what each change was, what it touched, and which of them a question is about.

The change log holds the latest changes of this epoch; a database may hold entries of them and of those before.
"""

from __future__ import annotations

from typing import NamedTuple

from namesrv.core.changes import Change, LiveRemoved
from namesrv.core.journal_text import (
    summary,
    touched_brokers,
    touched_topics,
    touches_broker,
    touches_topic,
)
from namesrv.core.pace import breathe


class JournalPosition(NamedTuple):
    """A place in the journal. Later epochs sort after earlier ones, and revisions rise within an epoch."""

    epoch: str
    revision: int


class JournalEntry(NamedTuple):
    """One applied change, as people read it."""

    epoch: str
    revision: int
    applied_at_millis: int
    """By the wall clock, milliseconds since the Unix epoch."""
    caller: str = ""
    cause: str = ""
    comment: str = ""
    summary: str = ""
    removed_broker_count: int = 0
    removal_reason: int = 0
    """Of the first broker that left, a number of the wire's RemovalReason; 0 if none did."""

    @property
    def position(self) -> JournalPosition:
        return JournalPosition(self.epoch, self.revision)


class JournalQuery(NamedTuple):
    """Which entries are wanted: the newest ones that pass all filters."""

    limit: int
    before: JournalPosition | None = None
    """Only entries before this position."""
    after: JournalPosition | None = None
    """Only entries after this position."""
    topic: str | None = None
    broker_name: str | None = None
    from_millis: int | None = None
    """Not before, milliseconds since the Unix epoch."""
    to_millis: int | None = None
    """Before, milliseconds since the Unix epoch."""


class TouchedNames(NamedTuple):
    """The names that a change is found by."""

    brokers: list[str]
    topics: list[str] | None
    """None: more than were asked for."""


def entry_of(epoch: str, change: Change) -> JournalEntry:
    gone = [row.reason for row in change.rows if isinstance(row, LiveRemoved)]
    return JournalEntry(
        epoch,
        change.revision,
        change.applied_at_millis,
        change.cause.caller,
        change.cause.call,
        change.cause.comment,
        summary(change),
        len(gone),
        gone[0].value if gone else 0,
    )


def touched_names(change: Change, max_topics: int) -> TouchedNames:
    """The names that a change is found by, each once."""
    topics: dict[str, None] = {}
    for topic in touched_topics(change):
        topics[topic] = None
        if len(topics) > max_topics:
            break
    return TouchedNames(
        list(dict.fromkeys(touched_brokers(change))), list(topics) if len(topics) <= max_topics else None
    )


def entries_in_memory(changes: list[Change], epoch: str, query: JournalQuery) -> list[JournalEntry]:
    """The newest entries of a change log that a query asks for. Takes breaths: for a thread.

    Looks also at changes after one that is too old: clocks step back.

    Args:
        changes: What the change log holds, newest first.
        epoch: That of these changes.
    """
    entries: list[JournalEntry] = []
    for change in _between(changes, epoch, query):
        breathe()
        if _matches(change, query):
            entries.append(entry_of(epoch, change))
            if len(entries) == query.limit:
                break
    return entries


def _between(changes: list[Change], epoch: str, query: JournalQuery) -> list[Change]:
    """The changes between the positions of a query."""
    if not changes:
        return changes
    newest = changes[0].revision  # revisions have no gaps
    start = 0 if query.before is None else max(0, newest + 1 - _revision_in(epoch, query.before, newest + 1))
    end = len(changes) if query.after is None else max(0, newest - _revision_in(epoch, query.after, newest))
    return changes[start:end]


def _revision_in(epoch: str, position: JournalPosition, last: int) -> int:
    """The revision of an epoch that a position stands for: 0 for earlier epochs, the last one for later epochs."""
    if position.epoch == epoch:
        return position.revision
    return 0 if position.epoch < epoch else last


def _matches(change: Change, query: JournalQuery) -> bool:
    """Whether a change passes all filters."""
    at = change.applied_at_millis
    return (
        (query.from_millis is None or query.from_millis <= at)
        and (query.to_millis is None or at < query.to_millis)
        and (query.topic is None or touches_topic(change, query.topic))
        and (query.broker_name is None or touches_broker(change, query.broker_name))
    )
