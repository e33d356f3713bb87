"""The tasks of the event loop, counted now and then."""

from __future__ import annotations

import asyncio

from namesrv.grpc_api.route import COUNT_SECONDS, TaskCount


def test_tasks_are_counted_once_a_second_however_often_somebody_asks() -> None:
    async def run() -> None:
        loop, count = asyncio.get_running_loop(), TaskCount()
        began = loop.time()
        clock = began
        loop.time = lambda: clock  # type: ignore[method-assign]
        assert count.latest() == 1
        more = asyncio.create_task(asyncio.sleep(3600))
        assert count.latest() == 1
        clock = began + COUNT_SECONDS
        assert count.latest() == 2
        more.cancel()

    asyncio.run(run())
