"""Warm start: what is loaded, and from when on the name server is warm."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest import mock

import pytest
from structlog.testing import capture_logs

from namesrv.app.durable_routes import WARM_CHECK_SECONDS, DurableRoutes, load_routes, watch_warm_up
from namesrv.core.warm_up import COMING_BACK_SECONDS, WarmUp
from namesrv.settings import NamesrvSettings
from namesrv.storage.database import Database
from namesrv.storage.snapshot_file import SnapshotFile
from tests.support.core_fleet import A, B, Fleet
from tests.unit.namesrv.worlds.slow_snapshot_file import SlowFile, disk, restarted, writes

__all__ = ["disk"]  # pytest finds the fixture by its name in this module


def test_what_was_written_is_loaded_and_the_log_says_how_much_and_how_old(tmp_path: Path, disk: SlowFile) -> None:
    fleet = Fleet()
    fleet.register(A, topics=["T1", "T2"])
    made = writes(fleet, disk)
    asyncio.run(made.write_last(20))
    loading = Fleet()
    loading.clock.advance(90.5)
    with capture_logs() as logs:
        load_routes(loading.state, SnapshotFile(tmp_path), loading.clock)
    assert loading.topics == {"T1", "T2"}
    assert logs == [{"event": "snapshot_loaded", "log_level": "info", "brokers": 1, "topics": 2, "age_seconds": 90.5}]


def test_without_a_file_the_start_is_cold_and_nothing_is_logged(tmp_path: Path) -> None:
    fleet, logs = restarted(tmp_path)
    assert fleet.topics == set()
    assert logs == []


def test_a_whole_file_with_something_else_in_it_is_logged_and_the_start_is_cold(tmp_path: Path) -> None:
    SnapshotFile(tmp_path).write([b"\xff"])
    fleet, logs = restarted(tmp_path)
    assert fleet.topics == set()
    assert [(line["event"], line["problem"]) for line in logs] == [
        ("snapshot_not_loaded", "a message cannot be parsed")
    ]
    fleet.register(A)
    assert fleet.topics == {"TopicTest"}


def test_it_is_said_once_that_the_name_server_is_warm() -> None:
    fleet = Fleet()
    warm_up = WarmUp(fleet.state, fleet.clock, 1.0)
    said = []

    async def on_warm() -> None:
        said.append(fleet.clock.seconds)

    async def sleep(seconds: float) -> None:
        assert said == []
        fleet.clock.advance(seconds)

    start = fleet.clock.seconds
    with capture_logs() as logs:
        asyncio.run(watch_warm_up(warm_up, on_warm, sleep))
    assert said == [pytest.approx(start + 1.0, abs=WARM_CHECK_SECONDS)]
    assert logs == [
        {"event": "namesrv_warming", "log_level": "info", "seconds": 1.0},
        {"event": "namesrv_warm", "log_level": "info"},
    ]


def test_a_name_server_that_is_warm_from_the_start_says_so_at_once() -> None:
    fleet = Fleet()
    on_warm = mock.AsyncMock()
    warm_up = WarmUp(fleet.state, fleet.clock, 0.0)
    with capture_logs() as logs:
        asyncio.run(watch_warm_up(warm_up, on_warm, mock.AsyncMock(side_effect=OSError)))
    on_warm.assert_awaited_once_with()
    assert [line["event"] for line in logs] == ["namesrv_warm"]


def test_a_warm_start_says_for_how_many_brokers_of_the_snapshot_file_it_waits() -> None:
    before = Fleet()
    before.register(A, timeout_seconds=30.0)
    before.register(B, name="broker-b")
    fleet = Fleet()
    fleet.state.load_snapshot(before.state.snapshot().messages())
    warm_up = WarmUp(fleet.state, fleet.clock, 45.0)

    async def sleep(_: float) -> None:
        fleet.clock.advance(1.0)
        fleet.register(A)
        fleet.register(B, name="broker-b")

    with capture_logs() as logs:
        asyncio.run(watch_warm_up(warm_up, mock.AsyncMock(), sleep))
    assert logs[0] == {"event": "namesrv_warming", "log_level": "info", "brokers": 2}


def life(folder: Path, *, orderly: bool, late: str | None = None) -> float:
    """Runs a name server that two brokers register with; returns after how many seconds it was warm.

    The second broker registers when the name server has written its last file, if it is late.
    """
    fleet = Fleet()
    settings = NamesrvSettings.load(None, {"warm_up_millis": "20000"})
    durable = DurableRoutes(fleet.state, fleet.clock, settings, Database(folder))
    start = fleet.clock.seconds

    async def run_to_its_end() -> float:
        await durable.begin_run()
        fleet.register(A)
        if late is None:
            fleet.register(B, name="broker-b")
        while not durable.warm_up.is_warm():
            fleet.clock.advance(0.5)
        warm_after = fleet.clock.seconds - start
        await durable.write_last_snapshot()
        if late is not None:
            fleet.register(late, name="broker-b")
        await durable.close(orderly=orderly)
        return warm_after

    return asyncio.run(run_to_its_end())


def test_after_an_orderly_end_a_name_server_is_warm_as_soon_as_the_brokers_of_its_file_are_back(tmp_path: Path) -> None:
    assert life(tmp_path, orderly=True) == 20.0
    assert life(tmp_path, orderly=False) == 0.0
    assert life(tmp_path, orderly=True) == COMING_BACK_SECONDS
    assert life(tmp_path, orderly=True) == 0.0


def test_a_file_that_lacks_a_broker_is_not_complete_after_an_orderly_end_either(tmp_path: Path) -> None:
    assert life(tmp_path, orderly=True, late=B) == 20.0
    assert life(tmp_path, orderly=True) == COMING_BACK_SECONDS
