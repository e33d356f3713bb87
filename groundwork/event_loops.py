"""Set-up of all our event loops: stack dumps of the process show their tasks."""

from __future__ import annotations

import asyncio

from groundwork.stack_dumps import show_tasks_of

SLOW_CALLBACK_SECONDS = 0.05
"""In debug mode a callback that takes longer is logged. Debug mode itself makes everything several times slower."""


def make_observable(loop: asyncio.AbstractEventLoop, *, debug: bool) -> None:
    """Has stack dumps show the tasks of a loop.

    Args:
        debug: Whether to turn on asyncio's debug mode. It logs slow callbacks (not in uvloop), remembers where tasks
            were made, and raises when a loop is used from another thread than its own.
    """
    show_tasks_of(loop)
    if debug:
        loop.set_debug(True)
        loop.slow_callback_duration = SLOW_CALLBACK_SECONDS
