"""What operators' calls mean, whichever protocol they come over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import structlog
from namesrv_api.v1.admin_service_pb2 import BlastRadius

from namesrv import limits
from namesrv.app.event_log import log_removed, log_topic_deleted
from namesrv.app.field_rules import ANYTHING, COMMENT, KV_NAME, NAME, PROBLEM, TOPIC, Row, check
from namesrv.app.operators import IntentEdit, Operators
from namesrv.app.writer import TableWriter
from namesrv.core.changes import Cause, SettingChange
from namesrv.core.errors import Reason, Refused, broker_not_registered, invalid_field, limit_exceeded, topic_not_found
from namesrv.core.model import (
    BrokerKey,
    BrokerLiveInfo,
    Doubt,
    HoldKey,
    Intent,
    IntentKey,
    IntentKind,
    IntentTable,
    KvConfigTable,
)
from namesrv.core.operator_changes import OperatorOutcome, TopicDeletion
from namesrv.core.removals import confirm_broker_loss, preview_broker_loss
from namesrv.core.state import RouteState
from namesrv.runtime_settings import FIELDS, text_of

MAX_CONFIG_VALUES = 100
"""Most settings in one update: more than there are. Each of them is checked on one step of the event loop."""

_CLUSTERS_NAMED = 10
"""Clusters that an error names: it travels in metadata, whose size HTTP/2 bounds."""

_VALUE = ANYTHING._replace(missing="is missing; it may be empty, but must be set")
_VALUES = ANYTHING._replace(missing="is empty; name at least one setting")

_log = structlog.get_logger(__name__)


class Expected(NamedTuple):
    """What a key must be before a change."""

    value: str | None
    """None: it must not exist."""


class Operation(NamedTuple):
    """How an operator makes a change."""

    cause: Cause
    owner: str
    """Whose work it is."""
    force: bool = True
    """Whether topics of applications may lose their last writable queue."""
    validate_only: bool = False
    """Whether to return what the change would do, and change nothing."""


class GroupOutcome(NamedTuple):
    """The outcome of an intent about a broker group."""

    outcome: OperatorOutcome
    topic_count: int
    is_registered: bool


class Administration:
    """Checks operators' calls. Operators makes their changes durable and puts them in force."""

    def __init__(self, state: RouteState, writer: TableWriter, operators: Operators) -> None:
        self._state = state
        self._writer = writer
        self._operators = operators

    # KV configuration.

    def kv_value(self, namespace: str, key: str) -> str:
        """Raises INVALID_FIELD and KV_NOT_FOUND."""
        check(*_of_key(namespace, key))
        value = self._state.kv_config.get(namespace, key)
        if value is None:
            text = f"no config item: namespace {namespace!r}, key {key!r}"
            raise Refused(Reason.KV_NOT_FOUND, text, namespace=namespace, key=key)
        return value

    def kv_entries(self, namespace: str) -> Mapping[str, str]:
        """Returns the keys and values of a namespace. Raises KV_NOT_FOUND if there are none."""
        entries = self._state.kv_config.entries(namespace)
        if not entries:
            raise Refused(Reason.KV_NOT_FOUND, f"no config item: namespace {namespace!r}", namespace=namespace)
        return entries

    async def put_kv(
        self, namespace: str, key: str, value: str | None, operation: Operation, expected: Expected | None = None
    ) -> str | None:
        """Sets a key and returns its former value.

        Raises:
            CONFLICT: The key is not as expected.
            INVALID_FIELD: A name breaks its rule, or there is no value.
            LIMIT_EXCEEDED: The value is too long.
            Refused: As ``Operators.change_kv_config``.
        """
        check(*_of_key(namespace, key), ("value", value, _VALUE))
        assert value is not None
        if (size := len(value.encode())) > limits.MAX_KV_VALUE_BYTES:
            raise limit_exceeded("bytes of value", size, limits.MAX_KV_VALUE_BYTES)

        def put(table: KvConfigTable) -> KvConfigTable:
            _check_expected(table, namespace, key, expected)
            return table.with_value(namespace, key, value)

        former = await self._operators.change_kv_config(put, operation.cause, validate_only=operation.validate_only)
        return former.get(namespace, key)

    async def delete_kv(self, namespace: str, key: str, operation: Operation, expected: Expected | None = None) -> bool:
        """Deletes a key and returns whether it existed. Raises as ``put_kv``."""
        check(*_of_key(namespace, key))

        def delete(table: KvConfigTable) -> KvConfigTable:
            _check_expected(table, namespace, key, expected)
            return table.without(namespace, key)

        former = await self._operators.change_kv_config(delete, operation.cause, validate_only=operation.validate_only)
        return former.get(namespace, key) is not None

    # Settings.

    def settings(self) -> Mapping[str, str]:
        """Returns all settings in force as texts, sorted by key."""
        return {key: text_of(self._operators.in_force.settings, key) for key in FIELDS}

    async def change_settings(self, values: Mapping[str, str], operation: Operation) -> Sequence[SettingChange]:
        """Changes settings, all or none, and returns those whose value changed. RocketMQ skips unknown keys.

        Raises:
            INVALID_FIELD: There are none.
            LIMIT_EXCEEDED: There are too many.
            Refused: As ``Operators.change_settings``.
        """
        check(("values", values or None, _VALUES))
        if len(values) > MAX_CONFIG_VALUES:
            raise limit_exceeded("settings of one update", len(values), MAX_CONFIG_VALUES)
        try:
            cause, validate_only = operation.cause, operation.validate_only
            return await self._operators.change_settings(values, cause, validate_only=validate_only)
        except Refused as error:
            if error.reason == Reason.CONFIG_KEY_DENIED:
                _log.warning("config_key_denied", key=error.metadata["key"], caller=operation.cause.caller)
            raise

    # Intents about groups and topics.

    async def wipe_write_perm(
        self, broker_name: str, cluster_name: str | None, operation: Operation, ends_at_millis: int | None = None
    ) -> GroupOutcome:
        """Takes write permission from a group. RocketMQ's wipe ends with the next registration of a new version.

        Args:
            cluster_name: The group's cluster, or None if only one cluster has a group of the name.

        Raises:
            BROKER_NOT_REGISTERED: No cluster is named, and none has the group.
            INVALID_FIELD: A field breaks its rule, or several clusters have the group.
            Refused: As ``Operators.change_intents``.
        """
        check(*_of_group(broker_name, cluster_name), self._end(ends_at_millis), _comment(operation))
        group = self._group(broker_name, cluster_name)
        wipe = self._intent(IntentKind.WIPE_WRITE_PERM, group, operation, ends_at_millis)
        return self._group_outcome(group, await self._change(lambda table: _with_intent(table, wipe), operation))

    async def add_write_perm(self, broker_name: str, cluster_name: str | None, operation: Operation) -> GroupOutcome:
        """Gives a group write permission again. Raises as ``wipe_write_perm``."""
        check(*_of_group(broker_name, cluster_name), _comment(operation))
        group = self._group(broker_name, cluster_name)
        add = self._intent(IntentKind.ADD_WRITE_PERM, group, operation)
        return self._group_outcome(group, await self._change(lambda table: _restored(table, group, add), operation))

    async def hold_topic(
        self, key: HoldKey, operation: Operation, ends_at_millis: int | None = None
    ) -> OperatorOutcome:
        """Holds a topic back from all routes. Raises as ``wipe_write_perm``."""
        check(*_of_topic(key), self._end(ends_at_millis), _comment(operation))
        hold = self._intent(IntentKind.TOPIC_HOLD, key, operation, ends_at_millis)
        return await self._change(lambda table: _with_intent(table, hold), operation)

    async def delete_topic(self, key: HoldKey, operation: Operation) -> OperatorOutcome:
        """Deletes a topic until it is reported again. Raises TOPIC_NOT_FOUND, and as ``wipe_write_perm``."""
        check(*_of_topic(key), _comment(operation))
        topic, cluster_name, (cause, owner, force, validate_only) = key.topic, key.cluster_name, operation
        deletion = TopicDeletion(self._state, topic, cluster_name, cause, validate_only, refuse_in_use=not force)
        outcome = await self._writer.apply(deletion, owner)
        if not outcome.queue_data_count:
            raise topic_not_found(topic, cluster_name)
        if not validate_only:
            log_topic_deleted(key, outcome, cause, self._state.revision)
        return outcome

    async def release_hold(self, key: HoldKey, operation: Operation) -> OperatorOutcome:
        """Lifts a hold. Raises INTENT_NOT_FOUND, and as ``wipe_write_perm``."""
        check(*_of_topic(key))
        return await self._change(lambda table: _released(table, key), operation)

    async def confirm_loss(
        self, broker_name: str | None, cluster_name: str | None, operation: Operation
    ) -> tuple[int, BlastRadius]:
        """Removes the unconfirmed brokers of a group, or without a name all that the mass-loss guard holds.

        Returns:
            The number of removed brokers, and the effect on the routes.

        Raises:
            INTENT_NOT_FOUND: There are none.
            INVALID_FIELD: A field breaks its rule, or several clusters have unconfirmed brokers of the group.
        """
        problem = "is set without broker_name" if cluster_name is not None and broker_name is None else None
        check(*_of_group(broker_name, cluster_name), ("cluster_name", problem, PROBLEM), _comment(operation))
        group = None if broker_name is None else self._unconfirmed_group(broker_name, cluster_name)

        def is_meant(live: BrokerLiveInfo) -> bool:
            if group is None:
                return self._state.doubts.get(live.key) is Doubt.GUARD
            return live.broker == group

        removed, radius = await self._writer.apply(preview_broker_loss(self._state, is_meant), operation.owner)
        if removed and not operation.validate_only:
            removed = await self._writer.apply_each(confirm_broker_loss(self._state, is_meant, operation.cause))
            log_removed(removed)
        if not removed:
            raise _none_unconfirmed(broker_name)
        return len(removed), radius

    def is_reported(self, key: IntentKey) -> bool:
        """Reports whether an intent is about something that brokers report."""
        return not self._state.is_absent(key)

    def _group_outcome(self, group: BrokerKey, outcome: OperatorOutcome) -> GroupOutcome:
        return GroupOutcome(outcome, self._state.topic_count(group), self.is_reported(group))

    async def _change(self, change: IntentEdit, operation: Operation) -> OperatorOutcome:
        cause, _, force, validate_only = operation
        return await self._operators.change_intents(change, cause, refuse_in_use=not force, validate_only=validate_only)

    def _intent(
        self, kind: IntentKind, key: IntentKey, operation: Operation, ends_at_millis: int | None = None
    ) -> Intent:
        _, caller, comment = operation.cause
        return Intent(kind, key, caller, self._operators.wall_millis(), comment, ends_at_millis)

    def _group(self, broker_name: str, cluster_name: str | None) -> BrokerKey:
        if cluster_name is not None:
            return BrokerKey(cluster_name, broker_name)
        groups = self._state.groups_named(broker_name, None)
        if not groups:
            raise broker_not_registered(None, broker_name)
        return _only(groups)

    def _unconfirmed_group(self, broker_name: str, cluster_name: str | None) -> BrokerKey:
        table = self._state.tables.broker_addr_table
        named = self._state.groups_named(broker_name, cluster_name)
        groups = [key for key in named if key in table and table[key].unconfirmed]
        if not groups:
            raise _none_unconfirmed(broker_name)
        return _only(groups)

    def _end(self, millis: int | None) -> Row:
        now = self._operators.wall_millis()
        is_over = millis is not None and millis <= now
        problem = f"is {millis}, must be in the future; it is {now} now" if is_over else None
        return "ends_at_millis", problem, PROBLEM


