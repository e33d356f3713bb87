"""What a start loads of the routes, and when the snapshot file and the journal are written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import structlog

from namesrv.app.worker import with_pauses
from namesrv.core.errors import Reason, suppress_refusals
from namesrv.core.snapshot import UnusableSnapshot
from namesrv.core.state import RouteState, WarmUp
from namesrv.limits import MAX_MEMORY_JOURNAL_BYTES
from namesrv.settings import NamesrvSettings
from namesrv.storage.data_dir import SnapshotFile
from namesrv.storage.database import Database, MemoryDatabase
from namesrv.storage.journal import Journal
from namesrv_common.process.shutdown import DaemonExecutor, run_step

# The use of the snapshot file: read at the start, written while the name server runs, written last at its end.

WARM_CHECK_SECONDS = 0.1
"""Pause between two looks at whether the name server is warm."""

WRITE_SECONDS = 120.0
"""How long the disk may take for a whole file. After that it is given up, as if the disk were full."""

RETRY_SECONDS = 0.5
"""Pause after a file that the disk refused, so that operators see within a second that it takes files again."""

RETRY_PAUSES = 10
"""That pause is at least so many times as long as the try: a large file that nearly fits takes seconds."""

Sleep = Callable[[float], Awaitable[None]]

_log = structlog.get_logger(__name__)


def load_routes(state: RouteState, file: SnapshotFile) -> None:
    """Puts the routes of the snapshot file into an empty state, whose intents must be in force already.

    A file that cannot be used is logged, and the start is a cold one. Blocks, so call it before anybody listens.
    """
    messages = file.load()
    if messages is None:
        return
    try:
        loaded = state.load_snapshot(messages)
    except UnusableSnapshot as problem:
        _log.warning("snapshot_not_loaded", problem=str(problem))
        return
    _log.info(
        "snapshot_loaded",
        brokers=len(loaded.last_update_millis),
        topics=loaded.topic_count,
        age_seconds=round((state.clock.wall_millis() - loaded.taken_at_millis) / 1000, 3),
    )


async def watch_warm_up(warm_up: WarmUp, on_warm: Callable[[], Awaitable[None]], sleep: Sleep = asyncio.sleep) -> None:
    """Waits until the name server is warm, announces it once, and ends. The log says what it waits for."""
    if not warm_up.is_warm():
        brokers = warm_up.brokers_to_hear()
        _log.info("namesrv_warming", **({"brokers": brokers} if brokers else {"seconds": warm_up.warm_up_seconds}))
    while not warm_up.is_warm():
        await sleep(WARM_CHECK_SECONDS)
    _log.info("namesrv_warm")
    await on_warm()


class SnapshotWrites:
    """Writes the snapshot file, from a thread of its own.

    Nothing is written before the name server serves: a later start would wait for the brokers of the file only. When
    the disk refuses the file, nothing else suffers: the problem is logged once, and it is tried again soon.
    """

    def __init__(
        self,
        state: RouteState,
        warm_up: WarmUp,
        file: SnapshotFile | None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Writes nothing yet. Without a file, all writes do nothing."""
        self._state = state
        self._warm_up = warm_up
        self._file = file
        self._written_revision = 0
        """The revision that the current file holds; 0 is the state that was loaded from it, or no file."""
        self._monotonic = monotonic
        self._held_at: float | None = None
        """When the file was last known to hold what the tables held, or else when it first should have."""
        self.problem: str | None = None
        """Why the last file could not be written; None if it could."""
        self._thread = DaemonExecutor(1, "snapshot-file")
        self._writing: asyncio.Future[None] | None = None
        """The last write, which a disk that hangs may not have ended yet."""

    @property
    def is_complete(self) -> bool:
        """Whether the file holds what the tables hold, and the tables all routes."""
        return self._warm_up.is_warm() and self._state.revision == self._written_revision

    def age_seconds(self) -> float | None:
        """Time since the file last held what the tables held, or since one was first wanted; None before."""
        return None if self._held_at is None else self._monotonic() - self._held_at

    async def write_periodically(self, interval_seconds: float, sleep: Sleep = asyncio.sleep) -> None:
        """Writes the file after each interval in which something has changed. Runs until cancelled."""
        pause = interval_seconds
        while True:
            await sleep(pause)
            began = self._monotonic()
            await self.write_if_changed(WRITE_SECONDS)
            pause = interval_seconds
            if self.problem is not None:
                pause = min(pause, max(RETRY_SECONDS, RETRY_PAUSES * (self._monotonic() - began)))

    async def write_last(self, deadline_seconds: float) -> None:
        """Writes what has changed since the last file, and ends the thread.

        The tables must be frozen before, and no stream ended yet.
        """
        await self.write_if_changed(deadline_seconds)
        self._thread.shutdown(wait=False)  # a disk that hangs must not block the shutdown

    async def write_if_changed(self, deadline_seconds: float) -> None:
        """Writes the file if the name server serves and the current file differs from the tables."""
        revision, now, file = self._state.revision, self._monotonic(), self._file
        if file is None or not self._warm_up.serves() or self._state.is_half_made:
            return
        if revision == self._written_revision:
            self._held_at = now
            return
        if self._held_at is None:
            self._held_at = now  # so that a disk that never took one is seen to fall behind, too
        try:
            async with asyncio.timeout(deadline_seconds) as deadline:
                await self._write(file)
        except OSError as error:  # running out of time is a failure of the disk, too
            over = f"the disk took longer than {deadline_seconds:g} s"
            problem = over if deadline.expired() else error.strerror or str(error)
            if problem != self.problem:
                self.problem = problem
                _log.error("snapshot_not_written", problem=problem)
        else:
            self._written_revision = revision
            self._held_at = now
            self.problem = None
            _log.debug("snapshot_written", revision=revision)

    async def _write(self, file: SnapshotFile) -> None:
        if self._writing is not None:
            await asyncio.wait([self._writing])  # or each try would leave one more to a disk that hangs
        save = partial(with_pauses, partial(file.write, self._state.snapshot().messages()))
        self._writing = asyncio.get_running_loop().run_in_executor(self._thread, save)
        await asyncio.shield(self._writing)


