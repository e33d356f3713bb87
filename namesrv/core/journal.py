"""Changes and intents as people read them: sentences, and the journal's entries with the names that find them.

A sentence says actor, action, time and reason; a summary tells a change in one short line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from itertools import chain, islice
from typing import NamedTuple

from namesrv.core.changes import (
    Cause,
    Change,
    ClusterChange,
    FilterServersChange,
    GroupChange,
    IntentChange,
    KvChange,
    LiveChange,
    QueuesChange,
    Row,
    SettingChange,
)
from namesrv.core.model import BrokerData, BrokerKey, HoldKey, Intent, IntentKind, RemovalReason, WriteRule
from namesrv.core.pace import paced
from namesrv_common.printable import counted
from namesrv_common.topic_names import application_first


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


MAX_SUMMARY_LENGTH = 1_000
"""Most characters of a summary."""

BROKERS_NAMED = 3
"""Brokers of a group that a sentence names; the others are counted."""

TOPICS_NAMED = 3
"""Topics that are named; the others are counted."""

TOPICS_READ = 50
"""Topics among which those of applications are looked for: a broker has about 15 of its own."""

SUBJECTS_LISTED = 3
"""Broker groups whose changes are listed, and changes without a group; the others are counted."""

ROWS_READ = 200
"""Rows that a summary looks at: all of any change but those of a great many brokers."""

VALUE_SHOWN = 20
"""Characters of a value that are shown, and never more than half of it: it may hold what is not for every reader."""

LEFT = {
    RemovalReason.UNREGISTERED: "unregistered",
    RemovalReason.CHANNEL_CLOSED: "lost its channel",
    RemovalReason.EXPIRED: "expired",
    RemovalReason.BROKER_DOWN: "was reported down",
    RemovalReason.REPLACED: "was replaced",
    RemovalReason.GROUP_GONE: "left with its group",
    RemovalReason.NOT_IN_REGISTRATION: "left a registration",
    RemovalReason.DELETED_BY_OPERATOR: "was removed by an operator",
    RemovalReason.LOSS_CONFIRMED: "was confirmed to be lost",
}
"""How a broker leaves."""

_QUEUES_LEFT = {
    RemovalReason.NOT_IN_REGISTRATION: ", not in its registration any more",
    RemovalReason.DELETED_BY_OPERATOR: ", deleted by an operator",
}
"""Reasons that other words of the line do not give already."""

_WRITE = {
    WriteRule.REPORTED: "",
    WriteRule.WIPED: " without write permission",
    WriteRule.ADDED: " with write permission added",
}

_WRITE_OF_GROUP = {WriteRule.REPORTED: "as reported", WriteRule.WIPED: "taken away", WriteRule.ADDED: "given"}


def held_back(hold: Intent) -> str:
    """That an operator holds a topic back."""
    assert isinstance(hold.key, HoldKey), "only topics are held"
    where = "all clusters" if hold.key.cluster_name is None else f"cluster {hold.key.cluster_name}"
    return intent_text(f"the topic is held back in {where}", hold)


def intent_text(what: str, intent: Intent) -> str:
    """The effect of an intent, and its caller, time and comment."""
    cause = Cause("", intent.caller, intent.comment)
    return f"{what}{by_caller(cause) or ' by an operator'} since {iso(intent.since_millis)}{with_comment(cause)}"


def by_caller(cause: Cause) -> str:
    """The caller, if that is known."""
    return f" by {cause.caller}" if cause.caller else ""


def with_comment(cause: Cause) -> str:
    """The caller's comment, if there is one."""
    return f" ({cause.comment})" if cause.comment else ""


def named_brokers(addrs: Mapping[int, str]) -> str:
    """The first brokers of a group by address and id."""
    named = [f"{addrs[broker_id]} (id {broker_id})" for broker_id in islice(sorted(addrs), BROKERS_NAMED)]
    more = len(addrs) - len(named)
    return " and ".join((", ".join(named), f"{more:,} more")) if more else ", ".join(named)


