"""AdminService: operators' calls as messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import NamedTuple, Protocol, Self, cast

import structlog
from namesrv_api.v1 import admin_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from namesrv import limits
from namesrv.app import field_rules
from namesrv.app.access import caller_of, sharer_of
from namesrv.app.event_log import log_removed, log_topic_deleted
from namesrv.app.fair_queue import FairLock
from namesrv.app.operators import IntentChange, KvChange, Operators
from namesrv.app.watches import WatchDispatcher, WatchStream
from namesrv.app.worker import Worker
from namesrv.app.writer import TableWriter
from namesrv.core.changes import Cause
from namesrv.core.encoding import intent_message
from namesrv.core.errors import (
    FieldProblems,
    Reason,
    Refused,
    broker_not_registered,
    conflict,
    invalid_field,
    kv_not_found,
    limit_exceeded,
    topic_not_found,
)
from namesrv.core.explain import Explanation, GroupState, Present, Question, explain_route, with_journal_entry
from namesrv.core.journal import JournalEntry, JournalPosition, JournalQuery, entries_in_memory
from namesrv.core.model import (
    BlastRadius,
    BrokerKey,
    BrokerLiveInfo,
    HoldKey,
    Intent,
    IntentKind,
    IntentTable,
    KvConfigTable,
    TopicsInUse,
    names_after,
)
from namesrv.core.operator_changes import OperatorOutcome
from namesrv.core.pace import paced
from namesrv.core.routes import Routes
from namesrv.core.state import RouteState, Unconfirmed
from namesrv.core.watch import RouteWatch
from namesrv.grpc_api.handlers import Context
from namesrv.grpc_api.paging import Name, paged
from namesrv.runtime_settings import CHANGEABLE, FIELDS, text_of
from namesrv.storage.journal import Journal

# The call of AdminService that pages through the journal.

_FRONT = JournalPosition("", -1)


class AuditCalls:
    """The latest changes are answered from the change log, those before from the database, if there is one."""

    def __init__(self, state: RouteState, journal: Journal | None, reader: Worker) -> None:
        self._state = state
        self._journal = journal
        self._reader = reader
        self._copying = FairLock()

    async def ListAuditEntries(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.ListAuditEntriesRequest, context: Context
    ) -> pb.ListAuditEntriesResponse:
        """The journal, newest first; RocketMQ has none."""
        asked = paged(request, _FRONT, most=limits.MAX_AUDIT_PAGE_SIZE, default=limits.DEFAULT_AUDIT_PAGE_SIZE)
        before = asked.after if request.page_token else None  # the newest are first
        found = await self._newest(_query(request, asked.limit, before), sharer_of(context).name)
        entries, token = asked.cut(found, attrgetter("position"))
        return pb.ListAuditEntriesResponse(
            header=self._state.header(), entries=map(_audit_entry, entries), next_page_token=token
        )

    async def last_on_disk(self, broker_name: str) -> JournalEntry | None:
        """The last entry about a group before those in memory; None if there is none, or no database.

        Raises:
            NOT_DURABLE: The database cannot be read.
            OVERLOADED: Too many reads wait.
        """
        if self._journal is None:
            return None
        before = JournalPosition(self._state.identity.epoch, self._state.change_log.compacted_revision + 1)
        found = await self._journal.read(JournalQuery(1, before, broker_name=broker_name))
        return found[0] if found else None

    async def _newest(self, query: JournalQuery, owner: str) -> list[JournalEntry]:
        log, epoch = self._state.change_log, self._state.identity.epoch
        async with self._copying.held_for(owner):
            oldest = JournalPosition(epoch, log.compacted_revision + 1)
            entries = await self._reader.run(partial(entries_in_memory, log.newest_first(), epoch, query), owner)
        missing = query.limit - len(entries)
        all_in_memory = query.after is not None and query.after >= (epoch, oldest.revision - 1)
        if missing and self._journal is not None and not all_in_memory:
            before = oldest if query.before is None else min(oldest, query.before)
            entries += await self._journal.read(query._replace(limit=missing, before=before))
        return entries


def _query(request: pb.ListAuditEntriesRequest, limit: int, before: JournalPosition | None) -> JournalQuery:
    """Checks the filters of a request. Raises INVALID_FIELD."""
    problems, after = FieldProblems(), None
    with problems:
        if request.HasField("topic"):
            field_rules.check_topic("topic", request.topic)
    with problems:
        if request.HasField("broker_name"):
            field_rules.check_name("broker_name", request.broker_name)
    for field in ("from_millis", "to_millis"):
        millis = getattr(request, field)
        with problems:
            if millis < 0:
                raise invalid_field(field, f"is {millis}, must not be negative")
    first, end = request.from_millis, request.to_millis
    with problems:
        if request.HasField("from_millis") and request.HasField("to_millis") and first >= end >= 0:
            raise invalid_field("to_millis", f"is {end}, must be after from_millis, which is {first}")
    with problems:
        after = _after(request)
    problems.raise_any()
    return JournalQuery(
        limit,
        before,
        after,
        request.topic if request.HasField("topic") else None,
        request.broker_name if request.HasField("broker_name") else None,
        request.from_millis if request.HasField("from_millis") else None,
        request.to_millis if request.HasField("to_millis") else None,
    )


def _after(request: pb.ListAuditEntriesRequest) -> JournalPosition | None:
    """The position after which a caller follows the journal; None if it does not. Raises INVALID_FIELD."""
    for field, other in (("after_epoch", "after_revision"), ("after_revision", "after_epoch")):
        if request.HasField(other) and not request.HasField(field):
            raise invalid_field(field, f"is missing, and {other} is set")
    if not request.HasField("after_epoch"):
        return None
    if request.after_revision < 0:
        raise invalid_field("after_revision", f"is {request.after_revision}, must not be negative")
    return JournalPosition(request.after_epoch, request.after_revision)


def _audit_entry(entry: JournalEntry) -> pb.AuditEntry:
    return pb.AuditEntry(
        epoch=entry.epoch,
        revision=entry.revision,
        applied_at_millis=entry.applied_at_millis,
        caller=entry.caller,
        cause=entry.cause,
        summary=entry.summary,
        comment=entry.comment,
        removed_broker_count=entry.removed_broker_count,
        # A newer version may have left a number that this one has no name for.
        removal_reason=cast("route_data_pb2.RemovalReason", entry.removal_reason),
    )


# The calls of AdminService that read and change the settings.

MAX_CONFIG_VALUES = 100
"""Most settings in one update: more than there are. Each of them is checked on one step of the event loop."""

_log = structlog.get_logger(__name__)


class ConfigCalls:
    """Shows all settings and changes RocketMQ's keys. Operators makes changes durable and puts them in force."""

    def __init__(self, state: RouteState, operators: Operators) -> None:
        self._state = state
        self._operators = operators

    async def GetNamesrvConfig(  # noqa: N802 - calls have the names of the wire contract
        self, _request: pb.GetNamesrvConfigRequest, _context: Context
    ) -> pb.GetNamesrvConfigResponse:
        """GET_NAMESRV_CONFIG, 319."""
        now = self._operators.in_force.settings
        entries = [pb.ConfigEntry(key=key, value=text_of(now, key), updatable=key in CHANGEABLE) for key in FIELDS]
        return pb.GetNamesrvConfigResponse(header=self._state.header(), entries=entries)

    async def UpdateNamesrvConfig(  # noqa: N802
        self, request: pb.UpdateNamesrvConfigRequest, context: Context
    ) -> pb.UpdateNamesrvConfigResponse:
        """UPDATE_NAMESRV_CONFIG, 318. RocketMQ passes over unknown keys and over numbers that are none."""
        if not request.values:
            raise invalid_field("values", "is empty; name at least one setting")
        if len(request.values) > MAX_CONFIG_VALUES:
            raise limit_exceeded("settings of one update", len(request.values), MAX_CONFIG_VALUES)
        values, caller = dict(request.values), caller_of(context)
        try:
            if request.validate_only:
                rows = self._operators.preview_settings(values)
            else:
                rows = await self._operators.change_settings(values, Cause("UpdateNamesrvConfig", caller))
        except Refused as error:
            if error.reason == Reason.CONFIG_KEY_DENIED:
                _log.warning("config_key_denied", key=error.metadata["key"], caller=caller)
            raise
        entries = [pb.ConfigEntry(key=row.key, value=row.value, updatable=True) for row in rows]
        return pb.UpdateNamesrvConfigResponse(header=self._state.header(), entries=entries)


