"""KvConfigStore: one change at a time, on disk first, and never different in memory and on disk."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from namesrv import limits
from namesrv.app.kv_config_store import KvChange, KvConfigStore
from namesrv.core.changes import Cause
from namesrv.core.errors import LimitExceeded, NoDataDir, NotDurable, Overloaded, ShuttingDown
from namesrv.core.model import EMPTY, KvConfigTable
from namesrv.core.registrations import RouteInfoManager
from namesrv.storage.kv_config_file import KvConfigFile
from tests.support.core_fleet import Fleet
from tests.support.fakes.held_disk import HeldDisk, until

CAUSE = Cause("test")


@pytest.fixture
def disk() -> Iterator[HeldDisk]:
    made = HeldDisk()
    yield made
    made.lets.set()  # or the writer thread would outlive a test that failed


@pytest.fixture
def manager() -> RouteInfoManager:
    return Fleet().manager


def put(key: str, value: str = "v", namespace: str = "ns") -> KvChange:
    return lambda table: table.with_value(namespace, key, value)


def delete(key: str, namespace: str = "ns") -> KvChange:
    return lambda table: table.without(namespace, key)


def on_disk(folder: Path) -> KvConfigTable:
    return KvConfigFile(folder).load()


def run(
    manager: RouteInfoManager, folder: Path, disk: HeldDisk, steps: Callable[[KvConfigStore], Awaitable[None]]
) -> None:
    """Runs steps on a store, and closes it as a shutdown does."""

    async def opened_and_closed() -> None:
        store = KvConfigStore(manager, KvConfigFile(folder, disk.write), max_waiting=2)
        try:
            await steps(store)
        finally:
            manager.frozen = True
            await store.close(20)

    asyncio.run(opened_and_closed())
    assert manager.kv_config == on_disk(folder)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kv-config")]


def test_changes_are_on_disk_when_they_are_answered_and_take_a_revision_each(
    manager: RouteInfoManager, tmp_path: Path, disk: HeldDisk
) -> None:
    async def steps(store: KvConfigStore) -> None:
        assert await store.apply(put("a"), CAUSE) is EMPTY
        assert on_disk(tmp_path).namespaces == manager.kv_config.namespaces == {"ns": {"a": "v"}}
        assert manager.revision == 1
        before = await store.apply(delete("a"), CAUSE)
        assert before.get("ns", "a") == "v"
        assert on_disk(tmp_path) == manager.kv_config == EMPTY
        assert manager.revision == 2

    run(manager, tmp_path, disk, steps)


def test_what_changes_nothing_takes_no_revision_and_no_write(
    manager: RouteInfoManager, tmp_path: Path, disk: HeldDisk
) -> None:
    async def steps(store: KvConfigStore) -> None:
        await store.apply(put("a"), CAUSE)
        disk.problem = OSError(errno.EIO, "not to be written")
        assert (await store.apply(put("a"), CAUSE)).get("ns", "a") == "v"
        await store.apply(delete("b"), CAUSE)
        assert manager.revision == 1

    run(manager, tmp_path, disk, steps)


def test_a_preview_changes_nothing(manager: RouteInfoManager, tmp_path: Path, disk: HeldDisk) -> None:
    async def steps(store: KvConfigStore) -> None:
        await store.apply(put("a"), CAUSE)
        assert store.preview(delete("a")).get("ns", "a") == "v"
        assert store.preview(put("a", "other")).get("ns", "a") == "v"
        assert (manager.revision, manager.kv_config.get("ns", "a")) == (1, "v")

    run(manager, tmp_path, disk, steps)


def test_a_disk_that_fails_changes_nothing_and_the_next_change_goes_through(
    manager: RouteInfoManager, tmp_path: Path, disk: HeldDisk
) -> None:
    async def steps(store: KvConfigStore) -> None:
        await store.apply(put("a"), CAUSE)
        disk.problem = OSError(errno.ENOSPC, "No space left on device")
        with capture_logs() as logs, pytest.raises(NotDurable, match="No space left on device"):
            await store.apply(put("b"), CAUSE)
        assert [line["event"] for line in logs] == ["kv_config_not_durable"]
        assert on_disk(tmp_path) == manager.kv_config
        assert (manager.revision, manager.kv_config.namespaces) == (1, {"ns": {"a": "v"}})
        disk.problem = None
        await store.apply(put("b"), CAUSE)
        assert manager.kv_config.namespaces == {"ns": {"a": "v", "b": "v"}}

    run(manager, tmp_path, disk, steps)


def test_the_event_loop_runs_on_and_readers_see_the_old_value_while_the_disk_is_busy(
    manager: RouteInfoManager, tmp_path: Path, disk: HeldDisk
) -> None:
    async def steps(store: KvConfigStore) -> None:
        disk.lets.clear()
        change = asyncio.create_task(store.apply(put("a"), CAUSE))
        await until(disk.busy)
        assert (manager.kv_config, manager.revision) == (EMPTY, 0)
        disk.lets.set()
        await change
        assert manager.kv_config.get("ns", "a") == "v"

    run(manager, tmp_path, disk, steps)


def test_changes_at_the_same_time_are_all_made_in_the_order_they_came(
    manager: RouteInfoManager, tmp_path: Path, disk: HeldDisk
) -> None:
    async def steps(store: KvConfigStore) -> None:
        befores = await asyncio.gather(*(store.apply(put("a", str(number)), CAUSE) for number in range(3)))
        assert [before.get("ns", "a") for before in befores] == [None, "0", "1"]
        assert (manager.kv_config.get("ns", "a"), manager.revision) == ("2", 3)

    run(manager, tmp_path, disk, steps)


def test_more_waiting_changes_than_the_limit_are_refused(
    manager: RouteInfoManager, tmp_path: Path, disk: HeldDisk
) -> None:
    async def steps(store: KvConfigStore) -> None:
        disk.lets.clear()
        writing = asyncio.create_task(store.apply(put("a"), CAUSE))
        await until(disk.busy)
        waiting = [asyncio.create_task(store.apply(put(key), CAUSE)) for key in "bc"]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await store.apply(put("d"), CAUSE)
        disk.lets.set()
        await asyncio.gather(writing, *waiting)
        assert manager.kv_config.entries("ns").keys() == {"a", "b", "c"}

    run(manager, tmp_path, disk, steps)


def test_a_change_whose_caller_goes_away_is_made_if_its_turn_has_come_and_else_not(
    manager: RouteInfoManager, tmp_path: Path, disk: HeldDisk
) -> None:
    async def steps(store: KvConfigStore) -> None:
        disk.lets.clear()
        writing = asyncio.create_task(store.apply(put("writing"), CAUSE))
        await until(disk.busy)
        waiting = asyncio.create_task(store.apply(put("waiting"), CAUSE))
        await asyncio.sleep(0)
        writing.cancel()
        waiting.cancel()
        results = await asyncio.gather(writing, waiting, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError] * 2
        disk.lets.set()
        await store.apply(put("next"), CAUSE)
        assert manager.kv_config.entries("ns").keys() == {"writing", "next"}

    run(manager, tmp_path, disk, steps)


def test_a_shutdown_waits_for_the_write_under_way_and_refuses_the_ones_behind_it(
    manager: RouteInfoManager, tmp_path: Path, disk: HeldDisk
) -> None:
    async def steps(store: KvConfigStore) -> None:
        disk.lets.clear()
        writing = asyncio.create_task(store.apply(put("a"), CAUSE))
        await until(disk.busy)
        waiting = asyncio.create_task(store.apply(put("b"), CAUSE))
        await asyncio.sleep(0)
        manager.frozen = True
        with capture_logs() as logs:
            await store.close(0.01)
        assert [line["event"] for line in logs] == ["kv_config_write_did_not_end"]
        disk.lets.set()
        await writing
        with pytest.raises(ShuttingDown):
            await waiting
        with pytest.raises(ShuttingDown):
            await store.apply(put("c"), CAUSE)
        assert manager.kv_config.entries("ns").keys() == {"a"}

    run(manager, tmp_path, disk, steps)


def test_without_a_file_the_configuration_is_empty_and_cannot_be_changed(manager: RouteInfoManager) -> None:
    async def steps() -> None:
        store = KvConfigStore(manager, None)
        for change in (put("a"), delete("a")):
            with pytest.raises(NoDataDir):
                await store.apply(change, CAUSE)
            assert store.preview(change) is EMPTY
        await store.close(20)

    asyncio.run(steps())
    assert manager.kv_config is EMPTY


def test_the_configuration_of_the_last_run_is_there_from_the_start(
    manager: RouteInfoManager, tmp_path: Path, disk: HeldDisk
) -> None:
    KvConfigFile(tmp_path).save(put("a")(EMPTY))

    async def steps(_store: KvConfigStore) -> None:
        assert manager.kv_config.get("ns", "a") == "v"
        assert manager.revision == 0

    run(manager, tmp_path, disk, steps)


@pytest.mark.parametrize("apply", [lambda store, change: store.apply(change, CAUSE), KvConfigStore.preview])
def test_keys_are_taken_up_to_the_limit_and_not_one_more(
    manager: RouteInfoManager, tmp_path: Path, disk: HeldDisk, apply: Callable[..., Awaitable[KvConfigTable] | object]
) -> None:
    KvConfigFile(tmp_path).save(KvConfigTable.of({"ns": {str(key): "" for key in range(limits.MAX_KV_KEYS - 1)}}))

    async def steps(store: KvConfigStore) -> None:
        await store.apply(put("last"), CAUSE)
        assert manager.kv_config.key_count == limits.MAX_KV_KEYS
        with pytest.raises(LimitExceeded, match="10001 is over the limit of 10000"):
            await _awaited(apply(store, put("one more")))
        await _awaited(apply(store, put("last", "new value")))

    run(manager, tmp_path, disk, steps)


@pytest.mark.parametrize("apply", [lambda store, change: store.apply(change, CAUSE), KvConfigStore.preview])
def test_bytes_are_taken_up_to_the_limit_and_not_one_more(
    manager: RouteInfoManager, tmp_path: Path, disk: HeldDisk, apply: Callable[..., Awaitable[KvConfigTable] | object]
) -> None:
    KvConfigFile(tmp_path).save(KvConfigTable.of({"ns": {"a": "x" * (limits.MAX_KV_BYTES - 8)}}))

    async def steps(store: KvConfigStore) -> None:
        await store.apply(put("b", "xx"), CAUSE)
        assert manager.kv_config.byte_size == limits.MAX_KV_BYTES
        with pytest.raises(LimitExceeded, match=f"{limits.MAX_KV_BYTES + 1} is over the limit"):
            await _awaited(apply(store, put("b", "xxx")))

    run(manager, tmp_path, disk, steps)


def test_a_file_from_elsewhere_that_is_over_the_limits_may_shrink_but_not_grow(
    manager: RouteInfoManager, tmp_path: Path, disk: HeldDisk
) -> None:
    too_many = {str(key): "x" * 250 for key in range(limits.MAX_KV_KEYS + 10)}
    KvConfigFile(tmp_path).save(KvConfigTable.of({"ns": too_many}))

    async def steps(store: KvConfigStore) -> None:
        await store.apply(put("1", "shorter"), CAUSE)
        await store.apply(delete("2"), CAUSE)
        for growth in (put("3", "x" * 5_000), put("2")):
            with pytest.raises(LimitExceeded):
                await store.apply(growth, CAUSE)

    run(manager, tmp_path, disk, steps)


def test_everything_is_logged_after_a_minute_and_every_ten_with_values_shortened(
    manager: RouteInfoManager, tmp_path: Path, disk: HeldDisk
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise asyncio.CancelledError

    async def steps(store: KvConfigStore) -> None:
        await store.apply(put("exact", "x" * 40), CAUSE)
        await store.apply(put("long", "y" * 41), CAUSE)
        with capture_logs() as logs, pytest.raises(asyncio.CancelledError):
            await store.print_all_periodically(sleep)
        items = [(line["key"], line["value"]) for line in logs if line["event"] == "kv_config_item"]
        assert items == [("exact", "x" * 40), ("long", "y" * 40 + "...")] * 2
        assert pauses == [60.0, 600.0, 600.0]

    run(manager, tmp_path, disk, steps)


async def _awaited(result: Awaitable[KvConfigTable] | object) -> None:
    if isinstance(result, Awaitable):
        await result
