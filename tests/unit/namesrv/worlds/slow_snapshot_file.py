"""A snapshot file on a slow disk, and what writes and reads it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from namesrv.app.durable_routes import SnapshotWrites, load_routes
from namesrv.core.warm_up import WarmUp
from namesrv.storage.snapshot_file import SnapshotFile
from tests.support.core_fleet import Fleet


class SlowFile:
    """A snapshot file on a disk that does each operation only while it is let, and fails if told to."""

    def __init__(self, folder: Path) -> None:
        self._file = SnapshotFile(folder)
        self.lets = threading.Event()
        self.lets.set()
        self.busy = threading.Event()
        self.problem: OSError | None = None

    def write(self, messages: Iterable[bytes]) -> None:
        self._operate()
        self._file.write(self._slowly(messages))

    def _slowly(self, messages: Iterable[bytes]) -> Iterator[bytes]:
        for message in messages:
            self._operate()
            yield message
        self._operate()

    def _operate(self) -> None:
        self.busy.set()
        assert self.lets.wait(20)
        if self.problem is not None:
            raise self.problem


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SlowFile]:
    made = SlowFile(tmp_path)
    yield made
    made.lets.set()  # or the writer thread would outlive a test that failed


def writes(fleet: Fleet, file: SlowFile, warm_up_seconds: float = 0.0) -> SnapshotWrites:
    warm_up = WarmUp(fleet.state, fleet.clock, warm_up_seconds)
    return SnapshotWrites(fleet.state, warm_up, cast("SnapshotFile", file))


@asynccontextmanager
async def ended(made: SnapshotWrites) -> AsyncIterator[None]:
    """Ends the thread as a shutdown does."""
    try:
        yield
    finally:
        await made.write_last(20)
    for thread in threading.enumerate():
        if thread.name.startswith("snapshot-file"):
            thread.join(20)
            assert not thread.is_alive()


async def until(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 20)


def restarted(folder: Path) -> tuple[Fleet, list[Any]]:
    fleet = Fleet()
    with capture_logs() as logs:
        load_routes(fleet.state, SnapshotFile(folder), fleet.clock)
    return fleet, logs


def names(folder: Path) -> set[str]:
    return {entry.name.removeprefix("routes.snapshot") for entry in folder.iterdir()}
