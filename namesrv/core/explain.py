"""Explanations: why a broker group is in a route, or why it is not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from namesrv_api.v1.admin_service_pb2 import RouteExplanation

from namesrv.core.changes import Cause, Change, GroupChange, LiveChange, QueuesChange, Row
from namesrv.core.encoding import removal_reason
from namesrv.core.journal import (
    LEFT,
    JournalEntry,
    by_caller,
    held_back,
    intent_text,
    iso,
    named_brokers,
    shortened,
    with_comment,
)
from namesrv.core.model import (
    MASTER_ID,
    WRITE,
    BrokerData,
    BrokerKey,
    Doubt,
    Doubted,
    HoldKey,
    Intent,
    IntentKind,
    LiveKey,
    QueueData,
    RemovalReason,
    WriteRule,
    perm_under,
)
from namesrv.core.pace import paced
from namesrv.core.state import RouteState
from namesrv.core.tables import is_in_zone
from namesrv_common.printable import counted
from namesrv_common.topic_names import SYNC_MEMBER_TOPIC_PREFIX

# The evidence: the tables as they are now, and the past in the change log.


@dataclass(frozen=True, slots=True)
class Question:
    """The topic, and the groups and the zone that narrow the question."""

    topic: str
    broker_name: str | None = None
    """Only groups of this name."""
    cluster_name: str | None = None
    """Only groups of this cluster."""
    zone_name: str | None = None
    """The zone of the reader whose route is explained. None: a reader that names no zone."""

    def is_about(self, broker: BrokerKey) -> bool:
        return self.broker_name in (None, broker.broker_name) and self.cluster_name in (None, broker.cluster_name)


class GroupInTable(NamedTuple):
    """A group that has queues of the topic."""

    group: BrokerData
    queue_data: QueueData
    is_shown: bool
    """Whether the reader sees it; false for groups of other zones."""
    doubted: Mapping[int, Doubted]
    """Brokers by id that stay without proof that they live."""


class CurrentState:
    """The topic's state in the tables. Creating it takes one step, about as long as a lookup of the topic."""

    def __init__(self, state: RouteState, started_at_millis: int, question: Question) -> None:
        index = state.index
        topic, zone_name = question.topic, question.zone_name
        self.question = question
        self.started_at = iso(started_at_millis)
        self.shows_acting = not topic.startswith(SYNC_MEMBER_TOPIC_PREFIX)
        self.groups = state.tables.broker_addr_table
        self.intents = state.intents.intents
        self.compacted_revision = state.change_log.compacted_revision
        held = index.held_queue_table.get(topic, {})
        self.held = {broker: queue_data for broker, queue_data in held.items() if question.is_about(broker)}
        self.in_table: dict[BrokerKey, GroupInTable] = {}
        self.millis = state.clock.wall_millis()
        doubts = state.doubts
        self._topics_by_broker = index.topics_by_broker
        for queue_data in state.queue_datas_of(topic):
            broker = queue_data.broker
            if question.is_about(broker):
                group = self.groups[broker]
                is_shown = zone_name is None or is_in_zone(group, zone_name, acting=self.shows_acting)
                keys = {member.broker_id: group.live_key(member) for member in group.members}
                ends_at = state.liveness.ends_at_millis
                doubted = {number: Doubted(doubts[key], ends_at(key)) for number, key in keys.items() if key in doubts}
                self.in_table[broker] = GroupInTable(group, queue_data, is_shown, doubted)

    def hold_on(self, broker: BrokerKey) -> Intent | None:
        """What holds the topic back on a group."""
        topic = self.question.topic
        return self.intents.get(HoldKey(topic, None)) or self.intents.get(HoldKey(topic, broker.cluster_name))

    def topic_count(self, broker: BrokerKey) -> str:
        return counted(len(self._topics_by_broker.get(broker, ())), "topic")

    def acting_master(self, group: BrokerData) -> str | None:
        """The slave that readers of this route see as the master; None if there is none."""
        if not group.acting_fragment or not self.shows_acting:
            return None
        lowest = group.members[0]
        return named_brokers({lowest.broker_id: lowest.broker_addr})


