"""Threads in which calls that block are answered, while an event loop receives them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class CallThreads:
    """So many threads. A call waits for one in the event loop, where it leaves nothing behind if its caller goes away.

    In the queue of an executor it would stay, with its request, until a thread came by.
    """

    def __init__(self, threads: int, name: str) -> None:
        """Starts them as they are needed.

        Args:
            threads: How many.
            name: What they are called, with a number each.
        """
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._free = asyncio.Semaphore(threads)

    async def run(self, call: Callable[..., ResultT], *args: Any) -> ResultT:
        """Makes a call in a thread. One that has begun goes on if its caller goes away, and keeps its thread."""
        await self._free.acquire()
        try:
            work = self._pool.submit(call, *args)
        except BaseException:
            self._free.release()
            raise
        loop = asyncio.get_running_loop()
        work.add_done_callback(lambda _: self._free_one(loop))
        return await asyncio.wrap_future(work)

    def shutdown(self) -> None:
        """Takes no more calls, and waits for none."""
        self._pool.shutdown(wait=False)

    def _free_one(self, loop: asyncio.AbstractEventLoop) -> None:
        """Runs in the thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits
            loop.call_soon_threadsafe(self._free.release)