# The call of AdminService that says why a topic's route is as it is.


class ExplainCalls:
    """Requests are checked here; the core has the answers."""

    def __init__(self, state: RouteState, audit: AuditCalls, reader: Worker, started_at_millis: int) -> None:
        self._state = state
        self._audit = audit
        self._reader = reader
        self._started_at_millis = started_at_millis
        self._copying = FairLock()

    async def ExplainTopicRoute(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.ExplainTopicRouteRequest, context: Context
    ) -> pb.ExplainTopicRouteResponse:
        """Why groups are or are not in a topic's route; RocketMQ has nothing like it."""
        question = _question(request)
        owner = sharer_of(context).name
        async with self._copying.held_for(owner):  # a thousand that wait would each have copied the change log
            header = self._state.header()  # of the revision that the explanation begins with
            now = Present(self._state, self._started_at_millis, question)
            changes = self._state.change_log.newest_first()
            explanations = await self._reader.run(partial(explain_route, now, changes), owner)
            del now, changes
        if len(explanations) > limits.MAX_EXPLANATIONS:
            what = "groups to explain in one answer (broker_name asks for one)"
            raise limit_exceeded(what, len(explanations), limits.MAX_EXPLANATIONS)
        if question.broker_name is not None:
            explanations = [
                await self._with_journal(each, question.broker_name)
                if each.state is GroupState.NEVER_REGISTERED
                else each
                for each in explanations
            ]
        messages = await self._reader.run(partial(_messages, explanations), owner)
        return pb.ExplainTopicRouteResponse(header=header, explanations=messages)

    async def _with_journal(self, explanation: Explanation, broker_name: str) -> Explanation:
        """Adds what the journal on disk last said of a group that memory knows nothing of."""
        try:
            entry = await self._audit.last_on_disk(broker_name)
        except Refused as error:
            if error.reason not in {Reason.NOT_DURABLE, Reason.OVERLOADED}:
                raise
            return explanation  # an explanation without the past is better than none
        return explanation if entry is None else with_journal_entry(explanation, entry)


