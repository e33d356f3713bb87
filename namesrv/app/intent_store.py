"""The store of operators' intents: one change at a time, on disk first, then in force."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from tenacity import AsyncRetrying, retry_if_exception_type

from groundwork.backoff import Backoff
from namesrv.app.event_log import log_intents
from namesrv.app.writer import TableWriter
from namesrv.core.changes import Cause
from namesrv.core.errors import LimitExceeded, NoDataDir, NotDurable, Overloaded, ShuttingDown
from namesrv.core.model import BlastRadius, IntentTable
from namesrv.core.operator_changes import OperatorOutcome
from namesrv.core.registrations import RouteInfoManager
from namesrv.core.slices import Sliced
from namesrv.limits import MAX_INTENTS, MAX_WAITING_INTENT_CHANGES
from namesrv.storage.intents_file import IntentsFile
from namesrv.storage.ordered_commits import OrderedCommits

POLL_SECONDS = 1.0
"""Pause between two looks for intents whose time has run out. Their ends are wall-clock times, and that clock may be
set, so no timer knows when they come."""

LONGEST_RETRY_SECONDS = 60.0
"""Longest pause before an intent that could not be lifted, because the disk is full, is tried again."""

INTENT_ENDED = Cause("intent ended")

IntentChange = Callable[[IntentTable], IntentTable]
"""Makes a changed table from the current one; returns the same one if there is nothing to change. May raise
CallRefused.
"""


class IntentStore:
    """Applies changes in the order they came. The intents in force are always those on disk."""

    def __init__(
        self,
        manager: RouteInfoManager,
        writer: TableWriter,
        file: IntentsFile | None,
        wall_millis: Callable[[], int],
        max_waiting: int = MAX_WAITING_INTENT_CHANGES,
    ) -> None:
        """Loads the intents into the manager, which must be empty: intents apply to what registers later.

        Without a file, none can be put in force. Raises DataDirError if they cannot be loaded.
        """
        self.wall_millis = wall_millis
        self._manager = manager
        self._writer = writer
        self._file = file
        self._commits = OrderedCommits("intents", max_waiting)
        if file is not None:
            manager.intents = file.load()

    async def change(self, change: IntentChange, cause: Cause) -> OperatorOutcome:
        """Applies a change, and returns what it did once it is durable and in force.

        A change whose turn has come is made even if its caller goes away, because a write cannot be called back.

        Raises:
            LimitExceeded: There would be too many intents.
            NoDataDir: There is nowhere to write.
            NotDurable: The disk did not take it; nothing has changed.
            Overloaded: Too many changes wait already.
            ShuttingDown: The tables are frozen.
            CallRefused: What the change raises.
        """
        return await self._commits.run(partial(self._commit, change, cause))

    async def preview(self, change: IntentChange) -> OperatorOutcome:
        """What ``change`` would do. Changes nothing, so it needs no data directory.

        Raises:
            LimitExceeded: There would be too many intents.
            Overloaded: Too many changes of the tables wait already.
            ShuttingDown: The tables are frozen.
            CallRefused: What the change raises.
        """
        return await self._writer.apply(self._previewed(change))

    async def lift_ended(
        self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, rng: random.Random | None = None
    ) -> None:
        """Lifts intents whose time has run out. Runs until cancelled, or until the tables are frozen."""
        again = AsyncRetrying(
            retry=retry_if_exception_type((NotDurable, Overloaded)),
            wait=Backoff(2 * POLL_SECONDS, LONGEST_RETRY_SECONDS, rng=rng or random.SystemRandom()),
            sleep=sleep,
        )
        with suppress(ShuttingDown):
            while True:
                await again(self._lift_ended_once)
                await sleep(POLL_SECONDS)

    async def _lift_ended_once(self) -> None:
        if self._manager.intents.ended(self.wall_millis()):
            await self.change(self._without_ended, INTENT_ENDED)

    async def close(self, deadline_seconds: float) -> None:
        """Waits for the change under way and ends the writer thread. The tables must be frozen before."""
        await self._commits.close(deadline_seconds)

    async def _commit(self, change: IntentChange, cause: Cause) -> OperatorOutcome:
        before, after = self._manager.intents, self._changed(change)
        if self._file is None:
            raise NoDataDir
        if after is before:
            return OperatorOutcome(BlastRadius(), 0)
        await self._commits.write(self._file.save, after)
        outcome = await self._writer.apply_unbounded(self._manager.publish_intents(after, cause))
        log_intents(outcome, cause, self._manager.revision)
        return outcome

    def _previewed(self, change: IntentChange) -> Sliced[OperatorOutcome]:
        after = self._changed(change)
        return (yield from self._manager.publish_intents(after, Cause("preview"), validate_only=True))

    def _changed(self, change: IntentChange) -> IntentTable:
        if self._manager.frozen:
            raise ShuttingDown
        before = self._manager.intents
        after = change(before)
        # A file from elsewhere may be over the limit: then only changes to fewer intents are allowed.
        if len(after.intents) > max(len(before.intents), MAX_INTENTS):
            raise LimitExceeded("intents", len(after.intents), MAX_INTENTS)
        return after

    def _without_ended(self, table: IntentTable) -> IntentTable:
        ended = table.ended(self.wall_millis())
        return table.without(intent.key for intent in ended) if ended else table
