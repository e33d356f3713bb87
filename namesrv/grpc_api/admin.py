"""AdminService and DiagnosticsService: operators' calls as messages."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from namesrv_api.v1 import admin_service_pb2 as pb
from namesrv_internal.v1 import diagnostics_service_pb2 as diagnostics_pb

from namesrv import limits
from namesrv.app.access import caller_of, sharer_of
from namesrv.app.administration import Administration, Expected, Operation
from namesrv.app.channels import StallDetector
from namesrv.app.event_log import RegistrationCounter
from namesrv.app.field_rules import KV_NAME, NAME, NOT_NEGATIVE, PROBLEM, TOPIC, check, given
from namesrv.app.watches import WatchStream, WatchStreams
from namesrv.app.worker import FairLock, Worker
from namesrv.core.changes import Cause
from namesrv.core.errors import Reason, Refused, invalid_field, limit_exceeded
from namesrv.core.explain import CurrentState, Question, add_journal_entry, explain_route
from namesrv.core.journal import JournalPosition, JournalQuery
from namesrv.core.model import HoldKey, Intent, IntentTable
from namesrv.core.pace import paced
from namesrv.core.state import RouteState
from namesrv.core.tables import intent_message
from namesrv.core.watch.hub import RouteWatch
from namesrv.grpc_api.handlers import Name, paged
from namesrv.settings import CHANGEABLE
from namesrv.storage.journal import Journal
from namesrv_common.server.rpc_handlers import Context

# Requests and answers of the calls that page through the journal, and that say why a topic's route is as it is.

_FRONT = JournalPosition("", -1)


def _query(request: pb.ListAuditEntriesRequest, limit: int, before: JournalPosition | None) -> JournalQuery:
    """Checks the filters of a request. Raises INVALID_FIELD."""
    topic, broker_name = given(request, "topic"), given(request, "broker_name")
    first, end = given(request, "from_millis"), given(request, "to_millis")
    epoch, revision = given(request, "after_epoch"), given(request, "after_revision")
    is_empty = first is not None and end is not None and first >= end >= 0

    def without(this: object, other: object, name: str) -> str | None:
        return f"is missing, and {name} is set" if this is None and other is not None else None

    check(
        ("topic", topic, TOPIC),
        ("broker_name", broker_name, NAME),
        ("from_millis", first, NOT_NEGATIVE),
        ("to_millis", end, NOT_NEGATIVE),
        ("to_millis", f"is {end}, must be after from_millis, which is {first}" if is_empty else None, PROBLEM),
        ("after_epoch", without(epoch, revision, "after_revision"), PROBLEM),
        ("after_revision", without(revision, epoch, "after_epoch"), PROBLEM),
        ("after_revision", revision, NOT_NEGATIVE),
    )
    after = None if epoch is None else JournalPosition(epoch, revision)
    return JournalQuery(limit, before, after, topic, broker_name, first, end)


def _question(request: pb.ExplainTopicRouteRequest) -> Question:
    """Checks a request. Raises INVALID_FIELD."""
    broker_name, cluster_name = given(request, "broker_name"), given(request, "cluster_name")
    zone_name = given(request, "zone_name")
    is_alone = cluster_name is not None and broker_name is None
    problem = "is missing; cluster_name says which of several groups of one name is meant" if is_alone else None
    check(
        ("topic", request.topic, TOPIC),
        ("broker_name", broker_name, NAME),
        ("cluster_name", cluster_name, NAME),
        ("zone_name", zone_name, NAME),
        ("broker_name", problem, PROBLEM),
    )
    return Question(request.topic, broker_name, cluster_name, zone_name)


# The order in which intents are listed.


class Position(NamedTuple):
    """A position in the list. It names the item before it instead of an index, so it outlives changes."""

    since_millis: int
    name: str
    """Tells intents of one millisecond apart."""


_BEGINNING = Position(-(2**63), "")


def intents_after(table: IntentTable, after: Position, limit: int) -> list[Intent]:
    """The next intents, at most ``limit``."""
    intents = paced(table.intents.values())
    found = [(position, intent) for intent in intents if (position := _position_of(intent)) > after]
    found.sort(key=lambda entry: entry[0])  # they are nearly in order: clocks seldom step back
    return [intent for _, intent in found[:limit]]


def _position_of(intent: Intent) -> Position:
    key = intent.key
    names = (key.topic, key.cluster_name or "") if isinstance(key, HoldKey) else key
    return Position(intent.since_millis, "\n".join((intent.kind.name, *names)))


# Changes, and what they are answered with.


def _operation(request: Any, context: Context) -> Operation:
    """How a change that is asked for is to be made."""
    call, comment = request.DESCRIPTOR.name.removesuffix("Request"), getattr(request, "comment", "")
    force = getattr(request, "force", True)  # requests without the field take nothing from producers
    cause = Cause(call, caller_of(context), comment)
    return Operation(cause, sharer_of(context).name, force, request.validate_only)


def _expected(request: pb.PutKvConfigRequest | pb.DeleteKvConfigRequest) -> Expected | None:
    return Expected(given(request.expected, "value")) if request.HasField("expected") else None


class _Number(NamedTuple):
    """The position in the list of watchers."""

    number: int


# AdminService.


@dataclass
class AdminServicer:
    """Requests become calls of Administration or questions about the past, and outcomes messages."""

    state: RouteState
    administration: Administration
    journal: Journal
    watchers: WatchStreams
    reader: Worker
    started_at_millis: int

    def __post_init__(self) -> None:
        # Held for one call of each owner at a time: the one while it reads the journal, the other the change log.
        self._searching, self._copying = FairLock(), FairLock()

    async def ListIntents(self, request: pb.ListIntentsRequest, context: Context) -> pb.ListIntentsResponse:
        """What is in force, oldest first."""
        asked = paged(request, _BEGINNING, most=limits.MAX_INTENT_PAGE_SIZE, default=limits.DEFAULT_INTENT_PAGE_SIZE)
        work = partial(intents_after, self.state.intents, asked.after, asked.limit)
        intents, token = asked.cut(await self.reader.run(work, sharer_of(context).name), _position_of)
        return pb.ListIntentsResponse(
            header=self.state.header(), intents=map(self._listed, intents), next_page_token=token
        )

    def _listed(self, intent: Intent) -> pb.Intent:
        message = intent_message(intent)
        message.awaits_registration = self.state.is_absent(intent.key)
        return message

    async def WipeWritePermOfBroker(
        self, request: pb.WipeWritePermOfBrokerRequest, context: Context
    ) -> pb.WipeWritePermOfBrokerResponse:
        """WIPE_WRITE_PERM_OF_BROKER, 205."""
        cluster_name, ends_at = given(request, "cluster_name"), given(request, "ends_at_millis")
        operation = _operation(request, context)
        wiped = await self.administration.wipe_write_perm(request.broker_name, cluster_name, operation, ends_at)
        return pb.WipeWritePermOfBrokerResponse(
            header=self.state.header(),
            wipe_topic_count=wiped.topic_count,
            blast_radius=wiped.outcome.blast_radius,
            group_registered=wiped.is_registered,
            in_use=wiped.outcome.in_use,
        )

    async def AddWritePermOfBroker(
        self, request: pb.AddWritePermOfBrokerRequest, context: Context
    ) -> pb.AddWritePermOfBrokerResponse:
        """ADD_WRITE_PERM_OF_BROKER, 327. RocketMQ sets the permission to 6, whatever it was."""
        cluster_name, operation = given(request, "cluster_name"), _operation(request, context)
        restored = await self.administration.add_write_perm(request.broker_name, cluster_name, operation)
        return pb.AddWritePermOfBrokerResponse(
            header=self.state.header(),
            add_topic_count=restored.topic_count,
            blast_radius=restored.outcome.blast_radius,
            group_registered=restored.is_registered,
        )

    async def DeleteTopic(self, request: pb.DeleteTopicRequest, context: Context) -> pb.DeleteTopicResponse:
        """DELETE_TOPIC_IN_NAMESRV, 216."""
        key, operation = HoldKey(request.topic, given(request, "cluster_name")), _operation(request, context)
        ends_at = given(request, "ends_at_millis")
        if request.hold:
            outcome = await self.administration.hold_topic(key, operation, ends_at)
        elif ends_at is not None:
            raise invalid_field("ends_at_millis", "is set without hold: only a hold ends")
        else:
            outcome = await self.administration.delete_topic(key, operation)
        return pb.DeleteTopicResponse(
            header=self.state.header(),
            removed_queue_data_count=outcome.queue_data_count,
            blast_radius=outcome.blast_radius,
            topic_reported=not request.hold or not self.state.is_absent(key),
            in_use=outcome.in_use,
        )

    async def ReleaseTopicHold(
        self, request: pb.ReleaseTopicHoldRequest, context: Context
    ) -> pb.ReleaseTopicHoldResponse:
        """Lifts a hold; RocketMQ has no holds."""
        key = HoldKey(request.topic, given(request, "cluster_name"))
        outcome = await self.administration.release_hold(key, _operation(request, context))
        return pb.ReleaseTopicHoldResponse(
            header=self.state.header(), restored_queue_data_count=outcome.queue_data_count
        )

    async def ConfirmBrokerLoss(
        self, request: pb.ConfirmBrokerLossRequest, context: Context
    ) -> pb.ConfirmBrokerLossResponse:
        """Removes brokers that only a snapshot file or the mass-loss guard keeps; RocketMQ has neither."""
        broker_name, cluster_name = given(request, "broker_name"), given(request, "cluster_name")
        operation = _operation(request, context)
        count, radius = await self.administration.confirm_loss(broker_name, cluster_name, operation)
        return pb.ConfirmBrokerLossResponse(header=self.state.header(), removed_broker_count=count, blast_radius=radius)

    async def GetKvConfig(self, request: pb.GetKvConfigRequest, _context: Context) -> pb.GetKvConfigResponse:
        """GET_KV_CONFIG, 101."""
        value = self.administration.kv_value(request.namespace, request.key)
        return pb.GetKvConfigResponse(header=self.state.header(), value=value)

    async def ListKvConfigs(self, request: pb.ListKvConfigsRequest, _context: Context) -> pb.ListKvConfigsResponse:
        """GET_KVLIST_BY_NAMESPACE, 219."""
        namespace, asked = request.namespace, paged(request, Name(""), most=limits.MAX_KV_PAGE_SIZE)
        check(("namespace", namespace or None, KV_NAME))
        entries = self.administration.kv_entries(namespace) if namespace else None
        found = self.state.kv_config.namespaces if entries is None else entries
        later = sorted(name for name in found if name > asked.after.name)
        names, token = asked.cut(later[: asked.limit], Name)
        if entries is None:
            rows = [pb.KvConfig(namespace=name) for name in names]
        else:
            rows = [pb.KvConfig(namespace=namespace, key=key, value=entries[key]) for key in names]
        return pb.ListKvConfigsResponse(header=self.state.header(), kv_configs=rows, next_page_token=token)

    async def PutKvConfig(self, request: pb.PutKvConfigRequest, context: Context) -> pb.PutKvConfigResponse:
        """PUT_KV_CONFIG, 100."""
        operation, value = _operation(request, context), given(request, "value")
        former = await self.administration.put_kv(request.namespace, request.key, value, operation, _expected(request))
        return pb.PutKvConfigResponse(header=self.state.header(), previous_value=former)

    async def DeleteKvConfig(self, request: pb.DeleteKvConfigRequest, context: Context) -> pb.DeleteKvConfigResponse:
        """DELETE_KV_CONFIG, 102."""
        operation = _operation(request, context)
        removed = await self.administration.delete_kv(request.namespace, request.key, operation, _expected(request))
        return pb.DeleteKvConfigResponse(header=self.state.header(), removed=removed)

    async def GetNamesrvConfig(
        self, _request: pb.GetNamesrvConfigRequest, _context: Context
    ) -> pb.GetNamesrvConfigResponse:
        """GET_NAMESRV_CONFIG, 319."""
        texts = self.administration.settings().items()
        entries = [pb.ConfigEntry(key=key, value=text, updatable=key in CHANGEABLE) for key, text in texts]
        return pb.GetNamesrvConfigResponse(header=self.state.header(), entries=entries)

    async def UpdateNamesrvConfig(
        self, request: pb.UpdateNamesrvConfigRequest, context: Context
    ) -> pb.UpdateNamesrvConfigResponse:
        """UPDATE_NAMESRV_CONFIG, 318."""
        rows = await self.administration.change_settings(dict(request.values), _operation(request, context))
        entries = [pb.ConfigEntry(key=row.key, value=row.after, updatable=True) for row in rows]
        return pb.UpdateNamesrvConfigResponse(header=self.state.header(), entries=entries)

    async def ListAuditEntries(
        self, request: pb.ListAuditEntriesRequest, context: Context
    ) -> pb.ListAuditEntriesResponse:
        """The journal, newest first; RocketMQ has none."""
        asked = paged(request, _FRONT, most=limits.MAX_AUDIT_PAGE_SIZE, default=limits.DEFAULT_AUDIT_PAGE_SIZE)
        before = asked.after if request.page_token else None  # the newest are first
        query = _query(request, asked.limit, before)
        async with self._searching.held_for(sharer_of(context).name):
            found = await self.journal.read(query)
        entries, token = asked.cut(found, attrgetter("position"))
        rows = [pb.AuditEntry(**entry._asdict()) for entry in entries]
        return pb.ListAuditEntriesResponse(header=self.state.header(), entries=rows, next_page_token=token)

    async def ExplainTopicRoute(
        self, request: pb.ExplainTopicRouteRequest, context: Context
    ) -> pb.ExplainTopicRouteResponse:
        """Why groups are or are not in a topic's route; RocketMQ has nothing like it.

        Where memory knows nothing of a group, its last entry of the journal is added.
        """
        question, owner = _question(request), sharer_of(context).name
        async with self._copying.held_for(owner):  # a thousand that wait would each have copied the change log
            header = self.state.header()
            now = CurrentState(self.state, self.started_at_millis, question)
            changes = self.state.change_log.newest_first()
            explanations = await self.reader.run(partial(explain_route, now, changes), owner)
            del now, changes
        for each in explanations:
            if question.broker_name is not None and each.state == pb.RouteExplanation.STATE_NEVER_REGISTERED:
                await self._add_journal(each, question.broker_name)
        if len(explanations) > limits.MAX_EXPLANATIONS:
            what = "groups to explain in one answer (broker_name asks for one)"
            raise limit_exceeded(what, len(explanations), limits.MAX_EXPLANATIONS)
        return pb.ExplainTopicRouteResponse(header=header, explanations=explanations)

    async def _add_journal(self, explanation: pb.RouteExplanation, broker_name: str) -> None:
        before = JournalPosition(self.state.identity.epoch, self.state.change_log.compacted_revision + 1)
        try:
            entries = await self.journal.read(JournalQuery(1, before, broker_name=broker_name))
        except Refused as error:
            if error.reason not in {Reason.NOT_DURABLE, Reason.OVERLOADED}:
                raise
            return  # an explanation without the past is better than none
        if entries:
            add_journal_entry(explanation, entries[0])

    async def ListWatchers(self, request: pb.ListWatchersRequest, _context: Context) -> pb.ListWatchersResponse:
        asked = paged(request, _Number(0), most=limits.MAX_WATCHER_PAGE_SIZE, default=limits.DEFAULT_WATCHER_PAGE_SIZE)
        found = self.watchers.after(asked.after.number, asked.limit)
        watchers, token = asked.cut(found, lambda watcher: _Number(watcher.number))
        return pb.ListWatchersResponse(
            header=self.state.header(), watchers=map(self._row, watchers), next_page_token=token
        )

    def _row(self, watcher: WatchStream) -> pb.Watcher:
        reader = watcher.reader
        row = pb.Watcher(
            peer=watcher.peer,
            call=watcher.call,
            revision=max(0, reader.revision),
            events_behind=self.watchers.events_behind(watcher.reader),
            opened_at_millis=watcher.opened_at_millis,
        )
        if isinstance(reader, RouteWatch):
            row.topic_count = len(reader.subscription.topics)
            row.topic_prefixes.extend(reader.subscription.prefixes)
        return row


# DiagnosticsService.

COUNT_SECONDS = 1.0
"""Shortest time between two counts of tasks: one takes 3 ms with 10,000 tasks."""


@dataclass
class DiagnosticsCalls:
    """Tells about this process."""

    stall_detector: StallDetector
    registrations: RegistrationCounter

    def __post_init__(self) -> None:
        self._counted_at, self._task_count = -math.inf, 0

    async def GetDiagnostics(
        self, _request: diagnostics_pb.GetDiagnosticsRequest, _context: Context
    ) -> diagnostics_pb.GetDiagnosticsResponse:
        """Figures about the implementation."""
        now = asyncio.get_running_loop().time()
        if now - self._counted_at >= COUNT_SECONDS:
            self._counted_at, self._task_count = now, len(asyncio.all_tasks())
        refused_ago, skipped_ago = self.registrations.refused_ago, self.registrations.skipped_ago
        return diagnostics_pb.GetDiagnosticsResponse(
            task_count=self._task_count,
            loop_lag_millis=self.stall_detector.longest_delay() * 1000,
            refused_ago_millis=None if refused_ago is None else int(refused_ago * 1000),
            skipped_ago_millis=None if skipped_ago is None else int(skipped_ago * 1000),
        )