def _question(request: pb.ExplainTopicRouteRequest) -> Question:
    """Checks a request. Raises INVALID_FIELD."""
    problems = FieldProblems()
    with problems:
        field_rules.check_topic("topic", request.topic)
    for field in ("broker_name", "cluster_name", "zone_name"):
        with problems:
            if request.HasField(field):
                field_rules.check_name(field, getattr(request, field))
    with problems:
        if request.HasField("cluster_name") and not request.HasField("broker_name"):
            problem = "is missing; cluster_name says which of several groups of one name is meant"
            raise invalid_field("broker_name", problem)
    problems.raise_any()
    return Question(
        request.topic,
        request.broker_name if request.HasField("broker_name") else None,
        request.cluster_name if request.HasField("cluster_name") else None,
        request.zone_name if request.HasField("zone_name") else None,
    )


def _messages(explanations: Iterable[Explanation]) -> list[pb.RouteExplanation]:
    messages = []
    for explanation in paced(explanations):
        reason = explanation.removal_reason
        messages.append(
            pb.RouteExplanation(
                cluster_name=explanation.broker.cluster_name,
                broker_name=explanation.broker.broker_name,
                state=pb.RouteExplanation.State.Name(explanation.state.value),
                conditions=[pb.RouteExplanation.Condition.Name(each.value) for each in explanation.conditions],
                explanation=explanation.text,
                since_millis=explanation.since_millis,
                removal_reason=None if reason is None else route_data_pb2.RemovalReason.Name(reason.value),
            )
        )
    return messages


# The call of AdminService that lists intents, in pages.


class Position(NamedTuple):
    """A place in the list. It names what it is after and not how many, so it outlives changes."""

    since_millis: int
    name: str
    """Tells intents of one millisecond apart."""


_BEGINNING = Position(-(2**63), "")


