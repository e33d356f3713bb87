"""Kept routes: what answers change, the addresses of brokers, the readers of changes, and routes on disk."""

from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from namesrv_api.v1 import route_data_pb2 as pb

from namesrv_common.files import disk
from route_client import cache as route_cache
from route_client.cache import (
    Answer,
    BrokerAddrTable,
    KnownRoute,
    Origin,
    Removal,
    RouteCache,
    RouteChange,
    RoutesTooLarge,
    Stale,
    any_broker_of,
)
from route_client.disk_cache import MAX_FILE_BYTES, DiskCache, DiskWriter
from route_client.kept_routes import Listeners
from route_client.queues import publish_info
from route_client.route import GroupKey, TopicRoute, from_wire
from tests.support.patience import TIMEOUT
from tests.support.routes.wire_routes import CLUSTER, NS_A, NS_B, addr, answer, removal, route, wire_route
from tests.support.virtual_clock import VirtualClock

TOPIC = "TopicTest"
BOTH = route(ids=(0, 1))
ONLY_SLAVE = route(ids=(1,))
HOLD_SECONDS = 120.0


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def cache(clock: VirtualClock) -> RouteCache:
    return RouteCache(HOLD_SECONDS, clock)


def shown(cache: RouteCache) -> tuple[TopicRoute | None, Stale | None]:
    known = cache.get(TOPIC)
    assert known is not None
    return known.route, known.stale


@pytest.mark.parametrize("empty", [None, TopicRoute(), route(ids=())], ids=["no topic", "no groups", "no addresses"])
def test_an_unexplained_loss_is_held_back_until_a_return_or_its_time(
    cache: RouteCache, clock: VirtualClock, empty: TopicRoute | None
) -> None:
    cache.offer(answer(BOTH, 1))
    held = cache.offer(answer(empty, 2))
    assert held is not None
    assert held.after.stale is Stale.HELD
    assert shown(cache) == (BOTH, Stale.HELD)
    assert cache.next_hold_ends() == clock.seconds + HOLD_SECONDS
    averted = cache.offer(answer(BOTH, 3))
    assert averted is not None
    assert averted.before is not None
    assert (averted.before.stale, averted.after.stale) == (Stale.HELD, None)
    clock.advance(HOLD_SECONDS)
    assert cache.expire_holds() == []

    cache.offer(answer(empty, 4))
    ends = cache.next_hold_ends()
    clock.advance(60)
    assert cache.offer(answer(None, 5)) is None
    assert cache.offer(answer(empty, 1, NS_B)) is None
    assert (cache.next_hold_ends(), cache.held_topics()) == (ends, (TOPIC,))
    clock.advance(HOLD_SECONDS - 60.001)
    assert cache.expire_holds() == []
    clock.advance(0.001)
    ((_, taken),) = cache.expire_holds()
    assert (taken.after.route, taken.after.origin) == (empty, NS_B)
    assert shown(cache) == (empty, None)
    assert (cache.held_topics(), cache.next_hold_ends()) == ((), None)
    counters = cache.counters
    assert (counters.held, counters.holds_averted, counters.holds_expired) == (2, 1, 1)


ONLY_SILENT = {"UNSPECIFIED", "CHANNEL_CLOSED", "EXPIRED", "GROUP_GONE", "4711"}


@pytest.mark.parametrize("reason", [*pb.RemovalReason.values(), 4711])
def test_a_loss_is_held_back_if_nothing_is_heard_of_one_broker_until_more_is(cache: RouteCache, reason: int) -> None:
    cache.offer(answer(BOTH, 1))
    unregistered, other = removal(pb.REMOVAL_REASON_UNREGISTERED), Removal(GroupKey(CLUSTER, "broker-a"), 1, "", reason)
    cache.offer(answer(None, 2, removals=(unregistered, other)))
    is_held = other.reason_name in ONLY_SILENT
    assert shown(cache) == ((BOTH, Stale.HELD) if is_held else (None, None))
    assert cache.counters.held == is_held
    cache.offer(answer(None, 3, removals=(unregistered, replace(unregistered, broker_id=1))))
    assert (shown(cache), cache.counters.holds_averted) == ((None, None), 0)


