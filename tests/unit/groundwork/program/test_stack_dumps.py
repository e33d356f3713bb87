"""Dumps of stacks, as they are written to the log."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import pytest
from structlog.testing import capture_logs

from groundwork import stack_dumps
from groundwork.event_loops import make_observable
from groundwork.stack_dumps import dump_stacks

SECONDS = 20.0
"""How long anything here may take."""


@pytest.fixture(autouse=True)
def _no_loops_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test before these has left waiting in a loop of its own, in the same process, is in no dump."""
    monkeypatch.setattr(stack_dumps, "_loops", WeakSet())


@contextmanager
def running(
    *coroutines: Callable[[asyncio.Event], Coroutine[Any, Any, None]], debug: bool = False
) -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread, with a task for each function, all of which have begun to wait."""
    loop = asyncio.new_event_loop()
    make_observable(loop, debug=debug)
    thread = threading.Thread(target=loop.run_forever, name="the loop")
    thread.start()
    stop = asyncio.Event()
    made = [asyncio.run_coroutine_threadsafe(coroutine(stop), loop) for coroutine in coroutines]
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(SECONDS)
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(stop.set)
        for future in made:
            future.result(SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(SECONDS)
        loop.close()


def dump() -> tuple[list[Any], list[Any], Any]:
    """The lines of a dump: of tasks, of threads, and the last one."""
    with capture_logs() as lines:
        dump_stacks()
    tasks = [line for line in lines if line["event"] == "task_stack"]
    threads = [line for line in lines if line["event"] == "thread_stack"]
    assert lines == [*tasks, *threads, lines[-1]]
    return tasks, threads, lines[-1]


def functions(line: Any) -> list[str]:
    """The functions of a stack, outermost first."""
    return [text.rpartition(" in ")[2] for text in line["stack"].splitlines() if text.startswith("  File ")]


async def outer(stop: asyncio.Event) -> None:
    await inner(stop)


async def inner(stop: asyncio.Event) -> None:
    await stop.wait()


async def stopped(stop: asyncio.Event) -> AsyncIterator[None]:
    await stop.wait()
    yield


async def reader(stop: asyncio.Event) -> None:
    async for _ in stopped(stop):
        pass


def test_a_task_is_shown_with_every_coroutine_that_it_waits_in() -> None:
    with running(outer):
        (line,), _, last = dump()
        assert functions(line) == ["outer", "inner", "Event.wait"]
        assert (line["tasks"], last["tasks"]) == (1, 1)


def test_a_task_that_reads_a_generator_is_shown_to_where_that_waits() -> None:
    with running(reader):
        (line,), _, _ = dump()
        assert functions(line) == ["reader", "stopped", "Event.wait"]


def test_tasks_at_the_same_place_are_one_line_and_the_most_come_first() -> None:
    with running(reader, outer, outer, outer):
        lines, _, last = dump()
        assert [line["tasks"] for line in lines] == [3, 1]
        assert last["tasks"] == 4


def test_more_different_stacks_than_a_dump_has_room_for_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_dumps, "MAX_STACKS", 1)
    with running(reader, outer, outer):
        lines, _, last = dump()
        assert [line["tasks"] for line in lines] == [2]
        assert last["tasks_left_out"] == 1


def test_of_a_deep_stack_the_innermost_frames_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_dumps, "MAX_FRAMES", 2)
    with running(outer):
        (line,), threads, _ = dump()
        assert functions(line) == ["inner", "Event.wait"]
        (of_loop,) = [line for line in threads if "the loop" in line["threads"]]
        assert len(functions(of_loop)) == 2


def test_in_debug_mode_a_task_is_shown_with_where_it_was_made() -> None:
    async def maker(stop: asyncio.Event) -> None:
        await asyncio.create_task(inner(stop))

    with running(maker, debug=True):
        lines, _, _ = dump()
        (made,) = [line for line in lines if functions(line)[0] == "inner"]
        assert made["made_at"].rstrip().endswith("await asyncio.create_task(inner(stop))")
    with running(maker):
        lines, _, _ = dump()
        assert not [line for line in lines if "made_at" in line]


def test_what_holds_up_an_event_loop_is_shown_while_it_does() -> None:
    held, go_on = threading.Event(), threading.Event()

    def hold_up() -> None:
        held.set()
        go_on.wait(SECONDS)

    with running(outer) as loop:
        loop.call_soon_threadsafe(hold_up)
        assert held.wait(SECONDS)
        try:
            tasks, threads, last = dump()
        finally:
            go_on.set()
        assert len(tasks) == 1
        (of_loop,) = [line for line in threads if "the loop" in line["threads"]]
        assert any(name.endswith("hold_up") for name in functions(of_loop))
        assert functions(of_loop)[-1] == "Condition.wait"
        assert last["threads"] == sum(len(line["threads"]) for line in threads)


def test_a_slow_callback_is_told_in_debug_mode(caplog: pytest.LogCaptureFixture) -> None:
    async def slow(stop: asyncio.Event) -> None:
        until = time.monotonic() + 0.1
        while time.monotonic() < until:
            pass
        await stop.wait()

    with running(slow, debug=True):
        pass
    assert [record for record in caplog.records if record.name == "asyncio" and "slow" in record.getMessage()]
