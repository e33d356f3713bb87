"""The calls of AdminService by which operators decide about groups and topics."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from namesrv_api.v1 import admin_service_pb2 as pb

from namesrv.config import limits
from namesrv.core.changes import Cause
from namesrv.core.errors import BrokerNotRegistered, IntentNotFound, InvalidField, TopicNotFound
from namesrv.core.model import BlastRadius, BrokerKey, BrokerLiveInfo, HoldKey, Intent, IntentKind, IntentTable
from namesrv.core.operator_changes import OperatorOutcome
from namesrv.core.registrations import RouteInfoManager
from namesrv.core.state import Unconfirmed
from namesrv.server.auth.callers import caller_of
from namesrv.server.background.table_writer import TableWriter
from namesrv.server.route_logging import log_removed, log_topic_deleted
from namesrv.server.rpc.handlers import Context
from namesrv.server.services import field_rules
from namesrv.server.stores.intent_store import IntentChange, IntentStore

CLUSTERS_NAMED = 10
"""Clusters that an error names: it travels in metadata, whose size HTTP/2 bounds."""


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


class IntentChanges:
    """Requests are checked here; IntentStore makes decisions durable and puts them in force."""

    def __init__(self, manager: RouteInfoManager, writer: TableWriter, intents: IntentStore) -> None:
        self._manager = manager
        self._writer = writer
        self._intents = intents

    async def WipeWritePermOfBroker(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.WipeWritePermOfBrokerRequest, context: Context
    ) -> pb.WipeWritePermOfBrokerResponse:
        """WIPE_WRITE_PERM_OF_BROKER, 205. RocketMQ's wipe ends with the next registration that has a new version."""
        group, ends_at = self._group(request), self._ends_at(request)
        cause = _cause("WipeWritePermOfBroker", context, request.comment)
        wipe = self._intent(IntentKind.WIPE_WRITE_PERM, group, cause, ends_at)
        outcome = await self._decide(lambda table: _decided(table, wipe), cause, request.validate_only)
        return pb.WipeWritePermOfBrokerResponse(
            header=self._manager.header(),
            wipe_topic_count=self._manager.topic_count(group),
            blast_radius=_blast_radius(outcome.blast_radius),
        )

    async def AddWritePermOfBroker(  # noqa: N802
        self, request: pb.AddWritePermOfBrokerRequest, context: Context
    ) -> pb.AddWritePermOfBrokerResponse:
        """ADD_WRITE_PERM_OF_BROKER, 327. RocketMQ sets the permission to 6, whatever it was."""
        group = self._group(request)
        cause = _cause("AddWritePermOfBroker", context, request.comment)
        add = self._intent(IntentKind.ADD_WRITE_PERM, group, cause)
        outcome = await self._decide(lambda table: _restored(table, group, add), cause, request.validate_only)
        return pb.AddWritePermOfBrokerResponse(
            header=self._manager.header(),
            add_topic_count=self._manager.topic_count(group),
            blast_radius=_blast_radius(outcome.blast_radius),
        )

    async def DeleteTopic(  # noqa: N802
        self, request: pb.DeleteTopicRequest, context: Context
    ) -> pb.DeleteTopicResponse:
        """DELETE_TOPIC_IN_NAMESRV, 216."""
        key = _hold_key(request)
        cause = _cause("DeleteTopic", context, request.comment)
        if request.HasField("ends_at_millis") and not request.hold:
            raise InvalidField("ends_at_millis", "is set without hold: only a hold ends")
        if request.hold:
            hold = self._intent(IntentKind.TOPIC_HOLD, key, cause, self._ends_at(request))
            outcome = await self._decide(lambda table: self._held(table, hold, key), cause, request.validate_only)
        else:
            outcome = await self._writer.apply(
                self._manager.delete_topic(key.topic, key.cluster_name, cause, validate_only=request.validate_only)
            )
            if not outcome.queue_data_count:
                raise TopicNotFound(key.topic, key.cluster_name)
            if not request.validate_only:
                log_topic_deleted(key, outcome, cause, self._manager.revision)
        return pb.DeleteTopicResponse(
            header=self._manager.header(),
            removed_queue_data_count=outcome.queue_data_count,
            blast_radius=_blast_radius(outcome.blast_radius),
        )

    async def ReleaseTopicHold(  # noqa: N802
        self, request: pb.ReleaseTopicHoldRequest, context: Context
    ) -> pb.ReleaseTopicHoldResponse:
        """Lifts what DeleteTopic with hold decided; RocketMQ has no holds."""
        key = _hold_key(request)
        cause = Cause("ReleaseTopicHold", caller_of(context))
        outcome = await self._decide(lambda table: _released(table, key), cause, request.validate_only)
        return pb.ReleaseTopicHoldResponse(
            header=self._manager.header(), restored_queue_data_count=outcome.queue_data_count
        )

    async def ConfirmBrokerLoss(  # noqa: N802
        self, request: pb.ConfirmBrokerLossRequest, context: Context
    ) -> pb.ConfirmBrokerLossResponse:
        """Removes brokers that only a snapshot file or the mass-loss guard keeps; RocketMQ has neither."""
        cause = _cause("ConfirmBrokerLoss", context, request.comment)
        group = self._unconfirmed_group(request)

        def is_meant(live: BrokerLiveInfo) -> bool:
            if group is None:
                return self._manager.unconfirmed[live.key] is Unconfirmed.GUARD
            return live.broker == group

        removed, radius = await self._writer.apply(
            self._manager.confirm_broker_loss(is_meant, cause, validate_only=request.validate_only)
        )
        if not removed:
            raise _none_unconfirmed(request)
        if not request.validate_only:
            for gone in removed:
                log_removed(gone)
        return pb.ConfirmBrokerLossResponse(
            header=self._manager.header(),
            removed_broker_count=len(removed),
            blast_radius=_blast_radius(radius),
        )

    # Details

    async def _decide(self, change: IntentChange, cause: Cause, validate_only: bool) -> OperatorOutcome:
        """Makes a change, or only says what it would do."""
        return await (self._intents.preview(change) if validate_only else self._intents.change(change, cause))

    def _intent(
        self, kind: IntentKind, key: BrokerKey | HoldKey, cause: Cause, ends_at_millis: int | None = None
    ) -> Intent:
        return Intent(kind, key, cause.caller, self._intents.wall_millis(), cause.comment, ends_at_millis)

    def _group(self, request: _AboutGroup) -> BrokerKey:
        """The group that a request is about."""
        cluster_name = _cluster_name(request)
        field_rules.check_name("broker_name", request.broker_name)
        groups = self._manager.groups_named(request.broker_name, cluster_name)
        if not groups:
            raise BrokerNotRegistered(cluster_name, request.broker_name)
        return _only(groups)

    def _unconfirmed_group(self, request: pb.ConfirmBrokerLossRequest) -> BrokerKey | None:
        """The group of a request, which must have unconfirmed brokers; None if it names none."""
        cluster_name = _cluster_name(request)
        if not request.HasField("broker_name"):
            if cluster_name is not None:
                raise InvalidField("cluster_name", "is set without broker_name")
            return None
        field_rules.check_name("broker_name", request.broker_name)
        table = self._manager.tables.broker_addr_table
        named = self._manager.groups_named(request.broker_name, cluster_name)
        groups = [key for key in named if key in table and table[key].unconfirmed]
        if not groups:
            raise _none_unconfirmed(request)
        return _only(groups)

    def _ends_at(self, request: pb.WipeWritePermOfBrokerRequest | pb.DeleteTopicRequest) -> int | None:
        if not request.HasField("ends_at_millis"):
            return None
        now = self._intents.wall_millis()
        if request.ends_at_millis <= now:
            raise InvalidField("ends_at_millis", f"is {request.ends_at_millis}, must be in the future; it is {now} now")
        return request.ends_at_millis

    def _held(self, table: IntentTable, hold: Intent, key: HoldKey) -> IntentTable:
        if key not in table.intents and not self._manager.is_reported(key.topic, key.cluster_name):
            raise TopicNotFound(key.topic, key.cluster_name)
        return _decided(table, hold)


