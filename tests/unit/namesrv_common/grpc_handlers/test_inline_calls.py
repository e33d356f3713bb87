"""Calls that are answered without a task: they are run to their end, and told off if they wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from namesrv_common.server import rpc_handlers


async def answer() -> int:
    return 7


async def fail() -> int:
    raise KeyError("x")


async def wait() -> int:
    await asyncio.sleep(0)
    return 7


async def wait_whatever_comes() -> int:
    for _ in range(2):
        try:
            await asyncio.sleep(0)
        except rpc_handlers.Waited:
            continue
    return 7


async def say_what_it_was_told() -> str:
    try:
        await asyncio.sleep(0)
    except rpc_handlers.Waited as told:
        return str(told)
    return "nothing"


def test_what_does_not_wait_is_run_to_its_end() -> None:
    assert rpc_handlers.run(answer()) == 7


def test_an_error_comes_through() -> None:
    with pytest.raises(KeyError):
        rpc_handlers.run(fail())


@pytest.mark.parametrize("waiting", [wait, wait_whatever_comes])
def test_what_waits_is_ended_with_an_error(waiting: Callable[[], Coroutine[Any, Any, int]]) -> None:
    with pytest.raises(rpc_handlers.Waited):
        rpc_handlers.run(waiting())


def test_what_waits_may_still_say_that_it_failed() -> None:
    assert rpc_handlers.run(say_what_it_was_told()) == "a call that is answered at once waits for something"
