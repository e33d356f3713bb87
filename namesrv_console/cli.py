"""The command ``namesrv console``."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from itertools import chain
from typing import Any, NamedTuple

import structlog
import typer
from aiohttp import web

from groundwork.certificates import CertificateError
from groundwork.channels import ClientSecurity
from groundwork.endpoints import Endpoint
from groundwork.grpcio_server import check_bindable
from groundwork.json_lines import take_stderr
from groundwork.logs import configure_logs
from groundwork.namesrv_client import AioNamesrvClient, ConnectionSettings
from groundwork.program import stop_event
from groundwork.settings_cli import add_command, exit_with
from namesrv_console.fleet.fleet import Fleet
from namesrv_console.listener.connections import WAITING_CONNECTIONS, Connections, http_logger
from namesrv_console.listener.tls import PageTls
from namesrv_console.log_in.log_in import Doors, LogIn
from namesrv_console.log_in.people import reloaded_users, role_of
from namesrv_console.log_in.proxy import TrustedProxy
from namesrv_console.settings import ConsoleSettings
from namesrv_console.web import application

PROGRAM = "namesrv console"

SHUTDOWN_SECONDS = 3.0
"""How long requests under way may take at the end."""

CONNECTION = ConnectionSettings(longest_backoff_seconds=2.0)
"""A name server that is back is seen within seconds, not within gRPC's two minutes."""


class _Page(NamedTuple):
    """What guards the page; read before it is served, so that what cannot be used is told at once."""

    tls: PageTls | None
    log_in: LogIn | None

    @classmethod
    def of(cls, settings: ConsoleSettings) -> _Page:
        """Reads the files. Raises CertificateError."""
        cert, key = settings.listen_tls_cert, settings.listen_tls_key
        return cls(None if cert is None or key is None else PageTls(cert, key), _log_in(settings))


def _log_in(settings: ConsoleSettings) -> LogIn | None:
    if not settings.has_log_in:
        return None
    header, users = settings.proxy_header, settings.users_file
    doors = Doors(
        None if users is None else reloaded_users(users),
        None if header is None else TrustedProxy(header, settings.proxies),
        role_of(settings.proxy_role),
    )
    return LogIn(settings.log_in_token_file, over_tls=settings.listen_tls_cert is not None, doors=doors)


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
    if settings.log_format == "json":
        take_stderr()
    configure_logs(settings.log_format, settings.log_level)
    try:
        check_bindable(settings.listen_endpoint)
        security = settings.client_security()
        page = _Page.of(settings)
    except (OSError, CertificateError) as error:
        exit_with(PROGRAM, str(error))
    asyncio.run(_serve(settings, security, page))


async def _serve(settings: ConsoleSettings, security: ClientSecurity | None, page: _Page) -> None:
    stop = stop_event()
    timeout_seconds = settings.call_timeout_millis / 1000
    servers = {
        name: [AioNamesrvClient(endpoint, timeout_seconds, security, settings=CONNECTION) for endpoint in endpoints]
        for name, endpoints in settings.fleets.items()
    }
    fleets = {name: Fleet(members) for name, members in servers.items()}
    connections = Connections()
    app, events = application(
        fleets,
        permit_actions=settings.permit_actions,
        host_names=settings.host_name,
        log_in=page.log_in,
        connections=connections,
    )
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS, logger=http_logger())
    listener: asyncio.Server | None = None
    try:
        await runner.setup()
        assert runner.server is not None, "it has been set up"
        listen, context = settings.listen_endpoint, None if page.tls is None else page.tls.context
        listener = await asyncio.get_running_loop().create_server(
            connections.guarding(runner.server), listen.host, listen.port, ssl=context, backlog=WAITING_CONNECTIONS
        )
        _log_start(settings, Endpoint(*listener.sockets[0].getsockname()[:2]))
        watching = (connections.watch(), *((page.tls.watch(),) if page.tls else ()))
        await _until(stop, *watching, *(fleet.run() for fleet in fleets.values()))
    finally:
        if listener is not None:
            listener.close()
        events.close()
        await runner.cleanup()
        for server in chain.from_iterable(servers.values()):
            await server.close()


async def _until(stop: asyncio.Event, *works: Coroutine[Any, Any, None]) -> None:
    """Works until it is told to stop; raises what ends any of the works before."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in works]
        await stop.wait()
        for task in tasks:
            task.cancel()


def _log_start(settings: ConsoleSettings, listen: Endpoint) -> None:
    log = structlog.get_logger("namesrv_console")
    log.info(
        "console_started",
        page=f"{'https' if settings.listen_tls_cert else 'http'}://{listen}/",
        listen=str(listen),
        namesrv=settings.fleet or settings.namesrv,
        permit_actions=settings.permit_actions,
        log_in=settings.has_log_in,
    )
    if not listen.is_loopback and settings.listen_tls_cert is None:
        log.warning("listening_beyond_loopback_without_tls", listen=str(listen))


add_command(app, "console", ConsoleSettings, console)
