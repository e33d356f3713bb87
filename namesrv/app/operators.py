"""Operators' changes of intents, KV configuration and settings: one at a time, durable first, then in force."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import structlog
from namesrv_api.v1.admin_service_pb2 import BlastRadius
from tenacity import AsyncRetrying, retry_if_exception

from namesrv.app.event_log import log_intents
from namesrv.app.fair_queue import OWN, FairLock
from namesrv.app.writer import TableWriter
from namesrv.core.changes import Cause, SettingChange
from namesrv.core.errors import Reason, Refused, limit_exceeded, overloaded
from namesrv.core.model import IntentTable, KvConfigTable
from namesrv.core.operator_changes import IntentsChange, OperatorOutcome, check_not_in_use, publish_kv_config
from namesrv.core.state import RouteState
from namesrv.limits import MAX_ABSENT_INTENTS, MAX_INTENTS, MAX_KV_BYTES, MAX_KV_KEYS, MAX_WAITING_OPERATOR_CHANGES
from namesrv.runtime_settings import text_of, with_texts
from namesrv.settings import NamesrvSettings
from namesrv.storage.data_dir import DataDirError
from namesrv.storage.database import Database
from namesrv.storage.tables import INTENTS, KV_CONFIG, SETTINGS
from namesrv_common.backoff import Backoff
from namesrv_common.errors import suppress_refusals

POLL_SECONDS = 1.0
"""Pause between two looks for intents whose time has run out. Their ends are wall-clock times, and that clock may be
set, so no timer knows when they come."""

LONGEST_RETRY_SECONDS = 60.0
"""Longest pause before an intent that could not be lifted, because the disk is full, is tried again."""

INTENT_ENDED = Cause("intent ended")

ABSENT_INTENTS = "intents about groups that are not registered, or topics that no broker reports"
"""Name of the limit in errors."""

IntentEdit = Callable[[IntentTable], IntentTable]
KvEdit = Callable[[KvConfigTable], KvConfigTable]
"""Each makes a changed table from the current one; returns the same one if there is nothing to change. It may raise
Refused."""

ApplySettings = Callable[[NamesrvSettings, Sequence[SettingChange], Cause], None]
"""Puts changed settings in force, given the keys whose value changed. It runs on the event loop: it must be quick and
must not raise."""

ResultT = TypeVar("ResultT")

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class SettingsInForce:
    """The settings of a name server that runs."""

    settings: NamesrvSettings
    texts: Mapping[str, str] = field(default_factory=dict)
    """What operators changed over the wire, by key. It wins over flags."""


def stored_settings(settings: NamesrvSettings, database: Database | None) -> SettingsInForce:
    """Applies what operators changed to the settings of a start.

    Raises:
        DataDirError: The database holds a key or a value that could not be set over the wire.
    """
    if database is None:
        return SettingsInForce(settings)
    texts, changed = database.load(SETTINGS), settings
    for key, value in texts.items():
        try:
            changed = with_texts(changed, {key: value})
        except Refused as error:
            problem = error.violations[0].description if error.violations else "does not change over the wire"
            take_back = f"DELETE FROM durable WHERE name = '{SETTINGS.name}' AND key = '{key}'"  # noqa: S608 - to copy
            text = f'{database.path}: setting {key}: {problem}; take it back: sqlite3 FILE "{take_back}"'
            raise DataDirError(text) from error
    for key, value in sorted(texts.items()):
        _log.info("config_override", key=key, value=value)
    return SettingsInForce(changed, texts)


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, Refused) and error.reason in {Reason.NOT_DURABLE, Reason.OVERLOADED}


class Operators:
    """Applies changes in the order of their calls. The intents and settings in force are always those of the database.

    Once begun, a change is made even if its caller disconnects, because a commit cannot be undone. With
    ``validate_only`` a change is checked and its result returned, and nothing else happens: no database is needed.

    Each change raises what its function raises. It raises NO_DATA_DIR without a database, and NOT_DURABLE if the disk
    did not take it: then nothing has changed. It raises OVERLOADED if too many wait already, and SHUTTING_DOWN if
    the tables are frozen.
    """

    def __init__(
        self,
        state: RouteState,
        writer: TableWriter,
        database: Database | None,
        in_force: SettingsInForce,
        *,
        apply_settings: ApplySettings,
        wall_millis: Callable[[], int],
        max_waiting: int = MAX_WAITING_OPERATOR_CHANGES,
    ) -> None:
        """Loads intents and KV configuration into the state, which must be empty: intents apply to what comes later.

        Raises DataDirError.
        """
        self.wall_millis = wall_millis
        self._state = state
        self._writer = writer
        self._database = database
        self._apply_settings = apply_settings
        self.in_force = in_force
        self._max_waiting = max_waiting
        self._turn = FairLock()
        if database is not None:
            self._state.intents = database.load(INTENTS)
            self._state.kv_config = database.load(KV_CONFIG)

    # Intents.

    async def change_intents(
        self, change: IntentEdit, cause: Cause, *, refuse_in_use: bool = False, validate_only: bool = False
    ) -> OperatorOutcome:
        """Applies a change, and returns what it did once it is durable and in force.

        Args:
            refuse_in_use: Whether to refuse what takes topics of applications from their producers. Brokers that come
                or go while the disk takes the change are not seen; other operators' intents are.

        Raises:
            LIMIT_EXCEEDED: There would be too many intents.
            TOPICS_IN_USE: With ``refuse_in_use`` and without ``validate_only``.
        """
        if validate_only:
            return await self._preview(self._changed_intents(change))
        return await self._in_turn(partial(self._commit_intents, change, cause, refuse_in_use=refuse_in_use))

    async def _preview(self, after: IntentTable) -> OperatorOutcome:
        return await self._writer.apply(IntentsChange(self._state, after, Cause("preview"), validate_only=True), OWN)

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
        if self._state.intents.ended(self.wall_millis()):
            await self.change_intents(self._without_ended, INTENT_ENDED)

    async def _commit_intents(self, change: IntentEdit, cause: Cause, *, refuse_in_use: bool) -> OperatorOutcome:
        before, after = self._state.intents, self._changed_intents(change)
        database = self._durable()
        if after is before:
            return OperatorOutcome(BlastRadius(), 0)
        if refuse_in_use:
            check_not_in_use((await self._preview(after)).in_use)
        await database.replace(INTENTS, after)
        outcome = await self._writer.apply_own(IntentsChange(self._state, after, cause))
        log_intents(outcome, cause, self._state.revision)
        return outcome

    def _changed_intents(self, change: IntentEdit) -> IntentTable:
        self._state.check_not_frozen()
        before = self._state.intents
        after = change(before)
        if len(after.intents) > MAX_INTENTS:
            raise limit_exceeded("intents", len(after.intents), MAX_INTENTS)
        is_absent = self._state.is_absent
        if any(key not in before.intents and is_absent(key) for key in after.intents):
            absent = sum(map(is_absent, after.intents))
            if absent > MAX_ABSENT_INTENTS:
                raise limit_exceeded(ABSENT_INTENTS, absent, MAX_ABSENT_INTENTS)
        return after

    def _without_ended(self, table: IntentTable) -> IntentTable:
        ended = table.ended(self.wall_millis())
        return table.without(intent.key for intent in ended) if ended else table

    # KV configuration.

    async def change_kv_config(self, change: KvEdit, cause: Cause, *, validate_only: bool = False) -> KvConfigTable:
        """Applies a change and returns the table before it, once the one after it is durable.

        Raises LIMIT_EXCEEDED if there would be too many keys or bytes.
        """
        if validate_only:
            self._changed_kv_config(change)
            return self._state.kv_config
        return await self._in_turn(partial(self._commit_kv_config, change, cause))

    async def _commit_kv_config(self, change: KvEdit, cause: Cause) -> KvConfigTable:
        before, after = self._state.kv_config, self._changed_kv_config(change)
        database = self._durable()
        if after is not before:
            await database.replace(KV_CONFIG, after)
            publish = partial(publish_kv_config, self._state, after, cause)
            self._writer.commit_now(self._state, cause.call, publish)
        return before

    def _changed_kv_config(self, change: KvEdit) -> KvConfigTable:
        self._state.check_not_frozen()
        before = self._state.kv_config
        after = change(before)
        # A KV configuration imported from RocketMQ may be over the limits. Then it may only shrink.
        if after.key_count > max(before.key_count, MAX_KV_KEYS):
            raise limit_exceeded("keys of the KV configuration", after.key_count, MAX_KV_KEYS)
        if after.byte_size > max(before.byte_size, MAX_KV_BYTES):
            raise limit_exceeded("bytes of the KV configuration", after.byte_size, MAX_KV_BYTES)
        return after

    # Settings.

    async def change_settings(
        self, values: Mapping[str, str], cause: Cause, *, validate_only: bool = False
    ) -> tuple[SettingChange, ...]:
        """Changes settings, all or none, and returns the ones whose value changed once they are durable.

        A setting that gets the value that it has already is stored, too, so that it wins over a later flag, but it is
        not a change.

        Raises:
            CONFIG_KEY_DENIED: A key is not changed over the wire.
            INVALID_FIELD: A key is unknown, or a value breaks its rule.
        """
        if validate_only:
            return self._changed_settings(with_texts(self.in_force.settings, values), values)
        return await self._in_turn(partial(self._commit_settings, values, cause))

    async def _commit_settings(self, values: Mapping[str, str], cause: Cause) -> tuple[SettingChange, ...]:
        self._state.check_not_frozen()
        after = with_texts(self.in_force.settings, values)
        texts: Mapping[str, str] = {**self.in_force.texts, **{key: text_of(after, key) for key in values}}
        database = self._durable()
        if texts != self.in_force.texts:
            await database.replace(SETTINGS, texts)
        rows = self._changed_settings(after, values)
        self.in_force.settings, self.in_force.texts = after, texts
        if rows:
            for row in rows:
                _log.info("config_changed", key=row.key, value=row.after, caller=cause.caller)
            self._writer.commit_now(self._state, cause.call, partial(self._apply_settings, after, rows, cause))
        return rows

    def _changed_settings(self, after: NamesrvSettings, keys: Iterable[str]) -> tuple[SettingChange, ...]:
        before = self.in_force.settings
        rows = (SettingChange(key, text_of(before, key), text_of(after, key)) for key in sorted(keys))
        return tuple(row for row in rows if row.after != row.before)

    # All changes.

    async def close(self, deadline_seconds: float) -> None:
        """Waits for the change under way. The tables must be frozen before."""
        try:
            async with asyncio.timeout(deadline_seconds), self._turn.held_for(OWN):
                pass
        except TimeoutError:
            _log.warning("operators_change_did_not_end")

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