@pytest.mark.parametrize("other", [NS_B, Origin("ns-a", "0000"), Origin("ns-a", "0002")])
def test_an_older_revision_is_believed_only_of_another_origin(cache: RouteCache, other: Origin) -> None:
    assert cache.offer(answer(BOTH, 6)) == RouteChange(TOPIC, None, KnownRoute(TOPIC, BOTH, None, NS_A, 6))
    assert cache.offer(answer(BOTH, 7)) is None, "nothing has changed"
    assert cache.offer(answer(ONLY_SLAVE, 6)) is None
    assert (shown(cache), cache.counters.answers, cache.counters.outdated) == ((BOTH, None), 2, 1)
    cache.offer(answer(ONLY_SLAVE, 1, other))
    assert shown(cache) == (ONLY_SLAVE, None)
    cache.offer(answer(BOTH, 2))
    cache.offer(answer(None, 9))
    assert cache.offer(answer(BOTH, 8)) is None
    assert shown(cache) == (BOTH, Stale.HELD)


def test_a_route_from_disk_is_stale_until_a_name_server_says_something(cache: RouteCache) -> None:
    assert cache.restore(TOPIC, BOTH) is not None
    assert shown(cache) == (BOTH, Stale.FROM_DISK)
    change = cache.offer(answer(BOTH, 1))
    assert change is not None, "the user can see that it is not stale any more"
    assert shown(cache) == (BOTH, None)
    assert cache.restore(TOPIC, ONLY_SLAVE) is None
    assert shown(cache) == (BOTH, None)
    cache.forget(TOPIC)
    assert (cache.get(TOPIC), cache.brokers.find_in_publish("broker-a")) == (None, None)
    cache.restore(TOPIC, BOTH)
    cache.offer(answer(None, 1))
    assert shown(cache) == (BOTH, Stale.HELD)


STEPS = st.one_of(
    st.tuples(st.just("answer"), st.sampled_from([BOTH, ONLY_SLAVE, None]), st.sampled_from([NS_A, NS_B])),
    st.tuples(st.just("cut off"), st.booleans()),
    st.tuples(st.just("wait")),
    st.tuples(st.just("from disk")),
)


@given(st.lists(STEPS, max_size=12))
def test_each_change_begins_where_the_one_before_ended(steps: list[tuple[Any, ...]]) -> None:
    clock = VirtualClock()
    cache = RouteCache(HOLD_SECONDS, clock)
    told: tuple[TopicRoute | None, Stale | None] = None, None
    for number, step in enumerate(steps):
        changes: list[RouteChange | None]
        match step:
            case "answer", found, origin:
                changes = [cache.offer(answer(found, number, origin))]
            case "cut off", is_cut_off:
                changes = [*cache.set_cut_off(is_cut_off)]
            case ("wait",):
                clock.advance(HOLD_SECONDS)
                changes = [change for _, change in cache.expire_holds()]
            case _:
                changes = [cache.restore(TOPIC, BOTH)]
        for change in filter(None, changes):
            assert (change.old_route, None if change.before is None else change.before.stale) == told
            told = change.new_route, change.after.stale
        known = cache.get(TOPIC)
        assert told[0] == (None if known is None else known.route)
        assert cache.brokers.find_in_publish("broker-a") == (addr() if told[0] == BOTH else None)
        if known is not None and known.route is not None:
            assert told == shown(cache)


