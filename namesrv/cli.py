"""The command line: ``namesrv serve`` and ``namesrv healthcheck``."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Annotated

import typer
import uvloop

from groundwork.endpoints import Endpoint
from groundwork.health_check import check_health
from groundwork.logs import configure_logs
from groundwork.settings import add_command, exit_with
from groundwork.version import __version__
from namesrv.data_dir import DataDir, DataDirError
from namesrv.garbage_collection import tune_garbage_collection
from namesrv.server.server import CannotListen, NamesrvServer
from namesrv.settings import NamesrvSettings

PROGRAM = "namesrv"

app = typer.Typer(
    name=PROGRAM,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut off our longer flags
)


def serve(settings: NamesrvSettings) -> None:
    """Serve routes until SIGTERM or SIGINT."""
    configure_logs(settings.log_format, settings.log_level)
    tune_garbage_collection()
    try:
        with contextlib.ExitStack() as resources:
            data_dir = DataDir.open(settings.data_dir) if settings.data_dir else None
            if data_dir:
                resources.callback(data_dir.close)
            uvloop.run(_serve(settings, data_dir))
    except (CannotListen, DataDirError) as error:
        exit_with(PROGRAM, str(error))


async def _serve(settings: NamesrvSettings, data_dir: DataDir | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await NamesrvServer(settings, data_dir).run(stop)


def _version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """A gRPC name server for message brokers."""


@app.command()
def healthcheck(
    endpoint: Annotated[
        str, typer.Option(envvar="NAMESRV_LISTEN", help="Name server to ask, HOST:PORT.")
    ] = "127.0.0.1:9876",
    service: Annotated[str, typer.Option(help="Full name of a service; empty for the whole server.")] = "",
    timeout: Annotated[float, typer.Option(help="Seconds to wait.", min=0.01)] = 2.0,
) -> None:
    """Ask a name server for its health: exit code 0 if it serves, 1 if not."""
    try:
        problem = check_health(Endpoint.parse(endpoint), service, timeout)
    except ValueError as error:
        exit_with(PROGRAM, f"--endpoint: {error}")
    if problem is not None:
        typer.echo(problem, err=True)
        raise typer.Exit(1)


add_command(app, "serve", NamesrvSettings, serve)


def main() -> None:
    """Entry point of the console script."""
    app()
