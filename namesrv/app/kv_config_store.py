"""Changes of the KV configuration: one at a time, on disk first, then in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from namesrv.core.changes import Cause
from namesrv.core.errors import LimitExceeded, NoDataDir, ShuttingDown
from namesrv.core.model import KvConfigTable
from namesrv.core.registrations import RouteInfoManager
from namesrv.limits import MAX_KV_BYTES, MAX_KV_KEYS, MAX_WAITING_KV_CHANGES
from namesrv.storage.kv_config_file import KvConfigFile
from namesrv.storage.ordered_commits import OrderedCommits

FIRST_PRINT_SECONDS = 60.0
PRINT_SECONDS = 600.0
"""Seconds to the first logging of the configuration, and the pause after that (RocketMQ:
KVConfigManager.printAllPeriodically).
"""

PRINTED_CHARACTERS = 40
"""Characters of a value that are logged."""

PRINT_SLICE = 100
"""Keys that are logged before giving way: about two milliseconds."""

KvChange = Callable[[KvConfigTable], KvConfigTable]
"""Makes a changed table from the current one; returns the same one if there is nothing to change."""

_log = structlog.get_logger(__name__)


class KvConfigStore:
    """Applies changes in the order they came. The table in memory is always the one on disk."""

    def __init__(
        self, manager: RouteInfoManager, file: KvConfigFile | None, max_waiting: int = MAX_WAITING_KV_CHANGES
    ) -> None:
        """Loads the configuration into the manager. Without a file, nothing can be changed. Raises DataDirError."""
        self._manager = manager
        self._file = file
        self._commits = OrderedCommits("kv_config", max_waiting)
        if file is not None:
            manager.kv_config = file.load()

    async def apply(self, change: KvChange, cause: Cause) -> KvConfigTable:
        """Applies a change and returns the table before it, once the one after it is durable.

        A change whose turn has come is made even if its caller goes away, because a write cannot be called back.

        Raises:
            LimitExceeded: There would be too many keys or bytes.
            NoDataDir: There is nowhere to write.
            NotDurable: The disk did not take it; nothing has changed.
            Overloaded: Too many changes wait already.
            ShuttingDown: The tables are frozen.
        """
        return await self._commits.run(partial(self._commit, change, cause))

    def preview(self, change: KvChange) -> KvConfigTable:
        """Checks a change as ``apply`` does, and returns the table that it would be applied to. Needs no file."""
        self._prepare(change)
        return self._manager.kv_config

    async def print_all_periodically(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Logs all keys, with their values shortened, again and again. Runs until cancelled."""
        pause = FIRST_PRINT_SECONDS
        while True:
            await sleep(pause)
            await self._print_all(sleep)
            pause = PRINT_SECONDS

    async def close(self, deadline_seconds: float) -> None:
        """Waits for the write under way and ends the writer thread. The tables must be frozen before."""
        await self._commits.close(deadline_seconds)

    async def _commit(self, change: KvChange, cause: Cause) -> KvConfigTable:
        before = self._manager.kv_config
        after = self._prepare(change)
        if self._file is None:
            raise NoDataDir
        if after is not before:
            await self._commits.write(self._file.save, after)
            self._manager.publish_kv_config(after, cause)
        return before

    def _prepare(self, change: KvChange) -> KvConfigTable:
        if self._manager.frozen:
            raise ShuttingDown
        before = self._manager.kv_config
        after = change(before)
        # A file from elsewhere may be over the limits: then it may only shrink.
        if after.key_count > max(before.key_count, MAX_KV_KEYS):
            raise LimitExceeded("keys of the KV configuration", after.key_count, MAX_KV_KEYS)
        if after.byte_size > max(before.byte_size, MAX_KV_BYTES):
            raise LimitExceeded("bytes of the KV configuration", after.byte_size, MAX_KV_BYTES)
        return after

    async def _print_all(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        table = self._manager.kv_config
        _log.info("kv_config", namespaces=len(table.namespaces), keys=table.key_count)
        printed = 0
        for namespace, entries in table.namespaces.items():
            for key, value in entries.items():
                _log.info("kv_config_item", namespace=namespace, key=key, value=_shortened(value))
                printed += 1
                if printed % PRINT_SLICE == 0:
                    await sleep(0)


def _shortened(value: str) -> str:
    return value if len(value) <= PRINTED_CHARACTERS else f"{value[:PRINTED_CHARACTERS]}..."