def test_a_route_is_not_taken_where_all_routes_would_be_too_large(cache: RouteCache, clock: VirtualClock) -> None:
    def sized(told: TopicRoute | None, encoded_bytes: int, topic: str = TOPIC) -> Answer:
        return replace(answer(told), topic=topic, encoded_bytes=encoded_bytes)

    with mock.patch.object(route_cache, "MAX_ROUTE_BYTES", 100):
        cache.offer(sized(BOTH, 60))
        problem = "the route of topic 'Other' from ns-a: all routes would have 101 bytes, over the limit of 100"
        with pytest.raises(RoutesTooLarge, match=f"^{problem}$"):
            cache.offer(sized(BOTH, 41, "Other"))
        assert cache.get("Other") is None
        cache.offer(sized(ONLY_SLAVE, 100))  # instead of the 60
        assert shown(cache) == (ONLY_SLAVE, None)
        cache.offer(sized(TopicRoute(), 100))  # it is held back, and both count
        with pytest.raises(RoutesTooLarge):
            cache.offer(sized(BOTH, 1, "Other"))
        assert cache.offer(sized(None, 0, "Other")) is None
        clock.advance(HOLD_SECONDS)
        cache.expire_holds()
        cache.forget(TOPIC)
        cache.offer(sized(BOTH, 100, "Other"))


def test_scenario_79_the_next_id_or_any_other_stands_in_for_a_slave() -> None:
    table = BrokerAddrTable()
    for kept in (TopicRoute(), route("broker-a", ids=(0, 2)), route("broker-b", ids=(1, 2))):
        table.replace(None, kept)
    found = table.find_in_subscribe("broker-a", 1)
    assert found == (addr("broker-a", 2), 2)
    assert found is not None
    assert found.slave
    assert table.find_in_subscribe("nobody", 1) is None
    assert table.find_in_subscribe("broker-a", 0) == (addr("broker-a", 0), 0)
    assert table.find_in_subscribe("broker-a", 2) == (addr("broker-a", 2), 2)
    assert table.find_in_subscribe("broker-b", 0) == (addr("broker-b", 1), 1)
    assert table.find_in_subscribe("broker-a", 7) == (addr("broker-a", 0), 0)
    assert table.find_in_subscribe("broker-b", 0, only_this_broker=True) is None
    assert table.find_in_subscribe("broker-a", 1, only_this_broker=True) == (addr("broker-a", 2), 2)

    # Messages are sent to the master that the last change named.
    (queue,) = publish_info(TOPIC, route(order="broker-a:1")).queues
    for cluster in (None, CLUSTER, queue.cluster_name):
        assert table.find_in_publish("broker-a", cluster) == addr("broker-a", 0)
    assert table.find_in_publish("broker-a", "OtherCluster") is None
    assert table.find_in_publish("broker-b") is None
    table.replace(None, route("broker-b", ids=(0, 1)))
    assert table.find_in_publish("broker-b") == addr("broker-b")


@given(st.lists(st.tuples(st.integers(0, 3), st.sets(st.sampled_from("abc"))), max_size=30))
@settings(deadline=None)
def test_the_table_has_the_groups_of_the_kept_routes_and_no_others(steps: list[tuple[int, set[str]]]) -> None:
    table, kept = BrokerAddrTable(), dict[int, TopicRoute]()
    for topic, names in steps:
        new = route(*sorted(names)) if names else None
        table.replace(kept.pop(topic, None), new)
        if new is not None:
            kept[topic] = new
    named = {group.broker_name for told in kept.values() for group in told.broker_datas}
    assert {name for name in "abc" if table.find_in_publish(name) is not None} == named


def test_a_group_s_consumers_are_asked_for_at_any_broker_rather_a_master() -> None:
    rng = random.Random(0)
    two = route("broker-a", "broker-b")
    assert {any_broker_of(two, rng) for _ in range(50)} == {addr("broker-a"), addr("broker-b")}
    assert any_broker_of(route("broker-b", ids=(1, 2)), rng) == addr("broker-b", 1)
    assert any_broker_of(route(ids=()), rng) is None


ONE, TWO, THREE = (route(queues=number) for number in (1, 2, 3))