def intents_after(table: IntentTable, after: Position, limit: int) -> list[Intent]:
    """The next intents, at most ``limit``."""
    found: list[tuple[Position, Intent]] = []
    for intent in paced(table.intents.values()):
        position = _position_of(intent)
        if position > after:
            found.append((position, intent))
    found.sort(key=lambda entry: entry[0])  # they are nearly in order: clocks seldom step back
    return [intent for _, intent in found[:limit]]


def _position_of(intent: Intent) -> Position:
    key = intent.key
    names = (key.topic, key.cluster_name or "") if isinstance(key, HoldKey) else key
    return Position(intent.since_millis, "\n".join((intent.kind.name, *names)))


# The calls of AdminService that change the intents about groups and topics.

_CLUSTERS_NAMED = 10
"""Clusters that an error names: it travels in metadata, whose size HTTP/2 bounds."""


_Forceable = pb.WipeWritePermOfBrokerRequest | pb.DeleteTopicRequest
"""Requests that may take topics from their producers."""

_IntentRequest = _Forceable | pb.AddWritePermOfBrokerRequest | pb.ReleaseTopicHoldRequest


class _AboutGroup(Protocol):
    """A request about one broker group."""

    broker_name: str
    cluster_name: str

    def HasField(self, field_name: str, /) -> bool: ...  # noqa: N802


class _AboutTopic(Protocol):
    """A request about one topic, in one cluster or in all."""

    topic: str
    cluster_name: str

    def HasField(self, field_name: str, /) -> bool: ...  # noqa: N802


