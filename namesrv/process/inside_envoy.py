"""The program that Envoy runs: one name server in one event loop, and the end of both."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any

import structlog

from groundwork.event_loops import make_observable
from groundwork.logs import configure_logs
from groundwork.printable import say
from groundwork.settings import EXIT_BAD_START
from groundwork.stack_dumps import dump_stacks_on_signal
from namesrv.config.settings import NamesrvSettings
from namesrv.garbage_collection import tune_garbage_collection
from namesrv.process.serving import CannotListen, DataDirError, serve_until
from namesrv.server.engines.envoy.call import Receive, Send
from namesrv.server.engines.envoy.inside import (
    BLOCKED_SIGNALS,
    FOLDER_VARIABLE,
    INTERPRETER_VARIABLES,
    Handed,
    Inside,
    current,
    enter,
)
from namesrv.server.engines.envoy.prompt import task_factory
from namesrv.server.worker_role import WorkerRole

PROGRAM = "namesrv"
EXIT_FAILED = 1

_log = structlog.get_logger(__name__)


def application(scope: Mapping[str, Any], receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
    """The ASGI application, of which pyvoy makes a task: it answers a call, or lives as long as Envoy does."""
    return current().answer(scope, receive, send) if scope["type"] == "http" else _live(scope, receive, send)


# pyvoy would take an object that is not a coroutine function for an application of ASGI 2.
application._asgi_single_callable = True  # type: ignore[attr-defined]  # noqa: SLF001


async def _live(scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
    if scope["type"] != "lifespan":
        return
    asyncio.get_running_loop().set_task_factory(task_factory)
    await receive()
    inside = _moved_in()
    enter(inside)
    stop = asyncio.Event()
    # A terminal sends SIGINT to each of several processes; the supervisor decides, and sends SIGTERM.
    signals = BLOCKED_SIGNALS if inside.handed.place is None else (signal.SIGTERM,)
    threading.Thread(target=_await_signal, args=(asyncio.get_running_loop(), stop, signals), daemon=True).start()
    serving = asyncio.create_task(_serve_and_exit(inside, stop))
    await inside.may_listen.wait()
    await send({"type": "lifespan.startup.complete"})
    await receive()  # Envoy ends without having been told to by us
    stop.set()
    await serving


def _moved_in() -> Inside:
    """Reads what was handed over, and makes this process look like an ordinary Python."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    handed = Handed.read(folder)
    for variable in INTERPRETER_VARIABLES:  # processes that are started from here should not inherit them
        os.environ.pop(variable, None)
    sys.path[:] = [entry for entry in sys.path if entry != "."]  # pyvoy would take modules from the working folder
    os.chdir(handed.working_folder)
    return Inside(folder, handed)


def _await_signal(loop: asyncio.AbstractEventLoop, stop: asyncio.Event, signals: Iterable[signal.Signals]) -> None:
    """Waits for a signal to end, in a separate thread. Envoy would end at once, so it gets none of these signals."""
    signal.sigwait(signals)
    loop.call_soon_threadsafe(stop.set)


async def _serve_and_exit(inside: Inside, stop: asyncio.Event) -> None:
    """Serves, then ends the process with Envoy in it. Calls that Envoy still holds have had their time."""
    code = EXIT_FAILED
    try:
        settings = NamesrvSettings.model_validate(inside.handed.settings)
        make_observable(asyncio.get_running_loop(), debug=settings.asyncio_debug)
        dump_stacks_on_signal()
        logs = configure_logs(settings.log_format, settings.log_level)
        tune_garbage_collection()
        code = await _exit_code(settings, stop, inside.handed.place)
        inside.move_out()
        logs.stop()
        sys.stderr.flush()
    finally:
        os._exit(code)


async def _exit_code(settings: NamesrvSettings, stop: asyncio.Event, place: WorkerRole | None) -> int:
    """Serves until the event is set. Returns the exit code; if it is not 0, the reason has been written."""
    try:
        await serve_until(settings, stop, place)
    except (CannotListen, DataDirError) as error:
        say(PROGRAM, str(error))
        return EXIT_BAD_START
    except BaseException:  # noqa: BLE001 - whatever it is ends the process
        _log.exception("namesrv_failed")
        return EXIT_FAILED
    return 0