def known(told: TopicRoute | None, topic: str = TOPIC, stale: Stale | None = None) -> KnownRoute:
    return KnownRoute(topic, told, stale)


def change(before: TopicRoute | None, after: TopicRoute | None, topic: str = TOPIC) -> RouteChange:
    return RouteChange(topic, known(before, topic) if before else None, known(after, topic))


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


def saved(queues: int = 4) -> bytes:
    return wire_route(queues=queues).SerializeToString()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "new" / "folder"


@pytest.fixture
def on_disk(folder: Path) -> DiskCache:
    return DiskCache(folder, "prod")


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_a_saved_route_comes_back_whole_and_none_removes_it(on_disk: DiskCache, folder: Path) -> None:
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
        assert on_disk.load(topic) is None
        on_disk.save(topic, saved())
        on_disk.save(topic, wire.SerializeToString())
        assert on_disk.load(topic) == from_wire(wire)
        on_disk.save(topic, None)
        assert list(folder.iterdir()) == []


def test_a_foreign_or_changed_file_is_refused_with_a_warning_and_replaced(
    on_disk: DiskCache, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    on_disk.save(TOPIC, saved())
    content = only_file(folder).read_bytes()
    replaced = ((b":10911", b":10912"), (b"\n", b" \n"), (TOPIC.encode(), b"Other"), (b"prod", b"test"))
    for changed in (b"{}\n", content[:-1], *(content.replace(*pair, 1) for pair in replaced)):
        only_file(folder).write_bytes(changed)
        assert on_disk.load(TOPIC) is None
    with only_file(folder).open("wb") as file:
        file.truncate(MAX_FILE_BYTES * 1_000)  # it is not read whole
    assert on_disk.load(TOPIC) is None
    assert caplog.text.count(f"the cached route of topic {TOPIC} is not used") == 7
    on_disk.save(TOPIC, saved())
    DiskCache(folder, "staging").save(TOPIC, saved(1))
    assert on_disk.load(TOPIC) == route()


def test_a_write_that_fails_is_logged_and_leaves_nothing_behind(
    on_disk: DiskCache, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    on_disk.save(TOPIC, saved())
    path = only_file(folder)
    path.unlink()
    path.mkdir()
    on_disk.save(TOPIC, saved())
    on_disk.save(TOPIC, None)
    assert caplog.text.count("could not be cached") == 2
    assert only_file(folder) == path


def test_two_writers_of_one_folder_never_leave_half_a_file(
    on_disk: DiskCache, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rename = disk.rename

    def after_the_other(file: Path, target: Path) -> None:
        assert on_disk.load(TOPIC) == ONE, "the new one is not there yet"
        with mock.patch.object(disk, "rename", rename):
            DiskCache(folder, "prod").save(TOPIC, saved(2))
        assert on_disk.load(TOPIC) == TWO
        rename(file, target)

    on_disk.save(TOPIC, saved(1))
    with mock.patch.object(disk, "rename", side_effect=after_the_other) as renamed:
        on_disk.save(TOPIC, saved(3))
    renamed.assert_called_once()
    assert on_disk.load(TOPIC) == THREE
    assert caplog.text == ""
    assert len(list(folder.iterdir())) == 1


async def test_a_writer_that_ends_behind_a_slow_load_saves_the_latest_that_waits(on_disk: DiskCache) -> None:
    writer, loaded = DiskWriter(on_disk), threading.Event()
    with mock.patch.object(on_disk, "load", side_effect=lambda _topic: loaded.wait(TIMEOUT)):
        loading = asyncio.create_task(writer.load("Other"))
        await asyncio.sleep(0)
        for queues in (1, 2, 4):
            writer.save(TOPIC, saved(queues))
        ending = asyncio.create_task(writer.close(TIMEOUT))
        await asyncio.sleep(0)
        loaded.set()
        await asyncio.gather(loading, ending)
    assert on_disk.load(TOPIC) == route()
