"""RouteCache and the addresses of brokers: what answers change, and which are held back."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from namesrv_api.v1 import route_data_pb2 as pb

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
from route_client.queues import publish_info
from route_client.route import GroupKey, TopicRoute
from tests.support.routes.wire_routes import CLUSTER, NS_A, NS_B, addr, answer, removal, route
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


@pytest.fixture
def table() -> BrokerAddrTable:
    filled = BrokerAddrTable()
    for kept in (TopicRoute(), route("broker-a", ids=(0, 2)), route("broker-b", ids=(1, 2))):
        filled.replace(None, kept)
    return filled


def test_scenario_79_the_next_id_or_any_other_stands_in_for_a_slave(table: BrokerAddrTable) -> None:
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


def test_messages_are_sent_to_the_master_that_the_last_change_named(table: BrokerAddrTable) -> None:
    assert table.find_in_publish("broker-a") == addr("broker-a", 0)
    assert table.find_in_publish("broker-b") is None
    assert table.find_in_publish("broker-a", CLUSTER) == addr("broker-a", 0)
    assert table.find_in_publish("broker-a", "OtherCluster") is None
    (queue,) = publish_info(TOPIC, route(order="broker-a:1")).queues
    assert table.find_in_publish(queue.broker_name, queue.cluster_name) == addr("broker-a", 0)
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
