"""The journal's entries: what each change was, the names it is found by, and what a question may ask for."""

from __future__ import annotations

from typing import NamedTuple

from namesrv.core.changes import Change, LiveChange
from namesrv.core.sentences import summary, touched_brokers, touched_topics


class JournalPosition(NamedTuple):
    """A position in the journal. Later epochs sort after earlier ones, and revisions rise within an epoch."""

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


def entry_of(epoch: str, change: Change) -> JournalEntry:
    gone = [row.reason for row in change.rows if isinstance(row, LiveChange) and row.reason is not None]
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


def touched_names(change: Change, max_topics: int) -> tuple[list[str], list[str] | None]:
    """The brokers and the topics that a change is found by, each once; no topics if they are more than so many."""
    topics: dict[str, None] = {}
    for topic in touched_topics(change):
        topics[topic] = None
        if len(topics) > max_topics:
            break
    return list(dict.fromkeys(touched_brokers(change))), list(topics) if len(topics) <= max_topics else None
