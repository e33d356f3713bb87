"""Stacks of all tasks and threads of a process, written to its log when it gets SIGUSR1.

A separate thread takes the signal and walks the stacks, so a dump also shows what holds up an event loop. Nothing stops
meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
import threading
import traceback
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any
from weakref import WeakSet

import structlog

DUMP_SIGNAL = signal.SIGUSR1
"""Asks for a dump."""

MAX_STACKS = 200
"""Different stacks of tasks that a dump shows, those of most tasks first. It must fit into the queue of the log."""

MAX_FRAMES = 60
"""Frames that are shown of one stack, the innermost. No stack of ours has half as many, unless a recursion ran away."""

MAX_MAKERS = 3
"""Frames that are shown of where a task was made, the innermost."""

_ASYNCIO = str(Path(asyncio.__file__).parent)
_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()

Place = tuple[CodeType, int]
"""The place of a frame: its code and the line."""


def dump_stacks_on_signal() -> None:
    """Takes SIGUSR1 from now on, in a separate thread that lives as long as the process.

    Call it before there are other threads: a thread that exists already does not block the signal, and the signal would
    end the process.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, (DUMP_SIGNAL,))
    logging.getLogger(__name__).setLevel(logging.INFO)  # an operator asked for it, so the log's level does not matter
    threading.Thread(target=_dump_on_signal, name="stack-dumps", daemon=True).start()


def show_tasks_of(loop: asyncio.AbstractEventLoop) -> None:
    """Has dumps show the tasks of an event loop, too, for as long as there is one."""
    _loops.add(loop)


def dump_stacks() -> None:
    """Writes the stacks of all tasks and threads to the log; those at the same place are one line."""
    tasks = [task for loop in tuple(_loops) for task in asyncio.all_tasks(loop)]
    by_places: defaultdict[tuple[Place, ...], list[asyncio.Task[Any]]] = defaultdict(list)
    for task in tasks:
        by_places[_places(_awaited_frames(task.get_coro()))].append(task)
    groups = sorted(by_places.items(), key=lambda group: -len(group[1]))
    for places, group in groups[:MAX_STACKS]:
        _log.info("task_stack", tasks=len(group), stack=_shown(places), **_origin(group))
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    threads = _threads_by_places(names)
    for places, idents in threads.items():
        _log.info("thread_stack", threads=[names.get(ident, str(ident)) for ident in idents], stack=_shown(places))
    _log.info(
        "stacks_dumped",
        tasks=len(tasks),
        threads=sum(map(len, threads.values())),
        tasks_left_out=sum(len(group) for _, group in groups[MAX_STACKS:]),
    )


def _dump_on_signal() -> None:
    while True:
        signal.sigwait((DUMP_SIGNAL,))
        try:
            dump_stacks()
        except Exception:  # noqa: BLE001 - the next one may succeed, and nothing else depends on it
            _log.exception("stacks_not_dumped")


def _threads_by_places(names: Mapping[int | None, str]) -> dict[tuple[Place, ...], list[int]]:
    """Threads by the lines that they are at, those that Python knows by name first, without the calling thread."""
    found: defaultdict[tuple[Place, ...], list[int]] = defaultdict(list)
    frames = sys._current_frames()  # noqa: SLF001 - documented, for exactly this
    for ident in sorted(frames, key=lambda ident: (ident not in names, ident)):
        if ident != threading.get_ident():
            walked = [(frame.f_code, line) for frame, line in traceback.walk_stack(frames[ident])]
            found[tuple(reversed(walked[:MAX_FRAMES]))].append(ident)
    return found


def _awaited_frames(awaited: Any) -> Iterator[FrameType]:
    """Frames from a task's own coroutine to what it waits in, as far as Python can see."""
    while awaited is not None:
        for frame_name, next_name in _SUSPENDED:
            if (frame := getattr(awaited, frame_name, None)) is not None:
                yield frame
                awaited = getattr(awaited, next_name)
                break
        else:  # a future, or a thin wrapper such as what `async for` waits for
            awaited = next((held for held in gc.get_referents(awaited) if isinstance(held, _COROUTINES)), None)


_COROUTINES = CoroutineType, GeneratorType, AsyncGeneratorType
_SUSPENDED = ("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await")


def _places(frames: Iterable[FrameType]) -> tuple[Place, ...]:
    return tuple((frame.f_code, frame.f_lineno) for frame in frames)[-MAX_FRAMES:]


def _shown(places: Sequence[Place]) -> str:
    """The stack as a traceback has it, the innermost last."""
    summaries = [traceback.FrameSummary(code.co_filename, line, code.co_qualname) for code, line in places]
    return "".join(traceback.StackSummary.from_list(summaries).format())


def _origin(tasks: Sequence[asyncio.Task[Any]]) -> dict[str, str]:
    """Where the first of some tasks was made, without asyncio's own frames; known in asyncio's debug mode only."""
    made: Sequence[traceback.FrameSummary] = getattr(tasks[0], "_source_traceback", None) or ()
    ours = [frame for frame in made if not frame.filename.startswith(_ASYNCIO)]
    return {"made_at": "".join(traceback.format_list(ours[-MAX_MAKERS:]))} if ours else {}
