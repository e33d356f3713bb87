"""What becomes of kept routes: their changes reach readers, merged by topic, and the last ones are on disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from unittest import mock

import pytest
from namesrv_api.v1 import route_data_pb2 as pb

from namesrv_common.files import disk
from route_client.cache import KnownRoute, RouteChange, Stale
from route_client.disk_cache import MAX_FILE_BYTES, DiskCache, DiskWriter
from route_client.kept_routes import Listeners
from route_client.route import TopicRoute, from_wire
from tests.support.patience import TIMEOUT
from tests.support.routes.wire_routes import removal, route, wire_route

TOPIC = "TopicTest"
ONE, TWO, THREE = (route(queues=number) for number in (1, 2, 3))


def known(told: TopicRoute | None, topic: str = TOPIC, stale: Stale | None = None) -> KnownRoute:
    return KnownRoute(topic, told, stale)


def change(before: TopicRoute | None, after: TopicRoute | None, topic: str = TOPIC) -> RouteChange:
    return RouteChange(topic, known(before, topic) if before else None, known(after, topic))


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("route-client"):
            thread.join(TIMEOUT)
            assert not thread.is_alive(), f"{thread.name} is left"


def test_changes_of_a_wanted_topic_that_wait_become_one_until_closed() -> None:
    listeners = Listeners()
    buffer = listeners.changes({TOPIC, "U"})
    listeners.put(RouteChange(TOPIC, None, known(ONE), (removal(1),)))  # type: ignore[arg-type]
    listeners.put(change(TWO, THREE, "U"))
    listeners.put(change(None, ONE, "unwanted"))
    held = known(TWO, stale=Stale.HELD)
    listeners.put(RouteChange(TOPIC, known(ONE), held, (removal(2),)))  # type: ignore[arg-type]
    merged, other = next(iter(buffer)), buffer.take(0)
    assert (merged.before, merged.after) == (None, held)
    assert [gone.reason for gone in merged.removals] == [1, 2]
    assert other is not None
    assert other.topic == "U"
    assert buffer.take(0.01) is None
    listeners.put(change(None, ONE))
    buffer.close()
    listeners.put(change(ONE, TWO))
    assert list(buffer) == []


@pytest.mark.parametrize(("before", "between"), [(ONE, TWO), (ONE, None), (None, ONE)])
def test_changes_that_undo_each_other_are_not_told(before: TopicRoute | None, between: TopicRoute | None) -> None:
    buffer = Listeners().changes()
    buffer.put(change(before, between))
    buffer.put(RouteChange(TOPIC, known(between), known(before)))
    assert buffer.take(0) is None


def test_a_callback_that_raises_is_called_again_and_others_never_notice(caplog: pytest.LogCaptureFixture) -> None:
    listeners = Listeners()
    called, seen = SimpleQueue[str](), SimpleQueue[str]()

    def raises(told: RouteChange) -> None:
        called.put(told.topic)
        raise RuntimeError("of the callback")

    listeners.call(raises)
    listeners.call(lambda told: seen.put(told.topic))
    listeners.put(change(None, ONE, "T"))
    listeners.put(change(None, ONE, "U"))
    assert [queue.get(timeout=TIMEOUT) for queue in (called, called, seen, seen)] == ["T", "U", "T", "U"]
    assert listeners.close(TIMEOUT) == 0
    assert caplog.text.count("a callback for route changes raised") == 2


def test_a_callback_that_blocks_gets_one_merged_change_and_delays_nobody() -> None:
    listeners = Listeners()
    release, got = threading.Semaphore(0), SimpleQueue[RouteChange]()

    def blocks(told: RouteChange) -> None:
        got.put(told)
        assert release.acquire(timeout=TIMEOUT)

    listeners.call(blocks)
    reader = listeners.changes()
    listeners.put(change(None, ONE))
    first = got.get(timeout=TIMEOUT)
    for before, after in ((ONE, TWO), (TWO, THREE), (THREE, TWO)):
        listeners.put(change(before, after))
        told = reader.take(TIMEOUT)
        assert told is not None
        assert told.after.route == after
    release.release()
    assert [first.after.route, got.get(timeout=TIMEOUT).after.route] == [ONE, TWO]
    assert listeners.close(0.01) == 1, "it still blocks"
    release.release()


async def test_an_asynchronous_iteration_has_each_change_until_another_thread_closes_it() -> None:
    listeners = Listeners()
    changes = listeners.changes()
    async with asyncio.timeout(TIMEOUT):
        for told in (change(None, ONE), change(ONE, TWO), None):
            reading = asyncio.create_task(anext(aiter(changes), None))
            await asyncio.sleep(0)  # it waits now
            if told is None:
                await asyncio.to_thread(changes.close)
            else:
                listeners.put(told)
            assert await reading == told


def saved(queues: int = 4) -> bytes:
    return wire_route(queues=queues).SerializeToString()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "new" / "folder"


@pytest.fixture
def cache(folder: Path) -> DiskCache:
    return DiskCache(folder, "prod")


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_a_saved_route_comes_back_whole_and_none_removes_it(cache: DiskCache, folder: Path) -> None:
    wire = wire_route("broker-a", "broker-b", order="broker-a:4", zones={"broker-a": "zone-1"})
    wire.broker_datas[0].enable_acting_master = True
    wire.broker_datas[0].unconfirmed_broker_ids.append(1)
    wire.broker_datas[0].broker_addrs[1].labels["rack"] = "r1"
    wire.queue_datas[0].mapping.MergeFrom(
        pb.StaticTopicMapping(
            scope="s", total_queue_nums=4, epoch=5, dirty=True, topic_queue_ids=[0, 1], broker_queue_ids=[3, 2]
        )
    )
    wire.filter_servers.add(cluster_name="c", broker_addr="a:1", filter_servers=["f:1", "f:2"])
    for topic in (TOPIC, "%RETRY%" + "g" * 248, "a|b%c", "."):  # file systems refuse such names
        assert cache.load(topic) is None
        cache.save(topic, saved())
        cache.save(topic, wire.SerializeToString())
        assert cache.load(topic) == from_wire(wire)
        cache.save(topic, None)
        assert list(folder.iterdir()) == []


def test_a_foreign_or_changed_file_is_refused_with_a_warning_and_replaced(
    cache: DiskCache, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.save(TOPIC, saved())
    content = only_file(folder).read_bytes()
    replaced = ((b":10911", b":10912"), (b"\n", b" \n"), (TOPIC.encode(), b"Other"), (b"prod", b"test"))
    for changed in (b"{}\n", content[:-1], *(content.replace(*pair, 1) for pair in replaced)):
        only_file(folder).write_bytes(changed)
        assert cache.load(TOPIC) is None
    with only_file(folder).open("wb") as file:
        file.truncate(MAX_FILE_BYTES * 1_000)  # it is not read whole
    assert cache.load(TOPIC) is None
    assert caplog.text.count(f"the cached route of topic {TOPIC} is not used") == 7
    cache.save(TOPIC, saved())
    DiskCache(folder, "staging").save(TOPIC, saved(1))
    assert cache.load(TOPIC) == route()


def test_a_write_that_fails_is_logged_and_leaves_nothing_behind(
    cache: DiskCache, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.save(TOPIC, saved())
    path = only_file(folder)
    path.unlink()
    path.mkdir()
    cache.save(TOPIC, saved())
    cache.save(TOPIC, None)
    assert caplog.text.count("could not be cached") == 2
    assert only_file(folder) == path


def test_two_writers_of_one_folder_never_leave_half_a_file(
    cache: DiskCache, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rename = disk.rename

    def after_the_other(file: Path, target: Path) -> None:
        assert cache.load(TOPIC) == ONE, "the new one is not there yet"
        with mock.patch.object(disk, "rename", rename):
            DiskCache(folder, "prod").save(TOPIC, saved(2))
        assert cache.load(TOPIC) == TWO
        rename(file, target)

    cache.save(TOPIC, saved(1))
    with mock.patch.object(disk, "rename", side_effect=after_the_other) as renamed:
        cache.save(TOPIC, saved(3))
    renamed.assert_called_once()
    assert cache.load(TOPIC) == THREE
    assert caplog.text == ""
    assert len(list(folder.iterdir())) == 1


async def test_a_writer_that_ends_behind_a_slow_load_saves_the_latest_that_waits(cache: DiskCache) -> None:
    writer, loaded = DiskWriter(cache), threading.Event()
    with mock.patch.object(cache, "load", side_effect=lambda _topic: loaded.wait(TIMEOUT)):
        loading = asyncio.create_task(writer.load("Other"))
        await asyncio.sleep(0)
        for queues in (1, 2, 4):
            writer.save(TOPIC, saved(queues))
        ending = asyncio.create_task(writer.close(TIMEOUT))
        await asyncio.sleep(0)
        loaded.set()
        await asyncio.gather(loading, ending)
    assert cache.load(TOPIC) == route()
