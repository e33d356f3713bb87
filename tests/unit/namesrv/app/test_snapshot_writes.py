"""The snapshot file: when it is written, what a disk that fails or hangs costs, what is loaded, and when it is warm."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from namesrv.app.durable_routes import (
    RETRY_PAUSES,
    RETRY_SECONDS,
    WARM_CHECK_SECONDS,
    DurableRoutes,
    SnapshotWrites,
    load_routes,
    watch_warm_up,
)
from namesrv.core.state import COMING_BACK_SECONDS, WarmUp
from namesrv.settings import NamesrvSettings
from namesrv.storage.data_dir import SnapshotFile
from namesrv.storage.database import Database
from tests.support.core_fleet import A, B, Fleet
from tests.support.fakes.busy_database import until
from tests.support.patience import TIMEOUT


class SlowFile:
    """A snapshot file on a disk that does each operation only while it is let, and fails if told to."""

    def __init__(self, folder: Path) -> None:
        self._file = SnapshotFile(folder)
        self.lets = threading.Event()
        self.lets.set()
        self.busy = threading.Event()
        self.problem: OSError | None = None
        self.takes: Callable[[], object] = lambda: None
        """Called for each operation."""

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
        self.takes()
        assert self.lets.wait(TIMEOUT)
        if self.problem is not None:
            raise self.problem


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SlowFile]:
    made = SlowFile(tmp_path)
    yield made
    made.lets.set()  # or the writer thread would outlive a test that failed


def writes(fleet: Fleet, file: SlowFile, warm_up_seconds: float = 0.0) -> SnapshotWrites:
    warm_up = WarmUp(fleet.state, warm_up_seconds)
    return SnapshotWrites(fleet.state, warm_up, cast("SnapshotFile", file), fleet.clock.monotonic)


@asynccontextmanager
async def saving(
    disk: SlowFile, fleet: Fleet | None = None, warm_up_seconds: float = 0.0
) -> AsyncIterator[tuple[Fleet, SnapshotWrites]]:
    """A fleet, and what writes its file. The thread ends as at a shutdown."""
    fleet = fleet or Fleet()
    made = writes(fleet, disk, warm_up_seconds)
    try:
        yield fleet, made
    finally:
        await made.write_last(20)
    for thread in threading.enumerate():
        if thread.name.startswith("snapshot-file"):
            thread.join(TIMEOUT)
            assert not thread.is_alive()


def restarted(folder: Path, after_seconds: float = 0.0) -> tuple[Fleet, list[Any]]:
    fleet = Fleet()
    fleet.clock.advance(after_seconds)
    with capture_logs() as logs:
        load_routes(fleet.state, SnapshotFile(folder))
    return fleet, logs


def names(folder: Path) -> set[str]:
    return {entry.name.removeprefix("routes.snapshot") for entry in folder.iterdir()}


INTERVAL = 30.0


async def test_what_has_changed_is_written_and_nothing_if_nothing_has(tmp_path: Path, disk: SlowFile) -> None:
    async with saving(disk) as (fleet, made):
        await made.write_if_changed(20)
        assert names(tmp_path) == set(), "nothing has changed since the start"
        fleet.register(A)
        await made.write_if_changed(20)
        assert names(tmp_path) == {""}
        disk.busy.clear()
        await made.write_if_changed(20)
        assert not disk.busy.is_set(), "nothing has changed since the write"
        fleet.register(B, 1)
        await made.write_if_changed(20)
        assert disk.busy.is_set()

    after, logs = restarted(tmp_path, 90.5)
    assert after.addrs() == {0: A, 1: B}
    assert logs == [{"event": "snapshot_loaded", "log_level": "info", "brokers": 2, "topics": 1, "age_seconds": 90.5}]


async def test_a_shutdown_while_warming_writes_what_changed_since_the_start(tmp_path: Path, disk: SlowFile) -> None:
    before = Fleet()
    before.register(A)
    before.register(B, name="broker-b", topics=["OfB"])
    async with saving(disk, before) as (_, made):
        await made.write_if_changed(20)
    async with saving(disk, restarted(tmp_path)[0]) as (after, warming):
        after.register(A, topics=["New"])
        after.state.frozen = True
        await warming.write_last(20)
        assert not warming.is_complete, "a broker may have registered after the file that was loaded"

    assert restarted(tmp_path)[0].topics == {"TopicTest", "New", "OfB"}


async def test_without_a_loaded_file_it_is_written_once_the_name_server_is_warm(tmp_path: Path, disk: SlowFile) -> None:
    async with saving(disk, warm_up_seconds=45) as (fleet, made):
        fleet.register(A)
        await made.write_if_changed(20)
        assert names(tmp_path) == set()
        fleet.clock.advance(45)
        await made.write_if_changed(20)
        assert names(tmp_path) == {""}


async def test_the_event_loop_runs_and_changes_go_on_while_the_disk_is_slow_and_the_file_is_of_one_revision(
    tmp_path: Path, disk: SlowFile
) -> None:
    async with saving(disk) as (fleet, made):
        fleet.register(A, topics=["T1"])
        disk.lets.clear()
        writing = asyncio.ensure_future(made.write_if_changed(20))
        await until(disk.busy)
        fleet.register(B, name="broker-b", topics=["T2"])
        disk.lets.set()
        await writing
        assert restarted(tmp_path)[0].topics == {"T1"}
        await made.write_if_changed(20)
        assert restarted(tmp_path)[0].topics == {"T1", "T2"}


async def test_each_interval_writes_and_a_file_that_the_disk_refused_is_tried_sooner(
    tmp_path: Path, disk: SlowFile
) -> None:
    slept: list[float] = []
    disk.problem = OSError(errno.ENOSPC, "No space left on device")
    async with saving(disk) as (fleet, made):

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            if len(slept) == 2:
                disk.takes = partial(fleet.clock.advance, 2.0)
            if len(slept) == 3:
                disk.problem = None
            if len(slept) == 4:
                raise asyncio.CancelledError

        fleet.register(A)
        with pytest.raises(asyncio.CancelledError):
            await made.write_periodically(INTERVAL, sleep)
        assert slept == [INTERVAL, RETRY_SECONDS, RETRY_PAUSES * 2.0, INTERVAL]
        assert names(tmp_path) == {""}


async def test_a_problem_of_the_disk_is_logged_once_while_it_lasts(tmp_path: Path, disk: SlowFile) -> None:
    with capture_logs() as logs:
        async with saving(disk) as (fleet, made):
            fleet.register(A)
            for problem in (errno.ENOSPC, errno.ENOSPC, errno.EROFS, None, errno.EROFS):
                disk.problem = problem and OSError(problem, f"problem {problem}")  # type: ignore[assignment]
                await made.write_if_changed(20)
                assert fleet.topics == {"TopicTest"}
                if problem is None:
                    fleet.register(B, 1)
            disk.problem = None
    problems = [line["problem"] for line in logs if line["event"] == "snapshot_not_written"]
    assert problems == [f"problem {errno.ENOSPC}", f"problem {errno.EROFS}", f"problem {errno.EROFS}"]
    assert restarted(tmp_path)[0].addrs() == {0: A, 1: B}


async def test_a_disk_that_hangs_is_given_up_and_the_next_write_waits_for_its_end(
    tmp_path: Path, disk: SlowFile
) -> None:
    with capture_logs() as logs:
        async with saving(disk) as (fleet, made):
            fleet.register(A)
            disk.lets.clear()
            for _ in range(3):
                await made.write_if_changed(0.01)
            assert made._thread._calls.qsize() <= 1, "what is tried meanwhile does not pile up"
            disk.lets.set()
            await made.write_if_changed(20)
            assert names(tmp_path) == {""}
    expected = ["the disk took longer than 0.01 s"]
    assert [line["problem"] for line in logs if line["event"] == "snapshot_not_written"] == expected
    assert restarted(tmp_path)[0].addrs() == {0: A}


async def test_the_file_ages_only_while_it_lacks_something(disk: SlowFile) -> None:
    async with saving(disk) as (fleet, made):
        fleet.register(A)
        assert made.age_seconds() is None
        await made.write_if_changed(20)
        assert made.age_seconds() == 0.0
        fleet.clock.advance(100)
        await made.write_if_changed(20)  # nothing has changed
        assert made.age_seconds() == 0.0
        fleet.register(B)
        disk.problem = OSError(errno.ENOSPC, "No space left on device")
        fleet.clock.advance(30)
        await made.write_if_changed(20)
        assert made.age_seconds() == 30.0
        disk.problem = None
        await made.write_if_changed(20)
        assert made.age_seconds() == 0.0


def test_a_whole_file_with_something_else_in_it_is_logged_and_the_start_is_cold(tmp_path: Path) -> None:
    SnapshotFile(tmp_path).write([b"\xff"])
    fleet, logs = restarted(tmp_path)
    assert fleet.topics == set()
    expected = [("snapshot_not_loaded", "a message cannot be parsed")]
    assert [(line["event"], line["problem"]) for line in logs] == expected
    fleet.register(A)
    assert fleet.topics == {"TopicTest"}


@pytest.mark.parametrize(
    ("brokers", "seconds", "told"), [((), 0.0, None), ((), 1.0, {"seconds": 1.0}), ((A, B), 1.0, {"brokers": 2})]
)
async def test_it_is_said_what_the_warm_up_waits_for_and_once_that_it_is_over(
    brokers: tuple[str, ...], seconds: float, told: dict[str, float] | None
) -> None:
    before, fleet, said = Fleet(), Fleet(), list[float]()
    for addr in brokers:
        before.register(addr, name=f"broker-{addr}", timeout_seconds=1.0)
    fleet.state.load_snapshot(before.state.snapshot().messages())
    warm_up, start = WarmUp(fleet.state, seconds), fleet.clock.seconds

    async def sleep(pause: float) -> None:
        fleet.clock.advance(pause)
        fleet.scan()

    async def on_warm() -> None:
        said.append(fleet.clock.seconds - start)

    with capture_logs() as logs:
        await watch_warm_up(warm_up, on_warm, sleep)
    assert said == [pytest.approx(seconds, abs=2 * WARM_CHECK_SECONDS)]
    warming = [{"event": "namesrv_warming", "log_level": "info", **told}] if told else []
    assert logs == [*warming, {"event": "namesrv_warm", "log_level": "info"}]


async def life(folder: Path, *, orderly: bool, late: str | None = None) -> float:
    """Runs a name server that two brokers register with; returns after how many seconds it was warm.

    The second broker registers when the name server has written its last file, if it is late.
    """
    fleet = Fleet()
    settings = NamesrvSettings.load(None, {"warm_up_millis": "20000"})
    durable = DurableRoutes(fleet.state, settings, Database(folder))
    start = fleet.clock.seconds
    await durable.begin_run()
    fleet.register(A)
    if late is None:
        fleet.register(B, name="broker-b")
    while not durable.warm_up.is_warm():
        fleet.clock.advance(0.5)
    warm_after = fleet.clock.seconds - start
    await durable.snapshots.write_last(20)
    if late is not None:
        fleet.register(late, name="broker-b")
    await durable.close(orderly=orderly)
    return warm_after


async def test_after_an_orderly_end_a_name_server_is_warm_as_soon_as_the_brokers_of_its_file_are_back(
    tmp_path: Path,
) -> None:
    assert await life(tmp_path, orderly=True) == 20.0
    assert await life(tmp_path, orderly=False) == 0.0
    assert await life(tmp_path, orderly=True) == COMING_BACK_SECONDS
    assert await life(tmp_path, orderly=True) == 0.0


async def test_a_file_that_lacks_a_broker_is_not_complete_after_an_orderly_end_either(tmp_path: Path) -> None:
    assert await life(tmp_path, orderly=True, late=B) == 20.0
    assert await life(tmp_path, orderly=True) == COMING_BACK_SECONDS
