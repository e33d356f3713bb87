"""The command line: ``broker-agent serve`` and ``broker-agent healthcheck``, and the signals that stop them."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from broker_agent.broker_controller import BrokerController
from broker_agent.broker_probe import BrokerProbe, connect_to
from broker_agent.errors import StartError
from broker_agent.listener import SERVICE_NAME
from broker_agent.namesrv_list import namesrv_list_of
from broker_agent.settings import DEFAULT_BROKER_PORT, AgentSettings
from broker_agent.timing import Timing
from broker_agent.topics.files import FollowedTopics, TopicsFile
from broker_agent.topics.manager import TopicConfigManager
from broker_agent.topics.table import DataVersion, TopicConfigTable, built_in_topics
from namesrv_common.client.channels import ClientFiles, ClientSecurity, check_health
from namesrv_common.errors import Refused
from namesrv_common.printable import print_error
from namesrv_common.process.command_line import version_option
from namesrv_common.process.program import stop_event, use_all_descriptors
from namesrv_common.process.settings_cli import add_command, exit_with
from namesrv_common.process.systemd import reload_on_hangup, tell_systemd
from namesrv_common.tls.certificates import CertificateError

_PROGRAM = "broker-agent"
HEALTHCHECK_SECONDS = 3.0
"""Time for a health check: below the timeout that container engines give it by default."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut off the longer flags
)


@app.callback()
def _program(*, version: Annotated[bool, version_option(_PROGRAM)] = False) -> None:
    """The agent of a broker: keeps it registered with every name server."""


def serve(settings: AgentSettings) -> None:
    """Registers the broker with every name server and keeps it registered, until SIGTERM or SIGINT."""
    use_all_descriptors()
    try:
        controller = _controller(settings)
    except (StartError, Refused) as error:
        exit_with(_PROGRAM, str(error))
    reload_on_hangup()
    asyncio.run(_run_until_signal(controller))


async def _run_until_signal(controller: BrokerController) -> None:
    """Runs the agent, which works in threads. This one reads no files: on a disk that hangs it would miss signals."""
    stop = stop_event()
    controller.start()
    tell_systemd("READY=1")
    await stop.wait()
    tell_systemd("STOPPING=1")
    controller.stop()


def _controller(settings: AgentSettings) -> BrokerController:
    """Reads what the settings name. Raises StartError or Refused."""
    timing = Timing()
    topic_configs = topic_configs_of(settings, timing)
    try:
        namesrv_list = namesrv_list_of(settings.namesrv, timing=timing)
    except ValueError as error:
        raise StartError(f"setting namesrv: {error}") from error
    check = partial(connect_to, settings.probe_endpoint) if settings.probe_endpoint else None
    probe = BrokerProbe(check, timing, settings.probe_failures)
    return BrokerController(settings, topic_configs, namesrv_list, probe, timing)


def topic_configs_of(settings: AgentSettings, timing: Timing) -> TopicConfigManager:
    """Reads the topics that settings name. Raises StartError."""
    built_in = built_in_topics(settings.cluster, settings.broker_name)
    if settings.topics_mode == "own":
        file = TopicsFile(settings.topics)
        return TopicConfigManager(file.first_table(built_in, timing), timing, file=file, built_in=built_in)
    # The version that a broker has before its first change; the file's version will be newer.
    without_file = TopicConfigTable(DataVersion(0, 0), built_in) if settings.topics_missing == "wait" else None
    followed = FollowedTopics(settings.topics, timing)
    return TopicConfigManager(followed.first_table(without_file), timing, followed=followed)


add_command(app, "serve", AgentSettings, serve)


@app.command()
def healthcheck(
    fast_listen: Annotated[
        str | None,
        typer.Option(
            envvar="BROKER_AGENT_FAST_LISTEN",
            help="Where the agent's fast listener is, host:port. By default 2 ports below the ordinary one.",
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(envvar="BROKER_AGENT_LISTEN", help="Where the agent's ordinary listener is, host:port."),
    ] = None,
    broker_addr: Annotated[
        str,
        typer.Option(
            envvar="BROKER_AGENT_BROKER_ADDR",
            help="The broker's address, host:port: by default the ordinary listener is 9 ports above, on loopback.",
        ),
    ] = f"127.0.0.1:{DEFAULT_BROKER_PORT}",
    *,
    tls_ca: Annotated[
        Path | None,
        typer.Option(envvar="BROKER_AGENT_TLS_CA", help="Certificates that its one is checked with; else no TLS."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(envvar="BROKER_AGENT_TLS_CERT", help="Certificate to show; its listeners have TLS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(envvar="BROKER_AGENT_TLS_KEY", help="Its private key.")] = None,
    server_name: Annotated[str | None, typer.Option(help="Name that its certificate must have.")] = None,
) -> None:
    """Asks a running agent for its health: exit code 0 if it is SERVING, 1 if not."""
    try:
        given = "--fast-listen" if fast_listen is not None else "--listen" if listen is not None else "--broker-addr"
        told = AgentSettings.model_construct(fast_listen=fast_listen, listen=listen, broker_addr=broker_addr)
        agent = told.fast_listen_endpoint
    except ValueError as error:
        exit_with(_PROGRAM, f"{given}: {error}")
    try:
        # The agent's own settings: its listeners have TLS if it has a certificate.
        security = None
        if tls_ca is not None and tls_cert is not None:
            security = ClientSecurity(ClientFiles(tls_ca, tls_cert, tls_key, None, server_name))
    except CertificateError as error:
        exit_with(_PROGRAM, str(error))
    problem = check_health(agent, SERVICE_NAME, HEALTHCHECK_SECONDS, security)
    if problem is not None:
        print_error(_PROGRAM, problem)
        raise typer.Exit(1)