# All that is on disk but what operators change: the journal and the snapshot file.

LAST_WRITE_SECONDS = 5.0
"""How long the disk may take for the last writes at shutdown, each of its kind."""

LAST_STEP_SECONDS = LAST_WRITE_SECONDS + 1.0
"""Deadline of a step of the shutdown that ends with such a write."""


class DurableRoutes:
    """Journal and snapshot file. Without a data directory the journal is in memory, and there is no file."""

    def __init__(self, state: RouteState, settings: NamesrvSettings, database: Database | None) -> None:
        """Loads the routes into a state that has its intents already. Blocks.

        The name server starts without a snapshot file that cannot be loaded.
        """
        self._database = database
        self._memory: MemoryDatabase | None = None
        if database is not None and settings.journal_max_bytes:
            self.journal = Journal(database, state.identity.epoch, settings.journal_max_bytes)
        else:
            self._memory = MemoryDatabase()
            self.journal = Journal(self._memory, state.identity.epoch, MAX_MEMORY_JOURNAL_BYTES)
        state.change_log.listen(self.journal.on_change)  # from the first change on
        self.crashes: int | None = None
        """Processes on this data directory that ended without an orderly stop; None without a data directory."""
        file: SnapshotFile | None = None
        is_complete = False
        if database is not None:
            self.crashes, is_complete = database.last_run()
            file = SnapshotFile(database.folder)
            load_routes(state, file)
        self.warm_up = WarmUp(state, settings.warm_up_millis / 1000, snapshot_is_complete=is_complete)
        self.snapshots = SnapshotWrites(state, self.warm_up, file)
        self._snapshot_interval = settings.snapshot_interval_millis / 1000

    def tasks(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield self.journal.keep_writing()
        if self._database is not None:
            yield self._database.watch()
            if self._snapshot_interval:
                yield self.snapshots.write_periodically(self._snapshot_interval)

    async def begin_run(self) -> None:
        """Notes that a process runs, so that the next one can count it as crashed. Await it before serving."""
        if self._database is not None:
            with suppress_refusals(Reason.NOT_DURABLE):  # the log has it, and this run is not counted
                await self._database.begin_run()

    def data_dir_problem(self) -> str | None:
        """Why the disk refused the last commit or the last snapshot file; None if it took both, or none are kept."""
        return None if self._database is None else self._database.problem or self.snapshots.problem

    async def close(self, *, orderly: bool) -> None:
        """Writes what waits for the database. The tables must be frozen before, and the tasks cancelled.

        Args:
            orderly: Whether the process was told to stop; otherwise the next one counts a crash.
        """
        if self._memory is not None:
            self._memory.close()
        else:
            await run_step("journal", self.journal.write_last(), LAST_STEP_SECONDS)
        if self._database is not None:
            if orderly:
                ends = self._database.end_run(snapshot_is_complete=self.snapshots.is_complete)
                await run_step("run", ends, LAST_STEP_SECONDS)
            await self._database.close(LAST_WRITE_SECONDS)
