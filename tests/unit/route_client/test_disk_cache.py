"""DiskCache: what is saved comes back, and nothing else does."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path
from unittest import mock

import pytest
from namesrv_api.v1 import route_data_pb2 as pb

from route_client.disk_cache import MAX_FILE_BYTES, DiskCache, DiskWriter
from route_client.route import from_wire
from tests.support.patience import TIMEOUT
from tests.support.routes.wire_routes import route, wire_route

TOPIC = "TopicTest"


def full_route() -> pb.TopicRouteData:
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
    return wire


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
    for topic in (TOPIC, "%RETRY%" + "g" * 248, "a|b%c", "."):  # file systems refuse such names
        assert cache.load(topic) is None
        cache.save(topic, saved())
        cache.save(topic, full_route().SerializeToString())
        assert cache.load(topic) == from_wire(full_route())
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
    other = DiskCache(folder, "prod")
    versions = range(1, 9)
    cache.save(TOPIC, saved(1))

    def write(into: DiskCache, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(200):
            into.save(TOPIC, saved(rng.choice(versions)))

    writers = [threading.Thread(target=write, args=pair) for pair in ((cache, 1), (other, 2))]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert cache.load(TOPIC) in [route(queues=number) for number in versions]
    for writer in writers:
        writer.join()
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