def _cause(call: str, context: Context, comment: str) -> Cause:
    if len(comment) > limits.MAX_COMMENT_LENGTH:
        raise InvalidField("comment", f"has {len(comment)} characters, at most {limits.MAX_COMMENT_LENGTH}")
    return Cause(call, caller_of(context), comment)


def _cluster_name(request: _AboutGroup | _AboutTopic) -> str | None:
    if not request.HasField("cluster_name"):
        return None
    field_rules.check_name("cluster_name", request.cluster_name)
    return request.cluster_name


def _hold_key(request: _AboutTopic) -> HoldKey:
    field_rules.check_topic("topic", request.topic)
    return HoldKey(request.topic, _cluster_name(request))


def _only(groups: list[BrokerKey]) -> BrokerKey:
    """The group of a list of groups of one name. Raises InvalidField if there are several."""
    if len(groups) > 1:
        names = ", ".join(group.cluster_name for group in groups[:CLUSTERS_NAMED])
        more = f" and {len(groups) - CLUSTERS_NAMED} more" if len(groups) > CLUSTERS_NAMED else ""
        problem = f"is missing; a group {groups[0].broker_name} is in the clusters {names}{more}: name one of them"
        raise InvalidField("cluster_name", problem)
    return groups[0]


def _decided(table: IntentTable, intent: Intent) -> IntentTable:
    """With an intent, unless the same was decided before: then that one stays, with who and when."""
    former = table.intents.get(intent.key)
    if former is not None and former.kind is intent.kind and not intent.comment:
        intent = replace(intent, comment=former.comment)  # who says nothing takes back no reason
    if former is not None and _decision(former) == _decision(intent):
        return table
    return table.with_intent(intent)


def _decision(intent: Intent) -> tuple[IntentKind, str, int | None]:
    return intent.kind, intent.comment, intent.ends_at_millis


def _restored(table: IntentTable, group: BrokerKey, add: Intent) -> IntentTable:
    """Without the wipe of a group; with write permission added where nobody has wiped it."""
    match table.of_group(group):
        case IntentKind.WIPE_WRITE_PERM:
            return table.without([group])
        case IntentKind.ADD_WRITE_PERM:
            return table
    return table.with_intent(add)


def _released(table: IntentTable, key: HoldKey) -> IntentTable:
    if key not in table.intents:
        metadata, where = {"topic": key.topic}, "all clusters"
        if key.cluster_name is not None:
            metadata["cluster_name"] = key.cluster_name
            where = f"cluster {key.cluster_name}"
        raise IntentNotFound(f"there is no hold of the topic {key.topic} in {where}", metadata)
    return table.without([key])


def _none_unconfirmed(request: pb.ConfirmBrokerLossRequest) -> IntentNotFound:
    if not request.HasField("broker_name"):
        return IntentNotFound("the mass-loss guard holds no broker")
    text = f"no broker of the group {request.broker_name} is unconfirmed"
    return IntentNotFound(text, {"broker_name": request.broker_name})


def _blast_radius(radius: BlastRadius) -> pb.BlastRadius:
    return pb.BlastRadius(
        topics_changed=radius.topics_changed,
        topics_losing_last_writable_queue=radius.losing_last_writable_queue,
        topics_vanishing=radius.vanishing,
        sample_topics=radius.sample_topics,
    )