class IntentCalls:
    """Requests are checked here; Operators makes intents durable and puts them in force."""

    def __init__(self, routes: Routes, writer: TableWriter, operators: Operators, reader: Worker) -> None:
        self._routes, self._state = routes, routes.state
        self._writer = writer
        self._operators = operators
        self._reader = reader

    async def ListIntents(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.ListIntentsRequest, context: Context
    ) -> pb.ListIntentsResponse:
        """What is in force, oldest first."""
        asked = paged(request, _BEGINNING, most=limits.MAX_INTENT_PAGE_SIZE, default=limits.DEFAULT_INTENT_PAGE_SIZE)
        work = partial(intents_after, self._state.intents, asked.after, asked.limit)
        intents, token = asked.cut(await self._reader.run(work, sharer_of(context).name), _position_of)
        return pb.ListIntentsResponse(
            header=self._state.header(), intents=map(self._listed, intents), next_page_token=token
        )

    def _listed(self, intent: Intent) -> pb.Intent:
        message = intent_message(intent)
        message.awaits_registration = self._state.is_absent(intent.key)
        return message

    async def WipeWritePermOfBroker(  # noqa: N802
        self, request: pb.WipeWritePermOfBrokerRequest, context: Context
    ) -> pb.WipeWritePermOfBrokerResponse:
        """WIPE_WRITE_PERM_OF_BROKER, 205. RocketMQ's wipe ends with the next registration that has a new version."""
        group, ends_at = self._group(request), self._ends_at(request)
        cause = _cause("WipeWritePermOfBroker", context, request.comment)
        wipe = self._intent(IntentKind.WIPE_WRITE_PERM, group, cause, ends_at)
        outcome = await self._change(lambda table: _with_intent(table, wipe), cause, request)
        return pb.WipeWritePermOfBrokerResponse(
            header=self._state.header(),
            wipe_topic_count=self._state.topic_count(group),
            blast_radius=_blast_radius(outcome.blast_radius),
            group_registered=not self._state.is_absent(group),
            in_use=_topics_in_use(outcome.in_use),
        )

    async def AddWritePermOfBroker(  # noqa: N802
        self, request: pb.AddWritePermOfBrokerRequest, context: Context
    ) -> pb.AddWritePermOfBrokerResponse:
        """ADD_WRITE_PERM_OF_BROKER, 327. RocketMQ sets the permission to 6, whatever it was."""
        group = self._group(request)
        cause = _cause("AddWritePermOfBroker", context, request.comment)
        add = self._intent(IntentKind.ADD_WRITE_PERM, group, cause)
        outcome = await self._change(lambda table: _restored(table, group, add), cause, request)
        return pb.AddWritePermOfBrokerResponse(
            header=self._state.header(),
            add_topic_count=self._state.topic_count(group),
            blast_radius=_blast_radius(outcome.blast_radius),
            group_registered=not self._state.is_absent(group),
        )

    async def DeleteTopic(  # noqa: N802
        self, request: pb.DeleteTopicRequest, context: Context
    ) -> pb.DeleteTopicResponse:
        """DELETE_TOPIC_IN_NAMESRV, 216."""
        key = _hold_key(request)
        cause = _cause("DeleteTopic", context, request.comment)
        if request.HasField("ends_at_millis") and not request.hold:
            raise invalid_field("ends_at_millis", "is set without hold: only a hold ends")
        if request.hold:
            hold = self._intent(IntentKind.TOPIC_HOLD, key, cause, self._ends_at(request))
            outcome = await self._change(lambda table: _with_intent(table, hold), cause, request)
        else:
            outcome = await self._writer.apply(
                self._routes.operator_changes.delete_topic(
                    key.topic,
                    key.cluster_name,
                    cause,
                    validate_only=request.validate_only,
                    refuse_in_use=not request.force,
                ),
                sharer_of(context).name,
            )
            if not outcome.queue_data_count:
                raise topic_not_found(key.topic, key.cluster_name)
            if not request.validate_only:
                log_topic_deleted(key, outcome, cause, self._state.revision)
        return pb.DeleteTopicResponse(
            header=self._state.header(),
            removed_queue_data_count=outcome.queue_data_count,
            blast_radius=_blast_radius(outcome.blast_radius),
            topic_reported=not request.hold or not self._state.is_absent(key),
            in_use=_topics_in_use(outcome.in_use),
        )

    async def ReleaseTopicHold(  # noqa: N802
        self, request: pb.ReleaseTopicHoldRequest, context: Context
    ) -> pb.ReleaseTopicHoldResponse:
        """Lifts a hold; RocketMQ has no holds."""
        key = _hold_key(request)
        cause = Cause("ReleaseTopicHold", caller_of(context))
        outcome = await self._change(lambda table: _released(table, key), cause, request)
        return pb.ReleaseTopicHoldResponse(
            header=self._state.header(), restored_queue_data_count=outcome.queue_data_count
        )

    async def ConfirmBrokerLoss(  # noqa: N802
        self, request: pb.ConfirmBrokerLossRequest, context: Context
    ) -> pb.ConfirmBrokerLossResponse:
        """Removes brokers that only a snapshot file or the mass-loss guard keeps; RocketMQ has neither."""
        cause = _cause("ConfirmBrokerLoss", context, request.comment)
        group = self._unconfirmed_group(request)

        def is_meant(live: BrokerLiveInfo) -> bool:
            if group is None:
                return self._state.unconfirmed.get(live.key) is Unconfirmed.GUARD
            return live.broker == group

        removals = self._routes.removals
        preview = removals.preview_broker_loss(is_meant)
        removed, radius = await self._writer.apply(preview, sharer_of(context).name)
        if removed and not request.validate_only:
            removed = await self._writer.apply_each(removals.confirm_broker_loss(is_meant, cause))
            for gone in removed:
                log_removed(gone)
        if not removed:
            raise _none_unconfirmed(request)
        return pb.ConfirmBrokerLossResponse(
            header=self._state.header(),
            removed_broker_count=len(removed),
            blast_radius=_blast_radius(radius),
        )

    async def _change(self, change: IntentChange, cause: Cause, request: _IntentRequest) -> OperatorOutcome:
        """Makes a change, or only says what it would do."""
        if request.validate_only:
            return await self._operators.preview_intents(change)
        force = not isinstance(request, _Forceable) or request.force
        return await self._operators.change_intents(change, cause, refuse_in_use=not force)

    def _intent(
        self, kind: IntentKind, key: BrokerKey | HoldKey, cause: Cause, ends_at_millis: int | None = None
    ) -> Intent:
        return Intent(kind, key, cause.caller, self._operators.wall_millis(), cause.comment, ends_at_millis)

    def _group(self, request: _AboutGroup) -> BrokerKey:
        problems, cluster_name = FieldProblems(), None
        with problems:
            cluster_name = _cluster_name(request)
        with problems:
            field_rules.check_name("broker_name", request.broker_name)
        problems.raise_any()
        if cluster_name is not None:
            return BrokerKey(cluster_name, request.broker_name)
        groups = self._state.groups_named(request.broker_name, None)
        if not groups:
            raise broker_not_registered(None, request.broker_name)
        return _only(groups)

    def _unconfirmed_group(self, request: pb.ConfirmBrokerLossRequest) -> BrokerKey | None:
        """The group of a request, which must have unconfirmed brokers; None if it names none."""
        cluster_name = _cluster_name(request)
        if not request.HasField("broker_name"):
            if cluster_name is not None:
                raise invalid_field("cluster_name", "is set without broker_name")
            return None
        field_rules.check_name("broker_name", request.broker_name)
        table = self._state.tables.broker_addr_table
        named = self._state.groups_named(request.broker_name, cluster_name)
        groups = [key for key in named if key in table and table[key].unconfirmed]
        if not groups:
            raise _none_unconfirmed(request)
        return _only(groups)

    def _ends_at(self, request: pb.WipeWritePermOfBrokerRequest | pb.DeleteTopicRequest) -> int | None:
        if not request.HasField("ends_at_millis"):
            return None
        now = self._operators.wall_millis()
        if request.ends_at_millis <= now:
            raise invalid_field(
                "ends_at_millis", f"is {request.ends_at_millis}, must be in the future; it is {now} now"
            )
        return request.ends_at_millis


