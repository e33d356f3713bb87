"""The command line: ``broker-agent serve`` and ``broker-agent healthcheck``."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Annotated

import typer

from broker_agent.agent_server import SERVICE_NAME
from broker_agent.broker_controller import BrokerController
from broker_agent.errors import StartError
from broker_agent.settings import DEFAULT_LISTEN, AgentSettings
from broker_agent.stop_signals import StopSignals
from broker_agent.topic_config import load_topic_config_table
from groundwork.endpoints import Endpoint, parse_endpoints
from groundwork.health_check import check_health
from groundwork.logs import configure_logs
from groundwork.settings import add_command, exit_with
from groundwork.version import __version__

_PROGRAM = "broker-agent"
HEALTHCHECK_SECONDS = 3.0
"""Time for a health check: below the timeout that container engines give it by default."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut off our longer flags
)


def main() -> None:
    """Runs the command line."""
    app(prog_name=_PROGRAM)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"{_PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    *,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """The agent beside a broker: keeps it registered with every name server."""


def serve(settings: AgentSettings) -> None:
    """Registers the broker with every name server and keeps it registered, until SIGTERM or SIGINT."""
    try:
        table = load_topic_config_table(settings.topics)
        _check_resolvable(parse_endpoints(settings.namesrv))
        configure_logs(settings.log_format, settings.log_level)
        controller = BrokerController(settings, table)
    except StartError as error:
        exit_with(_PROGRAM, str(error))
    signals = StopSignals()
    controller.start()
    signals.wait()
    controller.stop()


add_command(app, "serve", AgentSettings, serve)


@app.command()
def healthcheck(
    endpoint: Annotated[
        str, typer.Option(envvar="BROKER_AGENT_LISTEN", help="Where the agent listens, host:port.")
    ] = DEFAULT_LISTEN,
) -> None:
    """Asks a running agent for its health: exit code 0 if it is SERVING, 1 if not."""
    try:
        agent = Endpoint.parse(endpoint)
    except ValueError as error:
        exit_with(_PROGRAM, f"--endpoint: {error}")
    problem = check_health(agent, SERVICE_NAME, HEALTHCHECK_SECONDS)
    if problem is not None:
        typer.echo(f"{_PROGRAM}: {problem}", err=True)
        raise typer.Exit(1)


def _check_resolvable(endpoints: Iterable[Endpoint]) -> None:
    """A name that cannot be resolved is a typing error more often than a passing fault of the DNS."""
    for endpoint in endpoints:
        try:
            socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        except OSError as error:
            message = f"setting namesrv: host {endpoint.host!r} of {endpoint} cannot be resolved: {error.strerror}"
            raise StartError(message) from error
