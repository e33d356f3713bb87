"""The command ``namesrv console``."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence

import structlog
import typer
from aiohttp import web

from groundwork.certificates import CertificateError
from groundwork.channels import ClientSecurity
from groundwork.endpoints import Endpoint
from groundwork.listening import check_bindable
from groundwork.logs import configure_logs
from groundwork.settings import add_command, exit_with
from namesrv_console.fleet import Fleet
from namesrv_console.name_server import NameServer
from namesrv_console.settings import ConsoleSettings
from namesrv_console.web import application

PROGRAM = "namesrv console"

SHUTDOWN_SECONDS = 3.0
"""How long requests under way may take at the end."""

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut off our longer flags
)


def main(arguments: Sequence[str]) -> None:
    """Runs the command."""
    app(list(arguments), prog_name=PROGRAM)


def console(settings: ConsoleSettings) -> None:
    """Serve a web page that shows what name servers hold, live, until SIGTERM or SIGINT."""
    configure_logs(settings.log_format, settings.log_level)
    try:
        check_bindable(settings.listen_endpoint)
        security = settings.client_security()
    except (OSError, CertificateError) as error:
        exit_with(PROGRAM, str(error))
    asyncio.run(_serve(settings, security))


async def _serve(settings: ConsoleSettings, security: ClientSecurity | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    timeout_seconds = settings.call_timeout_millis / 1000
    servers = [NameServer(endpoint, timeout_seconds, security) for endpoint in settings.endpoints]
    fleet = Fleet(servers)
    app, events = application(fleet, permit_actions=settings.permit_actions, host_names=settings.host_name)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    try:
        await runner.setup()
        site = web.TCPSite(runner, settings.listen_endpoint.host, settings.listen_endpoint.port)
        await site.start()
        _log_start(settings, Endpoint(*runner.addresses[0][:2]))
        await _until(stop, fleet)
    finally:
        events.close()
        await runner.cleanup()
        for server in servers:
            await server.close()


async def _until(stop: asyncio.Event, fleet: Fleet) -> None:
    """Observes until it is told to stop; raises what ends the observation before."""
    observing = asyncio.create_task(fleet.run())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((observing, stopping), return_when=asyncio.FIRST_COMPLETED)
    if observing.done():
        stopping.cancel()
        observing.result()
    observing.cancel()


def _log_start(settings: ConsoleSettings, listen: Endpoint) -> None:
    log = structlog.get_logger("namesrv_console")
    log.info(
        "console_started",
        page=f"http://{listen}/",
        listen=str(listen),
        namesrv=settings.namesrv,
        permit_actions=settings.permit_actions,
    )
    if not listen.is_loopback:
        log.warning("listening_beyond_loopback_without_tls", listen=str(listen))


add_command(app, "console", ConsoleSettings, console)
