"""The event loop of a name server."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

from groundwork.program.event_loops import make_observable

ResultT = TypeVar("ResultT")


def run_in_loop(main: Coroutine[Any, Any, ResultT], *, asyncio_debug: bool) -> ResultT:
    """Runs a program to its end and returns its result: in uvloop, or in asyncio's own loop with its debug mode.

    uvloop is faster, but cannot say which callback held it up.
    """
    factory = asyncio.new_event_loop if asyncio_debug else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        make_observable(runner.get_loop(), debug=asyncio_debug)
        return runner.run(main)