@dataclass(slots=True)
class Past:
    """The newest change of each kind, from the change log, to the groups that the question is about."""

    question: Question
    queues: dict[BrokerKey, tuple[Change, QueuesChange]] = field(default_factory=dict)
    """When a group got, changed or lost its queues of the topic."""
    left: dict[BrokerKey, tuple[Change, GroupChange]] = field(default_factory=dict)
    """When a group was removed, whether it had the topic or not."""
    master_left: dict[BrokerKey, Change] = field(default_factory=dict)
    unconfirmed: dict[LiveKey, Change] = field(default_factory=dict)
    """When a broker was kept as unconfirmed."""

    def walk(self, newest_first: list[Change]) -> None:
        for change in paced(newest_first):
            for row in paced(reversed(change.rows)):
                self._note(change, row)

    def _note(self, change: Change, row: Row) -> None:
        match row:
            case QueuesChange() if self.question.topic in row.topics and self.question.is_about(row.key):
                self.queues.setdefault(row.key, (change, row))
            case GroupChange(after=None) if self.question.is_about(row.key):
                self.left.setdefault(row.key, (change, row))
            case LiveChange() if self.question.is_about(row.live.broker):
                if row.after is None and row.live.broker_id == MASTER_ID:
                    self.master_left.setdefault(row.live.broker, change)
                elif row.after is not None and row.after.unconfirmed:
                    self.unconfirmed.setdefault(row.key, change)


MAX_TEXT_LENGTH = 900
"""Most characters of an explanation: enough for the longest comment and most of a second one."""

_LEFT_BECAUSE = {
    RemovalReason.EXPIRED: ", silent for longer than its timeout,",
    RemovalReason.REPLACED: ", its address having registered under another name,",
}
"""What an explanation adds to how the last broker of a group left."""

_DOUBTED = {
    Doubt.OWN_STALL: "ended right after this name server had stalled",
    Doubt.CLOSED_HERE: "was closed by this name server",
    Doubt.HANDED_OVER: "was handed over for a restart of its agent",
}
"""How a channel ends that says nothing about its brokers."""


class Clause(NamedTuple):
    """A part of an explanation's sentence."""

    text: str
    condition: RouteExplanation.Condition | None = None
    """What it says, if that is a condition."""


def _told(
    broker: BrokerKey,
    state: RouteExplanation.State,
    clauses: Iterable[Clause],
    since_millis: int | None = None,
    reason: RemovalReason | None = None,
) -> RouteExplanation:
    """Joins clauses to one sentence, which is cut if it is too long."""
    parts = tuple(clauses)
    return RouteExplanation(
        cluster_name=broker.cluster_name,
        broker_name=broker.broker_name,
        state=state,
        conditions=[clause.condition for clause in parts if clause.condition is not None],
        explanation=shortened("; ".join(clause.text for clause in parts), MAX_TEXT_LENGTH),
        since_millis=since_millis,
        removal_reason=removal_reason(reason),
    )


def add_journal_entry(explanation: RouteExplanation, entry: JournalEntry) -> None:
    """Adds what an entry says of the group that is older than what is in memory."""
    both = f"{explanation.explanation}; before that, at {iso(entry.applied_at_millis)}: {entry.summary}"
    cause = Cause(entry.cause, entry.caller, entry.comment)
    # 0: no broker left. A newer version may have left a reason that this one does not know.
    reason = next((reason for reason in RemovalReason if reason.value == entry.removal_reason), None)
    text = shortened(f"{both}{by_caller(cause)}{with_comment(cause)}", MAX_TEXT_LENGTH)
    since_millis = entry.applied_at_millis
    explanation.MergeFrom(
        RouteExplanation(explanation=text, since_millis=since_millis, removal_reason=removal_reason(reason))
    )


def explain_route(now: CurrentState, newest_first: list[Change]) -> list[RouteExplanation]:
    """Explains each group that has queues of a topic, reports some that are held back, or had some.

    Groups that never had any are explained only if they are asked for by name, or if there is nothing else to tell.
    All but the number of a group's other topics is as of when ``now`` was made; the change log is of that time, too.
    Has yield points: for a thread. Returns explanations by cluster and name.
    """
    question = now.question
    past = Past(question)
    past.walk(newest_first)
    brokers = now.in_table.keys() | now.held.keys() | past.queues.keys()
    if question.broker_name is not None:
        brokers |= past.left.keys()
        brokers |= {key for key in paced(now.intents) if isinstance(key, BrokerKey) and question.is_about(key)}
    if question.broker_name is not None or not brokers:
        brokers |= {broker for broker in now.groups if question.is_about(broker)}
    of_each = paced(sorted(brokers))
    explanations = [_explanation(broker, now, past) for broker in of_each]
    if not explanations and question.broker_name is not None:
        explanations.append(_never_registered(BrokerKey(question.cluster_name or "", question.broker_name), now))
    return explanations


def _explanation(broker: BrokerKey, now: CurrentState, past: Past) -> RouteExplanation:
    change, row = past.queues.get(broker, (None, None))
    if broker in now.in_table:
        return _of_group_in_table(broker, now, past)
    if broker in now.held:
        return _of_held(broker, now, row)
    left = past.left.get(broker)
    is_latest = left is not None and (change is None or change.revision <= left[0].revision)
    if left is not None and is_latest and (change is not None or broker not in now.groups):
        return _of_gone_group(broker, now, *left, had_topic=change is not None)
    if change is not None and row is not None and row.after is None:
        return _of_removed_queues(broker, now, change, row)
    if broker not in now.groups:
        return _never_registered(broker, now)
    registered = Clause(
        f"not in the route: {broker.broker_name} of {broker.cluster_name} is {_registered(broker, now)}"
    )
    clauses = (registered, *_slaves_clause(broker, now), *_hold_clause(broker, now))
    return _told(broker, RouteExplanation.STATE_TOPIC_UNREPORTED, clauses)