def _cause(call: str, context: Context, comment: str) -> Cause:
    if len(comment) > limits.MAX_COMMENT_LENGTH:
        raise invalid_field("comment", f"has {len(comment)} characters, at most {limits.MAX_COMMENT_LENGTH}")
    return Cause(call, caller_of(context), comment)


def _cluster_name(request: _AboutGroup | _AboutTopic) -> str | None:
    if not request.HasField("cluster_name"):
        return None
    field_rules.check_name("cluster_name", request.cluster_name)
    return request.cluster_name


def _hold_key(request: _AboutTopic) -> HoldKey:
    problems, cluster_name = FieldProblems(), None
    with problems:
        field_rules.check_topic("topic", request.topic)
    with problems:
        cluster_name = _cluster_name(request)
    problems.raise_any()
    return HoldKey(request.topic, cluster_name)


def _only(groups: list[BrokerKey]) -> BrokerKey:
    """The group of a list of groups of one name. Raises INVALID_FIELD if there are several."""
    if len(groups) > 1:
        names = ", ".join(group.cluster_name for group in groups[:_CLUSTERS_NAMED])
        more = f" and {len(groups) - _CLUSTERS_NAMED} more" if len(groups) > _CLUSTERS_NAMED else ""
        problem = f"is missing; a group {groups[0].broker_name} is in the clusters {names}{more}: name one of them"
        raise invalid_field("cluster_name", problem)
    return groups[0]


def _with_intent(table: IntentTable, intent: Intent) -> IntentTable:
    """The table with an intent. An equal intent stays, with its caller and time."""
    former = table.intents.get(intent.key)
    if former is not None and former.kind is intent.kind and not intent.comment:
        intent = replace(intent, comment=former.comment)  # who says nothing takes back no reason
    if former is not None and _effect(former) == _effect(intent):
        return table
    return table.with_intent(intent)


def _effect(intent: Intent) -> tuple[IntentKind, str, int | None]:
    return intent.kind, intent.comment, intent.ends_at_millis


def _restored(table: IntentTable, group: BrokerKey, add: Intent) -> IntentTable:
    """Without the wipe of a group; with write permission added where nobody has wiped it."""
    match table.of_group(group):
        case IntentKind.WIPE_WRITE_PERM:
            return table.without([group])
        case IntentKind.ADD_WRITE_PERM:
            return table
        case IntentKind.TOPIC_HOLD | None:
            return table.with_intent(add)


def _released(table: IntentTable, key: HoldKey) -> IntentTable:
    if key not in table.intents:
        where = "all clusters" if key.cluster_name is None else f"cluster {key.cluster_name}"
        text = f"there is no hold of the topic {key.topic} in {where}"
        raise Refused(Reason.INTENT_NOT_FOUND, text, topic=key.topic, cluster_name=key.cluster_name)
    return table.without([key])


