"""LoopThread: a defect of its work is logged, and its end comes all the same."""

from __future__ import annotations

import asyncio

import pytest

from namesrv_common.server.loop_thread import LoopThread


async def fail() -> None:
    raise KeyError("planted")


async def nothing() -> None:
    return


def test_work_that_fails_in_the_background_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    thread = LoopThread("test")
    thread.start()
    thread.begin(fail())
    thread.run(asyncio.sleep(0))
    assert thread.stop(nothing())
    assert "KeyError: 'planted'" in caplog.text


def test_the_thread_ends_although_its_last_work_fails(caplog: pytest.LogCaptureFixture) -> None:
    thread = LoopThread("test")
    thread.start()
    assert thread.stop(fail())
    assert thread.is_over
    assert "KeyError: 'planted'" in caplog.text
