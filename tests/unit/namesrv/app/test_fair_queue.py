"""FairQueue and FairLock serve owners round robin, and a cancelled waiter leaves the lock to the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from namesrv.app.fair_queue import FairLock, FairQueue


def test_a_queue_serves_owners_round_robin_and_items_of_one_in_their_order() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "a3", "b1", "c1"):
        queue.put(item[0], item)
    queue.put("c", "c0", is_next=True)
    assert [queue.get() for _ in range(3)] == ["a1", "b1", "c0"]
    queue.put("d", "d1")
    assert [queue.get() for _ in range(4)] == ["a2", "d1", "c1", "a3"]
    assert not queue


def holders(callers: Sequence[str], cancelled: int | None = None, at_once: int = 1) -> list[str]:
    """The order in which callers hold the lock. The first one holds it until the last one waits.

    Args:
        cancelled: The index of a caller that is cancelled once those before it have held the lock.
    """
    order: list[str] = []

    async def hold(lock: FairLock, caller: str, all_wait: asyncio.Event) -> None:
        async with lock.held_for(caller[0]):
            order.append(caller)
            await all_wait.wait()
            await asyncio.sleep(0)
            assert order[-1] == caller, "nobody else has it meanwhile"

    async def run() -> None:
        lock, all_wait = FairLock(at_once), asyncio.Event()
        tasks = []
        for caller in callers:
            tasks.append(asyncio.create_task(hold(lock, caller, all_wait)))
            await asyncio.sleep(0)
        all_wait.set()
        if cancelled is not None:
            while len(order) < cancelled:  # noqa: ASYNC110 - the holders set no event
                await asyncio.sleep(0)
            tasks[cancelled].cancel()
        async with asyncio.timeout(20):
            await asyncio.wait(tasks)

    asyncio.run(run())
    return order


def test_an_owner_that_arrives_later_waits_for_the_present_holder_alone() -> None:
    assert holders(["a1", "a2", "a3", "b1", "a4"]) == ["a1", "b1", "a2", "a3", "a4"]


def test_a_cancelled_waiter_leaves_the_lock_to_the_next_one() -> None:
    for cancelled, left in ((1, ["a1", "a3", "a4"]), (2, ["a1", "a2", "a4"])):
        assert holders(["a1", "a2", "a3", "a4"], cancelled) == left


def test_a_waiter_that_is_called_and_finds_the_lock_held_waits_again() -> None:
    assert sorted(holders(["a1", "a2", "b1", "c1", "d1"], at_once=3)) == ["a1", "a2", "b1", "c1", "d1"]