def _of_key(namespace: str, key: str) -> tuple[Row, ...]:
    return ("namespace", namespace, KV_NAME), ("key", key, KV_NAME)


def _comment(operation: Operation) -> Row:
    return "comment", operation.cause.comment, COMMENT


def _of_group(broker_name: str | None, cluster_name: str | None) -> tuple[Row, ...]:
    return ("cluster_name", cluster_name, NAME), ("broker_name", broker_name, NAME)


def _of_topic(key: HoldKey) -> tuple[Row, ...]:
    return ("topic", key.topic, TOPIC), ("cluster_name", key.cluster_name, NAME)


def _check_expected(table: KvConfigTable, namespace: str, key: str, expected: Expected | None) -> None:
    """Raises CONFLICT if a key is not as expected.

    Any length is compared: a value that was imported from RocketMQ may be longer than a new one.
    """
    value = table.get(namespace, key)
    if expected is None or value == expected.value:
        return
    if value is None:
        problem = "does not exist"
    elif expected.value is None:
        problem = "exists already"
    else:
        problem = "has another value than expected"
    text = f"KV configuration: {namespace!r} {key!r} {problem}; read it again"
    raise Refused(Reason.CONFLICT, text, namespace=namespace, key=key)


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
        intent = replace(intent, comment=former.comment)  # a call without a comment keeps the former one
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


def _none_unconfirmed(broker_name: str | None) -> Refused:
    if broker_name is None:
        return Refused(Reason.INTENT_NOT_FOUND, "the mass-loss guard holds no broker")
    text = f"no broker of the group {broker_name} is unconfirmed"
    return Refused(Reason.INTENT_NOT_FOUND, text, broker_name=broker_name)
