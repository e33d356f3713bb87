"""What operators' calls mean, whichever protocol they come over: checked, then durable, then in force."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import structlog
from namesrv_api.v1.admin_service_pb2 import BlastRadius
from tenacity import AsyncRetrying, retry_if_exception

from namesrv import limits
from namesrv.app.event_log import log_intents, log_removed, log_topic_deleted
from namesrv.app.field_rules import ANYTHING, COMMENT, KV_NAME, NAME, PROBLEM, TOPIC, Row, check
from namesrv.app.worker import OWN, FairLock
from namesrv.app.writer import TableWriter
from namesrv.core.changes import Cause, SettingChange
from namesrv.core.errors import (
    Reason,
    Refused,
    broker_not_registered,
    invalid_field,
    limit_exceeded,
    overloaded,
    suppress_refusals,
    topic_not_found,
)
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
from namesrv.core.pace import ResultT
from namesrv.core.removals import (
    IntentsChange,
    OperatorOutcome,
    TopicDeletion,
    check_not_in_use,
    confirm_broker_loss,
    preview_broker_loss,
)
from namesrv.core.state import RouteState
from namesrv.settings import FIELDS, NamesrvSettings, text_of, with_texts
from namesrv.storage.data_dir import DataDirError
from namesrv.storage.database import Database
from namesrv.storage.tables import INTENTS, KV_CONFIG, SETTINGS
from namesrv_common.backoff import Backoff

MAX_CONFIG_VALUES = 100
"""Most settings in one update: more than there are. Each of them is checked on one step of the event loop."""

POLL_SECONDS = 1.0
"""Pause between two looks for intents whose time has run out. Their ends are wall-clock times, and that clock may be
set, so no timer knows when they come."""

LONGEST_RETRY_SECONDS = 60.0
"""Longest pause before an intent that could not be lifted, because the disk is full, is tried again."""

_CLUSTERS_NAMED = 10
"""Clusters that an error names: it travels in metadata, whose size HTTP/2 bounds."""

_ABSENT_INTENTS = "intents about groups that are not registered, or topics that no broker reports"
"""Name of the limit in errors."""

_VALUE = ANYTHING._replace(missing="is missing; it may be empty, but must be set")
_VALUES = ANYTHING._replace(missing="is empty; name at least one setting")

IntentEdit = Callable[[IntentTable], IntentTable]
"""Makes a changed table from the current one; returns the same one if there is nothing to change. May raise Refused."""

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
    """Whether to return what the change would do, and change nothing. No database is needed for that."""


INTENT_ENDED = Operation(Cause("intent ended"), OWN)


class GroupOutcome(NamedTuple):
    """The outcome of an intent about a broker group."""

    outcome: OperatorOutcome
    topic_count: int
    is_registered: bool


class Administration:
    """Makes operators' changes in the order of their calls. Intents and settings in force are always those on disk.

    Once begun, a change is made even if its caller disconnects, because a commit cannot be undone.

    Changes of intents, KV configuration and settings raise NO_DATA_DIR without a database, and NOT_DURABLE if the disk
    did not take them: then nothing has changed. They raise OVERLOADED if too many wait already, and SHUTTING_DOWN if
    the tables are frozen.
    """

    def __init__(
        self,
        state: RouteState,
        writer: TableWriter,
        database: Database | None,
        settings: NamesrvSettings,
        wall_millis: Callable[[], int],
        *,
        max_waiting: int = limits.MAX_WAITING_OPERATOR_CHANGES,
    ) -> None:
        """Loads what operators changed into the state, which must be empty: intents apply to what comes later.

        Args:
            settings: The settings of the start. What operators changed over the wire wins over flags.

        Raises:
            DataDirError: The database cannot be read, or holds a setting that could not be set over the wire.
        """
        self._state = state
        self._writer = writer
        self._database = database
        self._wall_millis = wall_millis
        self._max_waiting = max_waiting
        self._turn = FairLock()
        self.in_force = settings
        """The settings in force."""
        self.texts: Mapping[str, str] = {}
        """What operators changed over the wire, by key."""
        if database is not None:
            self.texts = database.load(SETTINGS)
            self.in_force = _with_stored(settings, self.texts, database)
            state.intents, state.kv_config = database.load(INTENTS), database.load(KV_CONFIG)
        if self.texts:
            state.behaviour = self.in_force.behaviour

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
            LIMIT_EXCEEDED: The value is too long, or there would be too many keys or bytes.
        """
        check(*_of_key(namespace, key), ("value", value, _VALUE))
        assert value is not None
        if (size := len(value.encode())) > limits.MAX_KV_VALUE_BYTES:
            raise limit_exceeded("bytes of value", size, limits.MAX_KV_VALUE_BYTES)
        return await self._change_key(namespace, key, value, operation, expected)

    async def delete_kv(self, namespace: str, key: str, operation: Operation, expected: Expected | None = None) -> bool:
        """Deletes a key and returns whether it existed. Raises as ``put_kv``."""
        check(*_of_key(namespace, key))
        return await self._change_key(namespace, key, None, operation, expected) is not None

    async def _change_key(
        self, namespace: str, key: str, value: str | None, operation: Operation, expected: Expected | None
    ) -> str | None:
        """Sets a key, or deletes it if the value is None. Returns its former value."""

        def changed(before: KvConfigTable) -> KvConfigTable:
            self._state.check_not_frozen()
            _check_expected(before, namespace, key, expected)
            after = before.without(namespace, key) if value is None else before.with_value(namespace, key, value)
            # A KV configuration imported from RocketMQ may be over the limits. Then it may only shrink.
            if after.key_count > max(before.key_count, limits.MAX_KV_KEYS):
                raise limit_exceeded("keys of the KV configuration", after.key_count, limits.MAX_KV_KEYS)
            if after.byte_size > max(before.byte_size, limits.MAX_KV_BYTES):
                raise limit_exceeded("bytes of the KV configuration", after.byte_size, limits.MAX_KV_BYTES)
            return after

        async def commit() -> str | None:
            before = self._state.kv_config
            after, database = changed(before), self._durable()
            if after is not before:
                await database.replace(KV_CONFIG, after)
                publish = partial(self._state.publish_kv_config, after, operation.cause)
                self._writer.commit_now(self._state, operation.cause.call, publish)
            return before.get(namespace, key)

        if operation.validate_only:
            changed(self._state.kv_config)
            return self._state.kv_config.get(namespace, key)
        return await self._in_turn(commit)

    # Settings.

    def settings(self) -> Mapping[str, str]:
        """Returns all settings in force as texts, sorted by key."""
        return {key: text_of(self.in_force, key) for key in FIELDS}

    async def change_settings(self, values: Mapping[str, str], operation: Operation) -> Sequence[SettingChange]:
        """Changes settings, all or none, and returns those whose value changed. RocketMQ skips unknown keys.

        A setting that gets the value that it has already is stored, too, so that it wins over a later flag, but it is
        not a change.

        Raises:
            CONFIG_KEY_DENIED: A key is not changed over the wire.
            INVALID_FIELD: There are none, a key is unknown, or a value breaks its rule.
            LIMIT_EXCEEDED: There are too many.
        """
        check(("values", values or None, _VALUES))
        if len(values) > MAX_CONFIG_VALUES:
            raise limit_exceeded("settings of one update", len(values), MAX_CONFIG_VALUES)
        try:
            if operation.validate_only:
                return self._setting_changes(with_texts(self.in_force, values), values)
            return await self._in_turn(partial(self._commit_settings, values, operation.cause))
        except Refused as error:
            if error.reason == Reason.CONFIG_KEY_DENIED:
                _log.warning("config_key_denied", key=error.metadata["key"], caller=operation.cause.caller)
            raise

    async def _commit_settings(self, values: Mapping[str, str], cause: Cause) -> Sequence[SettingChange]:
        self._state.check_not_frozen()
        after = with_texts(self.in_force, values)
        texts: Mapping[str, str] = {**self.texts, **{key: text_of(after, key) for key in values}}
        database = self._durable()
        if texts != self.texts:
            await database.replace(SETTINGS, texts)
        rows = self._setting_changes(after, values)
        self.in_force, self.texts = after, texts
        for row in rows:
            _log.info("config_changed", key=row.key, value=row.after, caller=cause.caller)
        if rows:
            publish = partial(self._state.publish_behaviour, after.behaviour, cause, rows)
            self._writer.commit_now(self._state, cause.call, publish)
        return rows

    def _setting_changes(self, after: NamesrvSettings, keys: Iterable[str]) -> tuple[SettingChange, ...]:
        rows = (SettingChange(key, text_of(self.in_force, key), text_of(after, key)) for key in sorted(keys))
        return tuple(row for row in rows if row.after != row.before)

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
            LIMIT_EXCEEDED: There would be too many intents.
            TOPICS_IN_USE: It takes topics of applications from their producers, and is not forced.
        """
        check(*_of_group(broker_name, cluster_name), self._end(ends_at_millis), _comment(operation))
        group = self._group(broker_name, cluster_name)
        wipe = self._intent(IntentKind.WIPE_WRITE_PERM, group, operation, ends_at_millis)
        return self._group_outcome(
            group, await self._change_intents(lambda table: _with_intent(table, wipe), operation)
        )

    async def add_write_perm(self, broker_name: str, cluster_name: str | None, operation: Operation) -> GroupOutcome:
        """Gives a group write permission again. Raises as ``wipe_write_perm``."""
        check(*_of_group(broker_name, cluster_name), _comment(operation))
        group = self._group(broker_name, cluster_name)
        add = self._intent(IntentKind.ADD_WRITE_PERM, group, operation)
        outcome = await self._change_intents(lambda table: _restored(table, group, add), operation)
        return self._group_outcome(group, outcome)

    async def hold_topic(
        self, key: HoldKey, operation: Operation, ends_at_millis: int | None = None
    ) -> OperatorOutcome:
        """Holds a topic back from all routes. Raises as ``wipe_write_perm``."""
        check(*_of_topic(key), self._end(ends_at_millis), _comment(operation))
        hold = self._intent(IntentKind.TOPIC_HOLD, key, operation, ends_at_millis)
        return await self._change_intents(lambda table: _with_intent(table, hold), operation)

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
        return await self._change_intents(lambda table: _released(table, key), operation)

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

    def _group_outcome(self, group: BrokerKey, outcome: OperatorOutcome) -> GroupOutcome:
        return GroupOutcome(outcome, self._state.topic_count(group), not self._state.is_absent(group))

    async def lift_ended(
        self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, rng: random.Random | None = None
    ) -> None:
        """Lifts intents whose time has run out. Runs until cancelled, or until the tables are frozen."""
        again = AsyncRetrying(
            retry=retry_if_exception(_may_pass),
            wait=Backoff(2 * POLL_SECONDS, LONGEST_RETRY_SECONDS, rng=rng or random.SystemRandom()),
            sleep=sleep,
        )
        with suppress_refusals(Reason.SHUTTING_DOWN):
            while True:
                await again(self._lift_ended_once)
                await sleep(POLL_SECONDS)

    async def _lift_ended_once(self) -> None:
        if self._state.intents.ended(self._wall_millis()):
            await self._change_intents(self._without_ended, INTENT_ENDED)

    def _without_ended(self, table: IntentTable) -> IntentTable:
        ended = table.ended(self._wall_millis())
        return table.without(intent.key for intent in ended) if ended else table

    async def _change_intents(self, change: IntentEdit, operation: Operation) -> OperatorOutcome:
        """Applies a change, and returns what it did once it is durable and in force."""
        if operation.validate_only:
            return await self._preview(self._changed_intents(change), operation)
        return await self._in_turn(partial(self._commit_intents, change, operation))

    async def _preview(self, after: IntentTable, operation: Operation) -> OperatorOutcome:
        change = IntentsChange(self._state, after, operation.cause, validate_only=True)
        return await self._writer.apply(change, operation.owner)

    async def _commit_intents(self, change: IntentEdit, operation: Operation) -> OperatorOutcome:
        before, after = self._state.intents, self._changed_intents(change)
        database = self._durable()
        if after is before:
            return OperatorOutcome(BlastRadius(), 0)
        if not operation.force:
            # Brokers that come or go while the disk takes the change are not seen. Other operators' intents are.
            check_not_in_use((await self._preview(after, operation)).in_use)
        await database.replace(INTENTS, after)
        outcome = await self._writer.apply(IntentsChange(self._state, after, operation.cause))
        log_intents(outcome, operation.cause, self._state.revision)
        return outcome

    def _changed_intents(self, change: IntentEdit) -> IntentTable:
        self._state.check_not_frozen()
        before = self._state.intents
        after = change(before)
        if len(after.intents) > limits.MAX_INTENTS:
            raise limit_exceeded("intents", len(after.intents), limits.MAX_INTENTS)
        is_absent = self._state.is_absent
        if any(key not in before.intents and is_absent(key) for key in after.intents):
            absent = sum(map(is_absent, after.intents))
            if absent > limits.MAX_ABSENT_INTENTS:
                raise limit_exceeded(_ABSENT_INTENTS, absent, limits.MAX_ABSENT_INTENTS)
        return after

    def _intent(
        self, kind: IntentKind, key: IntentKey, operation: Operation, ends_at_millis: int | None = None
    ) -> Intent:
        _, caller, comment = operation.cause
        return Intent(kind, key, caller, self._wall_millis(), comment, ends_at_millis)

    def _group(self, broker_name: str, cluster_name: str | None) -> BrokerKey:
        if cluster_name is not None:
            return BrokerKey(cluster_name, broker_name)
        return _only(self._state.groups_named(broker_name, None), broker_not_registered(None, broker_name))

    def _unconfirmed_group(self, broker_name: str, cluster_name: str | None) -> BrokerKey:
        table = self._state.tables.broker_addr_table
        named = self._state.groups_named(broker_name, cluster_name)
        groups = [key for key in named if key in table and table[key].unconfirmed]
        return _only(groups, _none_unconfirmed(broker_name))

    def _end(self, millis: int | None) -> Row:
        now = self._wall_millis()
        is_over = millis is not None and millis <= now
        problem = f"is {millis}, must be in the future; it is {now} now" if is_over else None
        return "ends_at_millis", problem, PROBLEM

    # All changes.

    async def close(self, deadline_seconds: float) -> None:
        """Waits for the change under way. The tables must be frozen before."""
        try:
            async with asyncio.timeout(deadline_seconds), self._turn.held_for(OWN):
                pass
        except TimeoutError:
            _log.warning("operator_change_unfinished")

    def _durable(self) -> Database:
        if self._database is None:
            text = "this name server has no data directory; start it with --data-dir"
            raise Refused(Reason.NO_DATA_DIR, text)
        return self._database

    async def _in_turn(self, commit: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        if self._turn.waiting > self._max_waiting:  # one of them is being made
            raise overloaded(f"{self._turn.waiting - 1} changes by operators wait for their turn already")
        await self._turn.acquire(OWN)
        task = asyncio.create_task(commit())
        task.add_done_callback(lambda _: self._turn.release())
        return await asyncio.shield(task)


def _with_stored(settings: NamesrvSettings, texts: Mapping[str, str], database: Database) -> NamesrvSettings:
    """Applies what operators changed to the settings of a start. Raises DataDirError, which says a remedy."""
    for key, value in texts.items():
        try:
            settings = with_texts(settings, {key: value})
        except Refused as error:
            problem = error.violations[0].description if error.violations else "does not change over the wire"
            take_back = f"DELETE FROM durable WHERE name = '{SETTINGS.name}' AND key = '{key}'"  # noqa: S608 - to copy
            text = f'{database.path}: setting {key}: {problem}; take it back: sqlite3 FILE "{take_back}"'
            raise DataDirError(text) from error
    for key, value in sorted(texts.items()):
        _log.info("config_override", key=key, value=value)
    return settings


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, Refused) and error.reason in {Reason.NOT_DURABLE, Reason.OVERLOADED}


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


def _only(groups: list[BrokerKey], if_none: Refused) -> BrokerKey:
    """The group of a list of groups of one name. Raises ``if_none``, or INVALID_FIELD if there are several."""
    if not groups:
        raise if_none
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
    if former is not None and replace(intent, caller=former.caller, since_millis=former.since_millis) == former:
        return table
    return table.with_intent(intent)


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