def _none_unconfirmed(request: pb.ConfirmBrokerLossRequest) -> Refused:
    if not request.HasField("broker_name"):
        return Refused(Reason.INTENT_NOT_FOUND, "the mass-loss guard holds no broker")
    text = f"no broker of the group {request.broker_name} is unconfirmed"
    return Refused(Reason.INTENT_NOT_FOUND, text, broker_name=request.broker_name)


def _blast_radius(radius: BlastRadius) -> pb.BlastRadius:
    return pb.BlastRadius(
        topics_changed=radius.topics_changed,
        topics_losing_last_writable_queue=radius.losing_last_writable_queue,
        topics_vanishing=radius.vanishing,
        sample_topics=radius.sample_topics,
    )


def _topics_in_use(topics: TopicsInUse) -> pb.TopicsInUse | None:
    return pb.TopicsInUse(topic_count=topics.topic_count, topics=topics.names) if topics.topic_count else None


# The calls of AdminService that read and change the KV configuration.


class KvConfigCalls:
    """Requests are checked and answered here; Operators makes changes durable and puts them in force."""

    def __init__(self, state: RouteState, operators: Operators) -> None:
        self._state = state
        self._operators = operators

    async def GetKvConfig(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.GetKvConfigRequest, _context: Context
    ) -> pb.GetKvConfigResponse:
        """GET_KV_CONFIG, 101."""
        _check_names(request.namespace, request.key)
        value = self._state.kv_config.get(request.namespace, request.key)
        if value is None:
            raise kv_not_found(request.namespace, request.key)
        return pb.GetKvConfigResponse(header=self._state.header(), value=value)

    async def ListKvConfigs(  # noqa: N802
        self, request: pb.ListKvConfigsRequest, _context: Context
    ) -> pb.ListKvConfigsResponse:
        """GET_KVLIST_BY_NAMESPACE, 219."""
        namespace, asked = request.namespace, paged(request, Name(""), most=limits.MAX_KV_PAGE_SIZE)
        if not namespace:
            found = names_after(self._state.kv_config.namespaces, asked.after.name, asked.limit)
            names, token = asked.cut(found, Name)
            rows = [pb.KvConfig(namespace=name) for name in names]
        else:
            _check_kv_name("namespace", namespace)
            entries = self._state.kv_config.entries(namespace)
            if not entries:
                raise kv_not_found(namespace)
            names, token = asked.cut(names_after(entries, asked.after.name, asked.limit), Name)
            rows = [pb.KvConfig(namespace=namespace, key=key, value=entries[key]) for key in names]
        return pb.ListKvConfigsResponse(header=self._state.header(), kv_configs=rows, next_page_token=token)

    async def PutKvConfig(  # noqa: N802
        self, request: pb.PutKvConfigRequest, context: Context
    ) -> pb.PutKvConfigResponse:
        """PUT_KV_CONFIG, 100."""
        namespace, key, value = request.namespace, request.key, request.value
        problems = FieldProblems()
        with problems:
            _check_names(namespace, key)
        with problems:
            if not request.HasField("value"):
                raise invalid_field("value", "is missing; it may be empty, but must be set")
        problems.raise_any()
        value_bytes = len(value.encode())
        if value_bytes > limits.MAX_KV_VALUE_BYTES:
            raise limit_exceeded("bytes of value", value_bytes, limits.MAX_KV_VALUE_BYTES)
        cause = None if request.validate_only else Cause("PutKvConfig", caller_of(context))

        def put(table: KvConfigTable) -> KvConfigTable:
            _check_expected(request, table)
            return table.with_value(namespace, key, value)

        before = await self._change(put, cause)
        return pb.PutKvConfigResponse(header=self._state.header(), previous_value=before.get(namespace, key))

    async def DeleteKvConfig(  # noqa: N802
        self, request: pb.DeleteKvConfigRequest, context: Context
    ) -> pb.DeleteKvConfigResponse:
        """DELETE_KV_CONFIG, 102."""
        namespace, key = request.namespace, request.key
        _check_names(namespace, key)
        cause = None if request.validate_only else Cause("DeleteKvConfig", caller_of(context))

        def delete(table: KvConfigTable) -> KvConfigTable:
            _check_expected(request, table)
            return table.without(namespace, key)

        before = await self._change(delete, cause)
        removed = before.get(namespace, key) is not None
        return pb.DeleteKvConfigResponse(header=self._state.header(), removed=removed)

    async def _change(self, change: KvChange, cause: Cause | None) -> KvConfigTable:
        """Applies a change, or without a cause only says what it would be applied to; returns the table before it."""
        if cause is None:
            return self._operators.preview_kv_config(change)
        return await self._operators.change_kv_config(change, cause)


