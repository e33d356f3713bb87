"""TableWriter: one change at a time, in order, giving way between slices, bounded."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from namesrv.app.writer import BEGUN_IN_A_TURN, MAX_YIELDS, TableWriter, run_cooperatively
from namesrv.core.errors import Overloaded
from namesrv.core.slices import Sliced
from tests.support.virtual_clock import VirtualClock


def test_changes_run_one_after_another_and_others_run_in_between() -> None:
    events: list[str] = []

    def change(name: str) -> Sliced[str]:
        for step in range(2):
            events.append(f"{name}{step}")
            yield
        return name

    async def lookup() -> None:
        for _ in range(4):
            events.append("lookup")
            await asyncio.sleep(0)

    async def run() -> tuple[str, str, None]:
        writer = TableWriter()
        return await asyncio.gather(writer.apply(change("a")), writer.apply(change("b")), lookup())

    assert list(asyncio.run(run())) == ["a", "b", None]
    changes = [event for event in events if event != "lookup"]
    assert changes == ["a0", "a1", "b0", "b1"]
    assert "lookup" in events[events.index("a0") : events.index("a1")]


def test_a_slice_of_a_change_and_one_of_work_beside_it_take_turns_with_others_in_between() -> None:
    events: list[str] = []

    def work(name: str) -> Sliced[None]:
        for _ in range(3):
            events.append(name)
            yield

    async def lookups() -> None:
        # To the end: a slice that the machine interrupts gives so many turns away that a fixed number could be over.
        while True:
            events.append("lookup")
            await asyncio.sleep(0)

    async def run() -> None:
        writer = TableWriter()
        async with asyncio.timeout(30):
            looking_up = asyncio.create_task(lookups())
            await asyncio.gather(writer.apply(work("change")), writer.interleave(work("beside")))
            looking_up.cancel()

    asyncio.run(run())
    slices = [event for event in events if event != "lookup"]
    assert slices == ["change", "beside"] * 3
    assert ("change", "beside") not in itertools.pairwise(events)


def test_changes_of_one_step_leave_others_their_turn_after_a_few() -> None:
    made = 0

    def change() -> Sliced[None]:
        nonlocal made
        made += 1
        yield from ()

    async def run() -> list[int]:
        writer = TableWriter()
        changes = [asyncio.create_task(writer.apply(change())) for _ in range(5 * BEGUN_IN_A_TURN)]
        made_by_turn = [0]
        while made < len(changes):
            await asyncio.sleep(0)
            made_by_turn.append(made)
        await asyncio.gather(*changes)
        return made_by_turn

    made_by_turn = asyncio.run(run())
    made_in_turns = [after - before for before, after in itertools.pairwise(made_by_turn)]
    assert max(made_in_turns) == BEGUN_IN_A_TURN
    assert made_in_turns[-4:] == [BEGUN_IN_A_TURN] * 4, "those that wait take no more turns than they need"


def test_a_change_whose_caller_goes_before_its_turn_takes_nobody_elses() -> None:
    made = []

    def change(name: str) -> Sliced[None]:
        made.append(name)
        yield from ()

    async def run() -> None:
        writer = TableWriter()
        first = [asyncio.create_task(writer.apply(change("first"))) for _ in range(BEGUN_IN_A_TURN)]
        going = [asyncio.create_task(writer.apply(change("going"))) for _ in range(2 * BEGUN_IN_A_TURN)]
        last = asyncio.create_task(writer.apply(change("last")))
        await asyncio.sleep(0)
        for task in going:
            task.cancel()
        await asyncio.gather(*first, last)
        await asyncio.gather(*going, return_exceptions=True)
        await writer.apply(change("later"))

    asyncio.run(run())
    assert made == ["first"] * BEGUN_IN_A_TURN + ["last", "later"]


def test_a_change_that_is_given_up_in_line_takes_no_turn_from_others_and_one_that_comes_late_waits() -> None:
    made: list[int] = []

    def change(number: int) -> Sliced[None]:
        made.append(number)
        yield from ()

    async def run() -> list[int]:
        writer = TableWriter()
        changes = [asyncio.create_task(writer.apply(change(number))) for number in range(3 * BEGUN_IN_A_TURN)]
        await asyncio.sleep(0)
        for given_up in changes[BEGUN_IN_A_TURN + 1 : 2 * BEGUN_IN_A_TURN]:
            given_up.cancel()
        made_by_turn = [len(made)]
        while len(made_by_turn) < 8:
            changes.append(asyncio.create_task(writer.apply(change(len(changes)))))
            await asyncio.sleep(0)
            made_by_turn.append(len(made))
        await asyncio.gather(*changes, return_exceptions=True)
        return made_by_turn

    made_by_turn = asyncio.run(run())
    assert max(after - before for before, after in itertools.pairwise(made_by_turn)) <= 2 * BEGUN_IN_A_TURN
    given_up = range(BEGUN_IN_A_TURN + 1, 2 * BEGUN_IN_A_TURN)
    assert made == [number for number in range(3 * BEGUN_IN_A_TURN + 7) if number not in given_up]


def test_a_caller_that_goes_away_half_way_leaves_the_turn_to_the_next() -> None:
    closed = []

    def endless() -> Sliced[None]:
        try:
            while True:
                yield
        finally:
            closed.append(True)

    def quick() -> Sliced[str]:
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
    def endless() -> Sliced[None]:
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


def test_a_durable_change_waits_for_its_turn_though_the_queue_is_full() -> None:
    events: list[str] = []

    def change(name: str) -> Sliced[str]:
        yield
        events.append(name)
        return name

    async def run() -> None:
        writer = TableWriter(max_waiting=1)
        first = asyncio.create_task(writer.apply(change("first")))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await writer.apply(change("refused"))
        assert await writer.apply_unbounded(change("durable")) == "durable"
        assert await first == "first"

    asyncio.run(run())
    assert events == ["first", "durable"]


async def turns_between_two_slices(slice_seconds: float, turn_seconds: float) -> int:
    clock = VirtualClock()
    turns = 0

    def slices() -> Sliced[None]:
        clock.advance(slice_seconds)
        yield

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1
            clock.advance(turn_seconds)

    busy = asyncio.create_task(others())
    await asyncio.sleep(0)  # it waits for its first turn
    await run_cooperatively(slices(), clock.monotonic)
    busy.cancel()
    return turns


def test_others_get_as_much_time_as_a_slice_took() -> None:
    assert asyncio.run(turns_between_two_slices(1.0, 0.125)) == 8
    assert asyncio.run(turns_between_two_slices(1.0, 1.5)) == 1


def test_an_idle_event_loop_holds_a_change_up_for_a_bounded_number_of_turns_only() -> None:
    assert asyncio.run(turns_between_two_slices(1.0, 0.0)) == MAX_YIELDS


def test_other_threads_are_offered_the_core_between_the_last_turn_of_others_and_the_next_slice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []
    monkeypatch.setattr("os.sched_yield", lambda: events.append("core"))

    def slices() -> Sliced[None]:
        for _ in range(2):
            events.append("slice")
            yield

    async def others() -> None:
        while True:
            events.append("turn")
            await asyncio.sleep(0)

    async def run() -> None:
        looking_up = asyncio.create_task(others())
        await run_cooperatively(slices(), VirtualClock().monotonic)
        looking_up.cancel()

    asyncio.run(run())
    second = events.index("slice", events.index("slice") + 1)
    assert events[second - 2 : second] == ["turn", "core"]