def _of_group_in_table(broker: BrokerKey, now: CurrentState, past: Past) -> RouteExplanation:
    group, queue_data, is_shown, doubted = now.in_table[broker]
    if not is_shown:
        has = "has no zone" if group.zone_name is None else f"is of zone {group.zone_name}"
        acting = RouteExplanation.CONDITION_ACTING_MASTER if now.acting_master(group) else None
        master = "a slave stands in for its master" if acting else "its master is live"
        text = f"left out of the route for zone {now.question.zone_name}: the group {has}, and {master}"
        return _told(broker, RouteExplanation.STATE_OTHER_ZONE, [Clause(text, acting)])
    clauses = [
        Clause(f"in the route with {_queues(group, queue_data)}"),
        *_permission_clauses(group, queue_data, now),
        *_master_clauses(group, now, past),
        *_doubt_clauses(group, doubted, now, past),
    ]
    change, _ = past.queues.get(broker, (None, None))
    return _told(broker, RouteExplanation.STATE_IN_ROUTE, clauses, change.applied_at_millis if change else None)


def _queues(group: BrokerData, queue_data: QueueData) -> str:
    """What can be used of the queues; those to write only where somebody can write to them."""
    to_read = f"{counted(queue_data.read_queue_nums, 'queue')} to read"
    writable = perm_under(group.write, queue_data.perm) & WRITE and group.has_master
    return f"{to_read} and {counted(queue_data.write_queue_nums, 'queue')} to write" if writable else to_read


def _permission_clauses(group: BrokerData, queue_data: QueueData, now: CurrentState) -> Iterable[Clause]:
    if (intent := now.intents.get(group.key)) is not None:
        yield _intent_clause(intent)
    if not queue_data.perm & WRITE and group.write is not WriteRule.ADDED:
        text = f"read-only because the broker reports permission {queue_data.perm}, without write"
        yield Clause(text, RouteExplanation.CONDITION_REPORTED_READ_ONLY)


def _master_clauses(group: BrokerData, now: CurrentState, past: Past) -> Iterable[Clause]:
    if group.has_master:
        return
    change = past.master_left.get(group.key)
    since = f" since {iso(change.applied_at_millis)}" if change else ""
    acting_master = now.acting_master(group)
    if acting_master is not None:
        text = f"read-only because a slave, {acting_master}, stands in for the master, which is not registered{since}"
        yield Clause(text, RouteExplanation.CONDITION_ACTING_MASTER)
    else:
        text = f"no master is registered{since}, so it can only be read from: writers need broker id 0"
        yield Clause(text, RouteExplanation.CONDITION_NO_MASTER)


def _doubt_clauses(
    group: BrokerData, doubted: Mapping[int, Doubted], now: CurrentState, past: Past
) -> Iterable[Clause]:
    for why in sorted({one.why for one in doubted.values()}, key=lambda one: one.value):
        ends_at = {broker_id: one.ends_at_millis for broker_id, one in doubted.items() if one.why is why}
        named = named_brokers({broker_id: group.addrs[broker_id] for broker_id in ends_at})
        if why is Doubt.SNAPSHOT_FILE:
            text = f"unconfirmed since the name server's start at {now.started_at}: {named} has not registered since"
            yield Clause(text, RouteExplanation.CONDITION_UNCONFIRMED_SINCE_START)
        elif why is Doubt.GUARD:
            keys = (group.live_key(member) for member in group.members if member.broker_id in ends_at)
            changes = [past.unconfirmed[key] for key in keys if key in past.unconfirmed]
            since = f" since {iso(changes[-1].applied_at_millis)}" if changes else ""
            text = f"unconfirmed{since}: the mass-loss guard keeps {named}, lost together with too many others"
            yield Clause(text, RouteExplanation.CONDITION_UNCONFIRMED_BY_GUARD)
        else:
            last = max(ends_at.values())
            leaves = f"it leaves at {iso(last)}, in {max(0, last - now.millis) / 1000:.0f} s, unless it registers again"
            yield Clause(
                f"doubted: the channel of {named} {_DOUBTED[why]}; {leaves}", RouteExplanation.CONDITION_DOUBTED
            )


