"""Round-robin scheduling: an address with much work waits for itself."""

from __future__ import annotations

import asyncio

from namesrv.remoting.scheduling import SLICE_NANOS, STEP_NANOS, LoopTime


async def test_many_steps_of_an_address_do_not_delay_another() -> None:

    time, order = LoopTime(lambda: 0), list[str]()

    async def step(address: str) -> None:
        await time.begin(address)
        order.append(address)

    async with asyncio.TaskGroup() as tasks:
        for address in 20 * ["many"] + ["few"]:
            tasks.create_task(step(address))
    assert order.index("few") <= 2 * SLICE_NANOS // STEP_NANOS
