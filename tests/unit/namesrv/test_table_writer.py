"""TableWriter: one change at a time, in order, giving way between slices, bounded."""

from __future__ import annotations

import asyncio

import pytest

from namesrv.core.errors import Overloaded
from namesrv.core.steps import Steps
from namesrv.server.table_writer import TableWriter


def test_changes_run_one_after_another_and_others_run_in_between() -> None:
    events: list[str] = []

    def change(name: str) -> Steps[str]:
        for step in range(2):
            events.append(f"{name}{step}")
            yield
        return name

    async def look_up() -> None:
        for _ in range(4):
            events.append("look-up")
            await asyncio.sleep(0)

    async def run() -> tuple[str, str, None]:
        writer = TableWriter()
        return await asyncio.gather(writer.apply(change("a")), writer.apply(change("b")), look_up())

    assert list(asyncio.run(run())) == ["a", "b", None]
    changes = [event for event in events if event != "look-up"]
    assert changes == ["a0", "a1", "b0", "b1"]
    assert "look-up" in events[events.index("a0") : events.index("a1")]


def test_a_caller_that_goes_away_half_way_leaves_the_turn_to_the_next() -> None:
    closed = []

    def endless() -> Steps[None]:
        try:
            while True:
                yield
        finally:
            closed.append(True)

    def quick() -> Steps[str]:
        yield
        return "done"

    async def run() -> str:
        writer = TableWriter()
        stuck = asyncio.create_task(writer.apply(endless()))
        await asyncio.sleep(0)
        stuck.cancel()
        return await asyncio.wait_for(writer.apply(quick()), 5)

    assert asyncio.run(run()) == "done"
    assert closed == [True]


def test_more_waiting_changes_than_the_limit_are_refused() -> None:
    def endless() -> Steps[None]:
        while True:
            yield

    async def run() -> None:
        writer = TableWriter(max_waiting=2)
        tasks = [asyncio.create_task(writer.apply(endless())) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await writer.apply(endless())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())
