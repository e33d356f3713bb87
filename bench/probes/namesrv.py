"""``namesrv serve`` with a probe in its event loop: ``python -m bench.probes.namesrv``, with the same flags.

SIGUSR2 makes it log what the probe has seen since the last one, as the event ``loop_probed``.
"""

from __future__ import annotations

import asyncio
import signal

import structlog
import typer
import uvloop

from bench.probes.loop import LoopProbe
from groundwork.logs import configure_logs
from groundwork.program import stop_event
from groundwork.settings_cli import add_command
from namesrv.app.writer import tune_garbage_collection
from namesrv.server.server import NamesrvServer
from namesrv.settings import NamesrvSettings

LONGEST_LIFE_SECONDS = 600.0
"""It ends by then even if whoever started it is gone."""

PROBE_SIGNAL = signal.SIGUSR2
"""Asks the probe."""

_log = structlog.get_logger(__name__)


def serve(settings: NamesrvSettings) -> None:
    """Serve routes in memory, until SIGTERM."""
    configure_logs(settings.log_format, settings.log_level)
    tune_garbage_collection()
    uvloop.run(_serve(settings))


async def _serve(settings: NamesrvSettings) -> None:
    stop, probe = stop_event(), LoopProbe()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(PROBE_SIGNAL, lambda: _log.info("loop_probed", **probe.take()._asdict()))
    loop.call_later(LONGEST_LIFE_SECONDS, stop.set)
    watching = asyncio.create_task(probe.watch())
    await NamesrvServer(settings, None).run(stop)
    watching.cancel()


if __name__ == "__main__":
    app = typer.Typer()
    add_command(app, "serve", NamesrvSettings, serve)
    app()
