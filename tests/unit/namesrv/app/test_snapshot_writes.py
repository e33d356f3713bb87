"""The snapshot file: when it is written, and what a disk that fails or hangs costs."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
from structlog.testing import capture_logs

from namesrv.app.durable_routes import RETRY_PAUSES, RETRY_SECONDS, SnapshotWrites
from namesrv.core.warm_up import WarmUp
from namesrv.storage import snapshot_file
from namesrv.storage.snapshot_file import SnapshotFile
from tests.support.core_fleet import A, B, Fleet
from tests.unit.namesrv.worlds.slow_snapshot_file import SlowFile, disk, ended, names, restarted, until, writes

__all__ = ["disk"]  # pytest finds the fixture by its name in this module


INTERVAL = 30.0


class Schedule:
    """Lets a task that sleeps again and again run once for each permission, and tells how long it wanted to sleep."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self._turns = asyncio.Semaphore(0)
        self._asleep = asyncio.Semaphore(0)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._asleep.release()
        await self._turns.acquire()

    async def run_once(self) -> None:
        """Ends the sleep, and waits for the next one."""
        self._turns.release()
        await self._asleep.acquire()

    @contextmanager
    def of(self, periodical: Callable[[Callable[[float], Awaitable[None]]], Any]) -> Iterator[asyncio.Task[None]]:
        task = asyncio.get_running_loop().create_task(periodical(self.sleep))
        try:
            yield task
        finally:
            task.cancel()


async def test_each_interval_writes_what_has_changed_and_nothing_if_nothing_has(tmp_path: Path, disk: SlowFile) -> None:
    fleet = Fleet()
    made = writes(fleet, disk)

    async with ended(made):
        schedule = Schedule()
        with schedule.of(lambda sleep: made.write_periodically(INTERVAL, sleep)):
            await schedule._asleep.acquire()
            await schedule.run_once()
            assert names(tmp_path) == set(), "nothing has changed since the start"
            fleet.register(A)
            await schedule.run_once()
            assert names(tmp_path) == {""}
            disk.busy.clear()
            await schedule.run_once()
            assert not disk.busy.is_set(), "nothing has changed since the write"
            fleet.register(B, 1)
            await schedule.run_once()
            assert disk.busy.is_set()
            assert set(schedule.slept) == {INTERVAL}

    assert restarted(tmp_path)[0].addrs() == {0: A, 1: B}


async def test_a_shutdown_while_warming_writes_what_changed_since_the_start(tmp_path: Path, disk: SlowFile) -> None:
    before = Fleet()
    before.register(A)
    before.register(B, name="broker-b", topics=["OfB"])
    made = writes(before, disk)
    async with ended(made):
        await made.write_if_changed(20)
    after, _ = restarted(tmp_path)
    warming = writes(after, disk)

    async with ended(warming):
        after.register(A, topics=["New"])
        after.state.frozen = True
        await warming.write_last(20)
        assert not warming.is_complete, "a broker may have registered after the file that was loaded"

    assert restarted(tmp_path)[0].topics == {"TopicTest", "New", "OfB"}


async def test_without_a_loaded_file_it_is_written_once_the_name_server_is_warm(tmp_path: Path, disk: SlowFile) -> None:
    fleet = Fleet()
    made = writes(fleet, disk, warm_up_seconds=45)

    async with ended(made):
        fleet.register(A)
        await made.write_if_changed(20)
        assert names(tmp_path) == set()
        fleet.clock.advance(45)
        await made.write_if_changed(20)
        assert names(tmp_path) == {""}


async def test_the_event_loop_runs_and_changes_go_on_while_the_disk_is_slow_and_the_file_is_of_one_revision(
    tmp_path: Path, disk: SlowFile
) -> None:
    fleet = Fleet()
    made = writes(fleet, disk)

    async with ended(made):
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


async def test_a_file_that_the_disk_refused_is_tried_again_sooner(disk: SlowFile) -> None:
    fleet = Fleet()
    fleet.register(A)
    warm_up = WarmUp(fleet.state, fleet.clock, 0.0)
    made = SnapshotWrites(fleet.state, warm_up, cast("SnapshotFile", disk), fleet.clock.monotonic)
    disk.problem = OSError(errno.ENOSPC, "No space left on device")

    async with ended(made):
        schedule = Schedule()
        with schedule.of(lambda sleep: made.write_periodically(INTERVAL, sleep)):
            await schedule._asleep.acquire()
            await schedule.run_once()
            with mock.patch.object(disk, "_operate", partial(take_seconds, fleet, 2.0, disk._operate)):
                await schedule.run_once()
            disk.problem = None
            await schedule.run_once()
        assert schedule.slept == [INTERVAL, RETRY_SECONDS, RETRY_PAUSES * 2.0, INTERVAL]


def take_seconds(fleet: Fleet, seconds: float, operate: Callable[[], None]) -> None:
    """The work of a disk that takes so long."""
    fleet.clock.advance(seconds)
    operate()


async def test_a_problem_of_the_disk_is_logged_once_while_it_lasts(tmp_path: Path, disk: SlowFile) -> None:
    fleet = Fleet()
    made = writes(fleet, disk)

    with capture_logs() as logs:
        async with ended(made):
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


async def test_a_message_that_the_file_cannot_take_leaves_the_file_before(tmp_path: Path, disk: SlowFile) -> None:
    fleet = Fleet()
    made = writes(fleet, disk)

    with capture_logs() as logs:
        async with ended(made):
            fleet.register(A)
            await made.write_if_changed(20)
            fleet.register(B, 1)
            with mock.patch.object(snapshot_file, "MAX_MESSAGE_BYTES", 100):
                await made.write_if_changed(20)
            assert restarted(tmp_path)[0].addrs() == {0: A}
            fleet.state.frozen = True
    assert [line["problem"] for line in logs if line["event"] == "snapshot_not_written"] == [mock.ANY]
    assert names(tmp_path) == {""}


async def test_a_disk_that_hangs_is_given_up_and_the_next_write_waits_for_its_end(
    tmp_path: Path, disk: SlowFile
) -> None:
    fleet = Fleet()
    made = writes(fleet, disk)

    with capture_logs() as logs:
        async with ended(made):
            fleet.register(A)
            disk.lets.clear()
            for _ in range(3):
                await made.write_if_changed(0.01)
            assert made._thread._calls.qsize() <= 1, "what is tried meanwhile does not pile up"
            disk.lets.set()
            await made.write_if_changed(20)
            assert names(tmp_path) == {""}
    assert [line["problem"] for line in logs if line["event"] == "snapshot_not_written"] == [
        "the disk took longer than 0.01 s"
    ]
    assert restarted(tmp_path)[0].addrs() == {0: A}


async def test_a_write_that_is_cancelled_at_the_shutdown_leaves_its_place_to_the_last_one(
    tmp_path: Path, disk: SlowFile
) -> None:
    fleet = Fleet()
    made = writes(fleet, disk)

    async with ended(made):
        fleet.register(A)
        disk.lets.clear()
        writing = asyncio.ensure_future(made.write_if_changed(20))
        await until(disk.busy)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        fleet.state.frozen = True
        disk.lets.set()

    assert names(tmp_path) == {""}
    assert restarted(tmp_path)[0].addrs() == {0: A}


async def test_the_file_ages_only_while_it_lacks_something(disk: SlowFile) -> None:
    fleet = Fleet()
    fleet.register(A)
    warm_up = WarmUp(fleet.state, fleet.clock, 0.0)
    made = SnapshotWrites(fleet.state, warm_up, cast("SnapshotFile", disk), fleet.clock.monotonic)

    async with ended(made):
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