def _check_expected(request: pb.PutKvConfigRequest | pb.DeleteKvConfigRequest, table: KvConfigTable) -> None:
    """Raises CONFLICT if a key is not as a request expects.

    Any length is compared: a value that was imported from RocketMQ may be longer than a new one.
    """
    if not request.HasField("expected"):
        return
    expected = request.expected.value if request.expected.HasField("value") else None
    value = table.get(request.namespace, request.key)
    if value == expected:
        return
    if value is None:
        problem = "does not exist"
    elif expected is None:
        problem = "exists already"
    else:
        problem = "has another value than expected"
    raise conflict(request.namespace, request.key, problem)


def _check_names(namespace: str, key: str) -> None:
    problems = FieldProblems()
    with problems:
        _check_kv_name("namespace", namespace)
    with problems:
        _check_kv_name("key", key)
    problems.raise_any()


def _check_kv_name(field: str, name: str) -> None:
    """Checks a namespace or key of the KV configuration; like RocketMQ, allows all characters. Raises INVALID_FIELD."""
    if not name:
        raise invalid_field(field, "is empty")
    length = len(name.encode())
    if length > limits.MAX_KV_NAME_BYTES:
        raise invalid_field(field, f"has {length} bytes, at most {limits.MAX_KV_NAME_BYTES}")


# The call of AdminService that lists the open streams of changes.


class _Number(NamedTuple):
    """The position in the list of watchers."""

    number: int


class WatcherListCalls:
    """Watchers are listed in the order in which they came."""

    def __init__(self, state: RouteState, watchers: WatchDispatcher) -> None:
        self._state = state
        self._watch_streams = watchers

    async def ListWatchers(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.ListWatchersRequest, _context: Context
    ) -> pb.ListWatchersResponse:
        asked = paged(request, _Number(0), most=limits.MAX_WATCHER_PAGE_SIZE, default=limits.DEFAULT_WATCHER_PAGE_SIZE)
        found = self._watch_streams.after(asked.after.number, asked.limit)
        watchers, token = asked.cut(found, lambda watcher: _Number(watcher.number))
        return pb.ListWatchersResponse(
            header=self._state.header(), watchers=map(self._row, watchers), next_page_token=token
        )

    def _row(self, watcher: WatchStream) -> pb.Watcher:
        reader = watcher.reader
        row = pb.Watcher(
            peer=watcher.peer,
            call=watcher.call,
            revision=max(0, reader.revision),
            events_behind=self._watch_streams.events_behind(watcher.reader),
            opened_at_millis=watcher.opened_at_millis,
        )
        if isinstance(reader, RouteWatch):
            row.topic_count = len(reader.subscription.topics)
            row.topic_prefixes.extend(reader.subscription.prefixes)
        return row


# AdminService: what operators call.


class AdminServicer(NamedTuple):
    """Answers the calls of the service, by subject."""

    kv_config: KvConfigCalls
    config: ConfigCalls
    intents: IntentCalls
    audit: AuditCalls
    explain: ExplainCalls
    watchers: WatcherListCalls

    @classmethod
    def of(
        cls,
        routes: Routes,
        writer: TableWriter,
        operators: Operators,
        watchers: WatchDispatcher,
        *,
        journal: Journal | None,
        reader: Worker,
        started_at_millis: int,
    ) -> Self:
        state = routes.state
        audit = AuditCalls(state, journal, reader)
        return cls(
            KvConfigCalls(state, operators),
            ConfigCalls(state, operators),
            IntentCalls(routes, writer, operators, reader),
            audit,
            ExplainCalls(state, audit, reader, started_at_millis),
            WatcherListCalls(state, watchers),
        )
