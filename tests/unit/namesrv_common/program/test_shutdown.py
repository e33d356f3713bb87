"""The end of a program: what hangs or fails is named, and everything else runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest
from structlog.testing import capture_logs

from namesrv_common.process.shutdown import STEP_SECONDS, Background, in_daemon_thread, run_blocking_step, run_step
from tests.support.virtual_clock import VirtualClock


async def hang() -> None:
    await asyncio.Event().wait()


async def ignore_cancellation() -> None:
    """Hangs until it is cancelled, and hangs again then."""
    try:
        await hang()
    except asyncio.CancelledError:
        await hang()


async def fail() -> None:
    raise ValueError("broken")


@pytest.mark.parametrize("step", [hang, ignore_cancellation])
def test_a_step_that_hangs_is_named_at_its_deadline(step: Any) -> None:
    clock = VirtualClock()
    with capture_logs() as lines:
        asyncio.run(run_step("listener", step(), 7.0, clock.sleep))
    assert [(line["event"], line["step"], line["seconds"]) for line in lines] == [
        ("shutdown_step_timed_out", "listener", 7.0)
    ]
    assert clock.pauses == [7.0]


def test_a_step_that_fails_is_logged_and_raises_nothing() -> None:
    with capture_logs() as lines:
        asyncio.run(run_step("listener", fail()))
    (line,) = lines
    assert (line["event"], line["step"], str(line["exc_info"])) == ("shutdown_step_failed", "listener", "broken")


def test_a_step_that_ends_in_time_says_nothing() -> None:
    with capture_logs() as lines:
        asyncio.run(run_step("listener", asyncio.sleep(0)))
        run_blocking_step("listener", lambda: None)
    assert lines == []


def test_a_hanging_call_in_a_daemon_thread_is_left_behind() -> None:
    release, clock = threading.Event(), VirtualClock()
    with capture_logs() as lines:
        asyncio.run(run_step("disk", in_daemon_thread("disk", release.wait), sleep=clock.sleep))
    release.set()
    assert [(line["event"], line["step"]) for line in lines] == [("shutdown_step_timed_out", "disk")]


def test_a_blocking_step_that_hangs_or_fails_is_named() -> None:
    release = threading.Event()
    with capture_logs() as lines:
        run_blocking_step("broken", lambda: 1 // 0)
        run_blocking_step("hanging", release.wait, 0.0)
    release.set()
    assert [(line["event"], line["step"]) for line in lines] == [
        ("shutdown_step_failed", "broken"),
        ("shutdown_step_timed_out", "hanging"),
    ]


async def run_background(stop: asyncio.Event, *works: Coroutine[Any, Any, None]) -> None:
    background = Background()
    for work in works:
        background.begin(work)
    await background.run_until(stop, VirtualClock().sleep)


def test_background_work_that_ends_by_itself_ends_nothing_else() -> None:
    async def run() -> None:
        stop = asyncio.Event()
        running = asyncio.create_task(run_background(stop, asyncio.sleep(0), hang()))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not running.done()
        stop.set()
        await running

    with capture_logs() as lines:
        asyncio.run(run())
    assert lines == []


def test_the_first_failure_of_background_work_ends_the_others() -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        asyncio.run(run_background(asyncio.Event(), hang(), fail()))
    assert [str(error) for error in caught.value.exceptions] == ["broken"]


def test_background_work_that_ignores_cancellation_is_named_and_left_behind() -> None:
    async def run() -> None:
        stop = asyncio.Event()
        background = Background()
        background.begin(ignore_cancellation())
        await asyncio.sleep(0)
        stop.set()
        await background.run_until(stop, VirtualClock().sleep)

    with capture_logs() as lines:
        asyncio.run(run())
    (line,) = lines
    assert (line["event"], line["seconds"]) == ("shutdown_step_timed_out", STEP_SECONDS)
    assert "ignore_cancellation" in line["step"]
