"""The contents of the data directory beside the routes in memory: loaded, kept and closed."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from namesrv.config.settings import NamesrvSettings
from namesrv.core.policy import Clock
from namesrv.core.registrations import RouteInfoManager
from namesrv.core.warm_up import WarmUp
from namesrv.server.background.table_writer import TableWriter
from namesrv.server.stores.address_claim_store import AddressClaimStore
from namesrv.server.stores.intent_store import IntentStore
from namesrv.server.stores.kv_config_store import KvConfigStore
from namesrv.server.stores.warm_start import SnapshotWrites, load_routes
from namesrv.storage.address_claims_file import AddressClaimsFile
from namesrv.storage.audit_file import AUDIT_FILE, AuditFile, RotatingFile
from namesrv.storage.data_dir import DataDir
from namesrv.storage.intents_file import IntentsFile
from namesrv.storage.kv_config_file import KvConfigFile
from namesrv.storage.snapshot_file import SnapshotFile

LAST_WRITE_SECONDS = 5.0
"""How long the disk may take for the write under way of each file at shutdown."""


class DurableRoutes:
    """KV configuration, intents, claims, the snapshot file, the audit file: none of them without a data directory."""

    def __init__(
        self,
        manager: RouteInfoManager,
        writer: TableWriter,
        clock: Clock,
        settings: NamesrvSettings,
        data_dir: DataDir | None,
    ) -> None:
        """Loads everything into an empty manager. Blocks, so call it before anybody is answered.

        Raises:
            DataDirError: KV configuration, intents or claims cannot be loaded; a snapshot file that cannot is no error.
        """
        folder = data_dir.path if data_dir else None
        self._audit_file: AuditFile | None = None
        if folder and settings.audit_file_max_bytes:
            file = RotatingFile(folder / AUDIT_FILE, settings.audit_file_max_bytes, settings.audit_file_count)
            self._audit_file = AuditFile(file, manager.identity.epoch)
            manager.change_log.listen(self._audit_file.on_change)  # from the first change on
        self.kv_config = KvConfigStore(manager, KvConfigFile(folder) if folder else None)
        self.intents = IntentStore(manager, writer, IntentsFile(folder) if folder else None, clock.wall_millis)
        self._claims = (
            AddressClaimStore(
                manager.address_claims, AddressClaimsFile(folder), manager.behaviour.address_claim_seconds
            )
            if folder
            else None
        )
        snapshot_file = SnapshotFile(folder) if folder else None
        if snapshot_file is not None:
            load_routes(manager, snapshot_file, clock)  # the intents are in force before
        self.warm_up = WarmUp(manager, clock, settings.warm_up_millis / 1000)
        self._snapshots = SnapshotWrites(manager, self.warm_up, snapshot_file) if snapshot_file else None
        self._snapshot_interval = settings.snapshot_interval_millis / 1000

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """The background work that has to run all the time."""
        tasks = [self.kv_config.print_all_periodically(), self.intents.lift_ended()]
        if self._claims is not None:
            tasks.append(self._claims.write_periodically())
        if self._audit_file is not None:
            tasks.append(self._audit_file.keep_writing())
        if self._snapshots is not None and self._snapshot_interval:
            tasks.append(self._snapshots.write_periodically(self._snapshot_interval))
        return tasks

    def snapshot_age_seconds(self) -> float | None:
        """Time since the snapshot file last held what the tables held; None without one, and before the first."""
        return None if self._snapshots is None else self._snapshots.age_seconds()

    def data_dir_problem(self) -> str | None:
        """Why the snapshot file or that of address claims could not be written; None if both could, or are not kept."""
        if self._snapshots is None or self._claims is None:
            return None
        return self._snapshots.problem or self._claims.problem

    async def write_last_snapshot(self) -> None:
        """Writes the snapshot file once more. The tables must be frozen before, and no stream ended yet."""
        if self._snapshots is not None:
            await self._snapshots.write_last(LAST_WRITE_SECONDS)

    async def close(self) -> None:
        """Waits for the writes under way. The tables must be frozen before."""
        await self.kv_config.close(LAST_WRITE_SECONDS)
        await self.intents.close(LAST_WRITE_SECONDS)
        if self._claims is not None:
            await self._claims.close(LAST_WRITE_SECONDS)
        if self._audit_file is not None:
            await self._audit_file.close(LAST_WRITE_SECONDS)