def iso(millis: int) -> str:
    """ISO 8601, UTC."""
    moment = datetime.fromtimestamp(millis / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def shortened(text: str, most: int) -> str:
    """A text, cut if it is longer than so many characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def summary(change: Change) -> str:
    """Describes a change in one line of at most ``MAX_SUMMARY_LENGTH`` characters."""
    groups: dict[BrokerKey, list[Row]] = {}
    others: list[Row] = []
    for row in islice(change.rows, ROWS_READ):
        broker = _broker_of(row)
        (others if broker is None else groups.setdefault(broker, [])).append(row)
    listed = list(islice(groups.items(), SUBJECTS_LISTED))
    parts = [_about_group(broker, rows) for broker, rows in listed]
    parts += [_about_row(row) for row in others[:SUBJECTS_LISTED]]
    count = sum(len(rows) for _, rows in listed) + len(others[:SUBJECTS_LISTED])
    if count < len(change.rows):
        parts.append(f"and {counted(len(change.rows) - count, 'more change')}")
    return shortened("; ".join(parts) or "nothing", MAX_SUMMARY_LENGTH)


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
    for topic in chain.from_iterable(map(_topics_of, change.rows)):
        topics[topic] = None
        if len(topics) > max_topics:
            break
    brokers = (broker.broker_name for broker in map(_broker_of, paced(change.rows)) if broker is not None)
    return list(dict.fromkeys(brokers)), list(topics) if len(topics) <= max_topics else None


def _topics_of(row: Row) -> Collection[str]:
    """The topics whose queues, hold or ordered-topic configuration a row is about."""
    match row:
        case QueuesChange():
            return row.topics
        case IntentChange():
            return (row.key.topic,) if isinstance(row.key, HoldKey) else ()
        case KvChange(ordered_topic=str() as topic):
            return (topic,)
        case _:
            return ()


def _broker_of(row: Row) -> BrokerKey | None:
    """The group that a row is about. A cluster's row is about none: that of the group itself is in the same change."""
    match row:
        case QueuesChange() | GroupChange():
            return row.key
        case FilterServersChange():
            return row.broker
        case LiveChange():
            return row.live.broker
        case IntentChange():
            return row.key if isinstance(row.key, BrokerKey) else None
        case ClusterChange() | KvChange() | SettingChange():
            return None


def _about_group(broker: BrokerKey, rows: Iterable[Row]) -> str:
    """The brokers that were added or removed, and after a colon the effect on their group."""
    brokers: list[str] = []
    group: list[str] = []
    for row in rows:
        (brokers if isinstance(row, LiveChange) else group).append(_about_row(row))
    subject = f"{broker.broker_name} of {broker.cluster_name}"
    return ": ".join(part for part in ("; ".join(brokers) or subject, "; ".join(group)) if part)


def _about_live(row: LiveChange) -> str:
    live = row.live
    name = f"{live.broker.broker_name} ({live.broker_addr}, id {live.broker_id}) of {live.broker.cluster_name}"
    if row.reason is not None:
        return f"{name} {LEFT[row.reason]}"
    return f"{name} {'is kept unconfirmed' if live.unconfirmed else 'registered'}"


def _about_row(row: Row) -> str:
    match row:
        case LiveChange():
            text = _about_live(row)
        case GroupChange():
            text = _about_group_change(row)
        case QueuesChange():
            text = _about_queues(row)
        case FilterServersChange():
            text = f"{counted(len(row.after or ()), 'filter server')} now"
        case ClusterChange():
            text = f"new cluster {row.key}" if row.after else f"cluster {row.key} gone"
        case KvChange(key=(namespace, key)):
            text = f"KV configuration: {namespace!r} {key!r} {_put(row.after)}"
        case SettingChange():
            text = f"setting {row.key} {_put(row.after)}"
        case IntentChange():
            text = f"{_about_intent(row.intent)} {'decided' if row.after else 'lifted'}"
    return text


def _about_queues(row: QueuesChange) -> str:
    topics, named = counted(len(row.topics), "topic"), _named(row.topics, row.key)
    if row.reason is None:
        return f"{topics} put{_WRITE[row.write]}{named}"
    whose = "its" if len(row.topics) == 1 else "their"
    return f"{topics} lost {whose} queues on it{_QUEUES_LEFT.get(row.reason, '')}{named}"


def _about_group_change(row: GroupChange) -> str:
    before, after = row.before, row.after
    if before is None or after is None:
        return "new group" if after else "group gone"
    differences = (
        (before.addrs != after.addrs, f"{counted(len(after.addrs), 'broker')} in the group now"),
        (before.unconfirmed != after.unconfirmed, f"{len(after.unconfirmed):,} of the group unconfirmed now"),
        (_labels(before) != _labels(after), f"labels are {', '.join(_labels(after)) or 'none'} now"),
        (before.write != after.write, f"write permission {_WRITE_OF_GROUP[after.write]} now"),
        (before.zone_name != after.zone_name, f"zone is {after.zone_name or 'none'} now"),
        (
            before.enable_acting_master != after.enable_acting_master,
            f"acting master {'allowed' if after.enable_acting_master else 'not allowed'} now",
        ),
    )
    return "; ".join(text for differs, text in differences if differs)


def _labels(group: BrokerData) -> list[str]:
    return [f"{key}={value} (id {member.broker_id})" for member in group.members for key, value in member.labels]


def _about_intent(intent: Intent) -> str:
    match intent.kind:
        case IntentKind.WIPE_WRITE_PERM:
            return "drain"
        case IntentKind.ADD_WRITE_PERM:
            return "grant of write permission"
        case IntentKind.TOPIC_HOLD:
            assert isinstance(intent.key, HoldKey), "only topics are held"
            return f"hold of topic {intent.key.topic} in {intent.key.cluster_name or 'all clusters'}"


def _named(topics: Collection[str], broker: BrokerKey) -> str:
    names = ", ".join(application_first(islice(topics, TOPICS_READ), broker)[:TOPICS_NAMED])
    more = len(topics) - TOPICS_NAMED
    return f" ({names}, and {more:,} more)" if more > 0 else f" ({names})"


def _put(value: str | None) -> str:
    """That a value was removed or put, with its beginning on one line, and how long it is."""
    if value is None:
        return "removed"
    beginning = value[: min(VALUE_SHOWN, len(value) // 2)]
    return f"put: {beginning!r}... ({counted(len(value), 'character')})"
