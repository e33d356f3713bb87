"""The supervisor of several processes that answer on one port: one owns the tables, the others follow it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random, SystemRandom

import structlog

from groundwork.backoff import Backoff
from groundwork.endpoints import Endpoint
from groundwork.listening import check_bindable
from namesrv.config.settings import NamesrvSettings

FIRST_BACKOFF_SECONDS = 0.2
LONGEST_BACKOFF_SECONDS = 5.0
"""A process that ended is started again after a pause that doubles between these two, plus or minus a half."""
JITTER = (0.5, 1.5)

SOUND_SECONDS = 30.0
"""A process that ran for this long was healthy: the next pause is the first one again."""

BAD_START = 2
"""Exit code of a process that cannot start with its settings: starting it again would not help."""

OWNER_SECONDS = 60.0
"""Longest wait for the owner before the others are started; then they wait for it themselves."""

DRAIN_SECONDS = 15.0
"""How long a process may take to end beyond its grace. Then it is killed."""

_log = structlog.get_logger(__name__)


class Workers:
    """The processes of one name server."""

    def __init__(self, settings: NamesrvSettings, rng: Random | None = None) -> None:
        """Takes the port, so that no other server can.

        Raises:
            OSError: The port is in use, or the address is not this machine's; the text says which.
        """
        self._port = _reserve(settings.endpoint)
        listen = settings.endpoint._replace(port=self._port.getsockname()[1])
        changes: dict[str, object] = {"listen": str(listen), "name": settings.name or str(listen), "workers": 1}
        self._count = settings.workers
        self._settings = settings.model_dump(mode="json") | changes
        self._grace = settings.shutdown_grace_millis / 1000 + DRAIN_SECONDS
        self._backoff = Backoff(FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS, JITTER, rng=rng or SystemRandom())
        self._stopping = False
        self._processes: set[asyncio.subprocess.Process] = set()

    async def run(self, stop: asyncio.Event) -> int:
        """Keeps the processes running until the event is set; returns the exit code."""
        with tempfile.TemporaryDirectory(prefix="namesrv-") as folder:  # only this user may read the folder
            place = Path(folder) / "owner.sock"
            tasks = [asyncio.create_task(self._keep(number, place)) for number in range(self._count)]
            stopped = asyncio.create_task(stop.wait())
            done, _ = await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
            code = next((task.result() for task in tasks if task in done), 0)
            await self._stop()
            for task in (*tasks, stopped):
                task.cancel()
            await asyncio.gather(*tasks, stopped, return_exceptions=True)
        self._port.close()
        return code

    async def _keep(self, number: int, place: Path) -> int:
        """Starts one process again and again; returns its exit code if that does not help."""
        owns_tables, failures = number == 0, 0
        if not owns_tables:
            await _eventually(place.exists, OWNER_SECONDS)
        while True:
            started = time.monotonic()
            code = await self._run_once(number, place, owns_tables=owns_tables)
            if self._stopping or code == BAD_START:
                return code
            if time.monotonic() - started >= SOUND_SECONDS:
                failures = 0
            failures += 1
            pause = self._backoff.after(failures)
            _log.error("worker_ended", worker=number, code=code, again_in_seconds=round(pause, 3))
            await asyncio.sleep(pause)

    async def _run_once(self, number: int, place: Path, *, owns_tables: bool) -> int:
        settings = self._settings if owns_tables else _of_follower(self._settings)
        told = {"settings": settings, "socket": str(place), "owns_tables": owns_tables, "supervisor": os.getpid()}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "namesrv.process.worker", stdin=asyncio.subprocess.PIPE
        )
        self._processes.add(process)
        _log.info("worker_started", worker=number, process=process.pid, owns_tables=owns_tables)
        try:
            await process.communicate(json.dumps(told).encode() + b"\n")
            return process.returncode or 0
        finally:
            self._processes.discard(process)

    async def _stop(self) -> None:
        """Asks all processes to end, and kills those that do not."""
        self._stopping = True
        for process in tuple(self._processes):
            process.send_signal(signal.SIGTERM)
        if not await _eventually(lambda: not self._processes, self._grace):
            for process in tuple(self._processes):
                _log.error("worker_killed", process=process.pid, after_seconds=self._grace)
                process.kill()


def _of_follower(settings: dict[str, object]) -> dict[str, object]:
    """Settings that are for the owner alone: everything on disk, and the one port for metrics."""
    return settings | {"data_dir": None, "audit_file_max_bytes": 0, "metrics_listen": ""}


def _reserve(listen: Endpoint) -> socket.socket:
    """Takes a port that processes started from here may listen on. Raises OSError."""
    taken = socket.socket(socket.AF_INET6 if ":" in listen.host else socket.AF_INET)
    try:
        check_bindable(listen)  # or the port of another name server with workers would be shared silently
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(listen)
    except OSError:
        taken.close()
        raise
    return taken


async def _eventually(probe: Callable[[], bool], within_seconds: float) -> bool:
    """Checks a condition again and again; returns whether it came true within the time."""
    deadline = time.monotonic() + within_seconds
    while not probe():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True
