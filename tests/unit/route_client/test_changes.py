"""Changes on their way: merged by topic, on threads of their own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest

from route_client.cache import KnownRoute, RouteChange, Stale
from route_client.changes import Listeners
from route_client.route import TopicRoute
from tests.support.patience import TIMEOUT
from tests.support.routes.wire_routes import removal, route

ONE, TWO, THREE = (route(queues=number) for number in (1, 2, 3))


def known(told: TopicRoute | None, topic: str = "T", stale: Stale | None = None) -> KnownRoute:
    return KnownRoute(topic, told, stale)


def change(
    before: TopicRoute | None, after: TopicRoute | None, topic: str = "T", stale: Stale | None = None
) -> RouteChange:
    return RouteChange(topic, known(before, topic) if before else None, known(after, topic, stale))


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("route-client"):
            thread.join(TIMEOUT)
            assert not thread.is_alive(), f"{thread.name} is left"


def test_changes_of_a_topic_that_wait_become_one() -> None:
    buffer = Listeners().changes()
    buffer.put(RouteChange("T", None, known(ONE), (removal(1),)))  # type: ignore[arg-type]
    buffer.put(change(TWO, THREE, "U"))
    buffer.put(RouteChange("T", known(ONE), known(TWO), (removal(2),)))  # type: ignore[arg-type]
    merged = buffer.take(0)
    assert merged is not None
    assert (merged.before, merged.after) == (None, known(TWO))
    assert [gone.reason for gone in merged.removals] == [1, 2]
    other = buffer.take(0)
    assert other is not None
    assert other.topic == "U"
    assert buffer.take(0) is None


@pytest.mark.parametrize(("before", "between"), [(ONE, TWO), (ONE, None), (None, ONE)])
def test_changes_that_undo_each_other_are_not_told(before: TopicRoute | None, between: TopicRoute | None) -> None:
    buffer = Listeners().changes()
    buffer.put(change(before, between))
    buffer.put(RouteChange("T", known(between), known(before)))
    assert buffer.take(0) is None


def test_a_route_that_is_held_back_is_a_change_too() -> None:
    buffer = Listeners().changes()
    buffer.put(change(ONE, TWO))
    buffer.put(RouteChange("T", known(TWO), known(TWO, stale=Stale.HELD)))
    held = buffer.take(0)
    assert held is not None
    assert held.after.stale is Stale.HELD


def test_only_the_topics_that_are_wanted_are_kept() -> None:
    buffer = Listeners().changes({"U"})
    buffer.put(change(None, ONE, "T"))
    buffer.put(change(None, ONE, "U"))
    wanted = buffer.take(0)
    assert wanted is not None
    assert wanted.topic == "U"
    assert buffer.take(0) is None


def test_a_callback_that_raises_is_called_again_and_others_never_notice(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []
    all_seen, called_again = threading.Event(), threading.Event()
    listeners = Listeners()

    def raises(told: RouteChange) -> None:
        if told.topic == "U":
            called_again.set()
        raise RuntimeError("of the callback")

    def notes(told: RouteChange) -> None:
        seen.append(told.topic)
        if len(seen) == 2:
            all_seen.set()

    bad = listeners.call(raises)
    listeners.call(notes)
    with caplog.at_level(logging.CRITICAL, logger="route_client"):
        listeners.put(change(None, ONE, "T"))
        listeners.put(change(None, ONE, "U"))
        assert all_seen.wait(TIMEOUT)
        assert called_again.wait(TIMEOUT)
        assert listeners.close(TIMEOUT) == 0
    assert seen == ["T", "U"]
    assert bad.failures == 2


def test_a_callback_that_blocks_gets_one_merged_change_afterwards_and_others_never_notice() -> None:
    entered, release, done = threading.Event(), threading.Event(), threading.Event()
    got: list[RouteChange] = []
    quick: list[RouteChange] = []
    listeners = Listeners()

    def blocks(told: RouteChange) -> None:
        got.append(told)
        entered.set()
        assert release.wait(TIMEOUT)
        if len(got) == 2:
            done.set()

    listeners.call(blocks)
    queue = listeners.changes()
    listeners.put(change(None, ONE))
    assert entered.wait(TIMEOUT)
    for before, after in ((ONE, TWO), (TWO, THREE), (THREE, TWO)):
        listeners.put(change(before, after))
        told = queue.take(TIMEOUT)
        assert told is not None
        quick.append(told)
    release.set()
    assert done.wait(TIMEOUT)
    assert listeners.close(TIMEOUT) == 0
    assert [told.after.route for told in got] == [ONE, TWO]
    assert [told.after.route for told in quick] == [TWO, THREE, TWO]


def test_a_callback_that_still_blocks_at_the_end_is_counted_and_not_waited_for() -> None:
    entered, release = threading.Event(), threading.Event()
    listeners = Listeners()

    def blocks(_: RouteChange) -> None:
        entered.set()
        release.wait(TIMEOUT)

    listeners.call(blocks)
    listeners.put(change(None, ONE))
    assert entered.wait(TIMEOUT)
    assert listeners.close(0.01) == 1
    release.set()


def test_an_iteration_ends_when_it_is_closed() -> None:
    listeners = Listeners()
    queue = listeners.changes()
    listeners.put(change(None, ONE))
    first = next(iter(queue))
    assert first.after.route == ONE
    assert queue.take(0.01) is None
    queue.close()
    listeners.put(change(ONE, TWO))
    assert list(queue) == []


async def test_an_asynchronous_iteration_ends_when_another_thread_closes_it() -> None:
    changes = Listeners().changes()
    reading = asyncio.create_task(anext(changes, None))
    await asyncio.sleep(0)  # it waits now
    await asyncio.to_thread(changes.close)
    async with asyncio.timeout(TIMEOUT):
        assert await reading is None