def _of_held(broker: BrokerKey, now: CurrentState, row: QueuesChange | None) -> RouteExplanation:
    hold = now.hold_on(broker)
    assert hold is not None, "reports are held back by an intent"
    reason = None if row is None else row.reason
    clause = Clause(f"not in the route: the broker reports it, but {held_back(hold)}")
    return _told(broker, RouteExplanation.STATE_TOPIC_HELD, [clause], hold.since_millis, reason)


def _of_gone_group(
    broker: BrokerKey, now: CurrentState, change: Change, row: GroupChange, *, had_topic: bool
) -> RouteExplanation:
    assert row.before is not None, "a group was there before it left"
    assert row.reason is not None, "a group leaves for a reason"
    addrs, reason = row.before.addrs, row.reason
    last = f"the group's last broker{'' if len(addrs) == 1 else 's'}, {named_brokers(addrs)},"
    by = "" if reason is RemovalReason.REPLACED else by_caller(change.cause)
    at = iso(change.applied_at_millis)
    left = f"{LEFT[reason]}{_LEFT_BECAUSE.get(reason, '')}{by} at {at}{with_comment(change.cause)}"
    clauses = [Clause(f"not in the route: {last} {left}")]
    if not had_topic:
        clauses.append(
            Clause("the change log does not show that it had this topic", RouteExplanation.CONDITION_TOPIC_NOT_SEEN)
        )
    if broker in now.groups:
        clauses.append(Clause(f"it is back: {_registered(broker, now)}", RouteExplanation.CONDITION_REGISTERED_AGAIN))
        clauses += _slaves_clause(broker, now)
    clauses += (*_awaiting_clause(broker, now), *_hold_clause(broker, now))
    return _told(broker, RouteExplanation.STATE_GROUP_LEFT, clauses, change.applied_at_millis, reason)


def _of_removed_queues(broker: BrokerKey, now: CurrentState, change: Change, row: QueuesChange) -> RouteExplanation:
    at = iso(change.applied_at_millis)
    hold = _hold_clause(broker, now)
    if row.reason is RemovalReason.DELETED_BY_OPERATOR:
        state = RouteExplanation.STATE_TOPIC_DELETED
        operator = by_caller(change.cause) or " by an operator"
        clauses = [Clause(f"not in the route: deleted{operator} at {at}{with_comment(change.cause)}")]
        if not hold:
            clauses.append(Clause("it comes back when the broker registers it with another DataVersion"))
    else:
        state = RouteExplanation.STATE_TOPIC_DROPPED
        clauses = [Clause(f"not in the route: not in the registration that the broker sent at {at}, nor in one since")]
    return _told(broker, state, (*clauses, *hold), change.applied_at_millis, row.reason)


def _never_registered(broker: BrokerKey, now: CurrentState) -> RouteExplanation:
    cluster_name, compacted = broker.cluster_name, now.compacted_revision
    who = f"{broker.broker_name} of {cluster_name}" if cluster_name else broker.broker_name
    never = "has never registered with this name server" if not compacted else "is not known to have registered"
    clauses = (
        Clause(f"not in the route: {who} {never} since its start at {now.started_at}, revision 0"),
        Clause(f"the change log reaches back to revision {compacted}"),
        *_awaiting_clause(broker, now),
    )
    return _told(broker, RouteExplanation.STATE_NEVER_REGISTERED, clauses)


def _registered(broker: BrokerKey, now: CurrentState) -> str:
    return f"registered and has {now.topic_count(broker)}, not this one"


def _slaves_clause(broker: BrokerKey, now: CurrentState) -> list[Clause]:
    """That a registered group has slaves only, which bring no topics, if that is so."""
    if now.groups[broker].has_master:
        return []
    return [Clause("no master is registered, and slaves bring no topics", RouteExplanation.CONDITION_NO_MASTER)]


def _awaiting_clause(broker: BrokerKey, now: CurrentState) -> list[Clause]:
    """The effect of an intent on a group from its next registration on, if it is not registered."""
    intent = now.intents.get(broker)
    if intent is None or broker in now.groups:
        return []
    return [_intent_clause(intent, is_so="when it registers, it is ", has="when it registers, it has ")]


def _intent_clause(intent: Intent, *, is_so: str = "", has: str = "") -> Clause:
    """The effect of an intent on the write permission of its group."""
    if intent.kind is IntentKind.WIPE_WRITE_PERM:
        return Clause(f"{is_so}read-only because {intent_text('drained', intent)}", RouteExplanation.CONDITION_DRAINED)
    return Clause(f"{has}{intent_text('write permission given', intent)}", RouteExplanation.CONDITION_WRITE_GIVEN)


def _hold_clause(broker: BrokerKey, now: CurrentState) -> list[Clause]:
    """That a topic would not come back into the route, if that is so."""
    hold = now.hold_on(broker)
    if hold is None:
        return []
    return [Clause(f"if the broker reports it, it stays out: {held_back(hold)}", RouteExplanation.CONDITION_TOPIC_HELD)]
