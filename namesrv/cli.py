"""The command line of the name server: ``namesrv serve`` and ``namesrv healthcheck``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from namesrv.app.writer import tune_garbage_collection
from namesrv.settings import NamesrvSettings
from namesrv_common.client.channels import ClientFiles, ClientSecurity, check_health
from namesrv_common.endpoints import Endpoint
from namesrv_common.printable import printable
from namesrv_common.process.command_line import version_option
from namesrv_common.process.program import stop_event, use_all_descriptors
from namesrv_common.process.settings_cli import add_command, exit_with
from namesrv_common.process.systemd import reload_on_hangup
from namesrv_common.tls.certificates import CertificateError

PROGRAM = "namesrv"

SWITCH_SECONDS = 0.0001
"""How long the event loop waits for the interpreter while a thread prepares a change; Python's own value is 5 ms."""

app = typer.Typer(
    name=PROGRAM,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut off the longer flags
)


def serve(settings: NamesrvSettings) -> None:
    """Serve routes until SIGTERM or SIGINT."""
    use_all_descriptors()
    # Most of the time of a start, and libraries that the health check does without.
    from namesrv.server.listeners import CannotListen  # noqa: PLC0415
    from namesrv.server.server import serve_until  # noqa: PLC0415
    from namesrv.storage.data_dir import DataDirError  # noqa: PLC0415

    async def serve_until_signal() -> None:
        await serve_until(settings, stop_event())

    reload_on_hangup()
    tune_garbage_collection()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        uvloop.run(serve_until_signal())
    except (CannotListen, DataDirError) as error:
        exit_with(PROGRAM, str(error))


@app.callback()
def _root(*, version: Annotated[bool, version_option(PROGRAM)] = False) -> None:
    """A gRPC name server for message brokers."""


@app.command()
def healthcheck(
    *,
    namesrv: Annotated[
        str, typer.Option(envvar="NAMESRV_LISTEN", help="Name server to ask over gRPC, HOST:PORT.")
    ] = "127.0.0.1:9876",
    service: Annotated[str, typer.Option(help="Full name of a service; empty for the whole server.")] = "",
    timeout: Annotated[float, typer.Option(help="Seconds to wait.", min=0.01)] = 2.0,
    tls_ca: Annotated[
        Path | None,
        typer.Option(envvar="NAMESRV_TLS_CA", help="Certificates that its one is checked with; else no TLS."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(envvar="NAMESRV_TLS_CERT", help="Certificate to show, if it asks for one.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(envvar="NAMESRV_TLS_KEY", help="Its private key.")] = None,
    tls_server_name: Annotated[
        str | None, typer.Option(envvar="NAMESRV_TLS_SERVER_NAME", help="Name that its certificate must have.")
    ] = None,
) -> None:
    """Ask a name server for its health: exit code 0 if it serves, 1 if not."""
    try:
        # The container's variables name the listener's own pair: show it only where the server's certificate is
        # checked.
        files = None if tls_ca is None else ClientFiles(tls_ca, tls_cert, tls_key, server_name=tls_server_name)
        security = None if files is None else ClientSecurity(files)
    except CertificateError as error:
        exit_with(PROGRAM, str(error))
    try:
        problem = check_health(Endpoint.parse(namesrv), service, timeout, security)
    except ValueError as error:
        exit_with(PROGRAM, f"--namesrv: {error}")
    if problem is not None:
        typer.echo(printable(problem), err=True)
        raise typer.Exit(1)


add_command(app, "serve", NamesrvSettings, serve)
