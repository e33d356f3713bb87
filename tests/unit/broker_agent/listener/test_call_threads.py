"""CallThreads: calls that block, and callers that do not wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from broker_agent.listener import CallThreads
from tests.support.patience import TIMEOUT


class Blocked:
    """A call that blocks until it is let."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.lets = threading.Event()

    def __call__(self, number: int) -> int:
        self.begun.release()
        assert self.lets.wait(TIMEOUT)
        return number

    async def until_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.acquire, timeout=TIMEOUT)


@asynccontextmanager
async def two_threads() -> AsyncIterator[tuple[CallThreads, Blocked]]:
    threads, call = CallThreads(2, "calls"), Blocked()
    try:
        async with asyncio.timeout(TIMEOUT):
            yield threads, call
    finally:
        call.lets.set()
        threads.shutdown()


async def test_calls_whose_callers_went_away_before_a_thread_was_free_leave_nothing_behind() -> None:
    async with two_threads() as (threads, call):
        working = [asyncio.create_task(threads.run(call, number)) for number in range(2)]
        for _ in working:
            await call.until_begun()
        waiting = [asyncio.create_task(threads.run(call, number)) for number in range(2, 50)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert threads._pool._calls.empty()
        call.lets.set()
        assert await asyncio.gather(*working) == [0, 1]


async def test_a_thread_whose_caller_went_away_is_free_when_its_call_has_ended() -> None:
    async with two_threads() as (threads, call):
        gone = [asyncio.create_task(threads.run(call, number)) for number in range(2)]
        for task in gone:
            await call.until_begun()
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        later = asyncio.create_task(threads.run(call, 2))
        await asyncio.sleep(0)
        assert threads._pool._calls.empty(), "it does not wait behind them"
        call.lets.set()
        assert await later == 2


async def test_an_error_of_a_call_is_its_callers_and_frees_the_thread() -> None:
    def fails() -> None:
        raise OSError("disk full")

    async with two_threads() as (threads, _call):
        for _ in range(5):
            with pytest.raises(OSError, match="disk full"):
                await threads.run(fails)
