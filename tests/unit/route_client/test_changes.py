"""Changes on their way: merged by topic, on threads of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from route_client.cache import KnownRoute, RouteChange, Stale
from route_client.kept_routes import Listeners
from route_client.route import TopicRoute
from tests.support.patience import TIMEOUT
from tests.support.routes.wire_routes import removal, route

ONE, TWO, THREE = (route(queues=number) for number in (1, 2, 3))


def known(told: TopicRoute | None, topic: str = "T", stale: Stale | None = None) -> KnownRoute:
    return KnownRoute(topic, told, stale)


def change(before: TopicRoute | None, after: TopicRoute | None, topic: str = "T") -> RouteChange:
    return RouteChange(topic, known(before, topic) if before else None, known(after, topic))


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("route-client"):
            thread.join(TIMEOUT)
            assert not thread.is_alive(), f"{thread.name} is left"


def test_changes_of_a_wanted_topic_that_wait_become_one() -> None:
    buffer = Listeners().changes({"T", "U"})
    buffer.put(RouteChange("T", None, known(ONE), (removal(1),)))  # type: ignore[arg-type]
    buffer.put(change(TWO, THREE, "U"))
    buffer.put(change(None, ONE, "unwanted"))
    held = known(TWO, stale=Stale.HELD)
    buffer.put(RouteChange("T", known(ONE), held, (removal(2),)))  # type: ignore[arg-type]
    merged, other = buffer.take(0), buffer.take(0)
    assert merged is not None
    assert (merged.before, merged.after) == (None, held)
    assert [gone.reason for gone in merged.removals] == [1, 2]
    assert other is not None
    assert other.topic == "U"
    assert buffer.take(0) is None


@pytest.mark.parametrize(("before", "between"), [(ONE, TWO), (ONE, None), (None, ONE)])
def test_changes_that_undo_each_other_are_not_told(before: TopicRoute | None, between: TopicRoute | None) -> None:
    buffer = Listeners().changes()
    buffer.put(change(before, between))
    buffer.put(RouteChange("T", known(between), known(before)))
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
