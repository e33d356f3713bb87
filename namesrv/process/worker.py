"""One of several processes of a name server: the supervisor starts it and tells it its role.

It ends with its supervisor, however that ends: the kernel kills it then.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys

from groundwork.logs import configure_logs
from groundwork.settings import exit_with
from groundwork.stack_dumps import dump_stacks_on_signal
from namesrv.config.settings import NamesrvSettings
from namesrv.garbage_collection import tune_garbage_collection
from namesrv.process.event_loop import run_in_loop
from namesrv.process.serving import serve_until
from namesrv.server.listener import CannotListen
from namesrv.server.worker_role import WorkerRole
from namesrv.storage.data_dir import DataDirError

_PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""


def main() -> None:
    """Reads from standard input what the supervisor wants, and serves until SIGTERM."""
    dump_stacks_on_signal()
    told = json.loads(sys.stdin.buffer.readline())
    _end_with_supervisor(told["supervisor"])
    settings = NamesrvSettings(**told["settings"])
    place = WorkerRole(told["socket"], told["owns_tables"])
    try:
        configure_logs(settings.log_format, settings.log_level)
        tune_garbage_collection()
        run_in_loop(_serve(settings, place), asyncio_debug=settings.asyncio_debug)
    except (CannotListen, DataDirError) as error:
        exit_with("namesrv", str(error))


async def _serve(settings: NamesrvSettings, place: WorkerRole) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # a terminal sends it to all; the supervisor decides
    await serve_until(settings, stop, place)


def _end_with_supervisor(supervisor: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:  # the supervisor ended before the kernel was told
        sys.exit(1)


if __name__ == "__main__":
    main()
