"""The command ``nsctl console``: its settings, and how the page is served."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn, Self

import structlog
import typer
from aiohttp import web
from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from groundwork.certificates import CertificateError
from groundwork.channels import ClientSecurity
from groundwork.endpoints import Endpoint
from groundwork.grpcio_server import check_bindable
from groundwork.hangup import reload_on_hangup
from groundwork.json_lines import LogFormat
from groundwork.listener_tls import ListenerFiles, ListenerTls
from groundwork.logs import configure_logs
from groundwork.namesrv_client import AioNamesrvClient, ConnectionSettings
from groundwork.program import stop_event
from groundwork.settings_cli import ADVANCED, ProgramSettings, add_command, exit_with
from groundwork.shutdown import STEP_SECONDS, Background, run_step
from groundwork.watched_file import CHECK_SECONDS
from nsctl.console.log_in import LogIn, Network, TrustedProxy, reloaded_users
from nsctl.console.observer import Fleet
from nsctl.console.protection import WAITING_CONNECTIONS, PageProtocol, page_connections
from nsctl.console.web import application
from nsctl.contexts import ContextError, client_files, name_servers
from nsctl.session import CALLED, options

# The console's settings.

MAX_NAME_SERVERS = 16
"""Most name servers of one console: each is a column of the page, and is asked every second."""


class ConsoleSettings(ProgramSettings):
    """Settings of ``nsctl console``. Which name servers it calls, and how, it is told as every command of ``nsctl``."""

    model_config = SettingsConfigDict(env_prefix="NAMESRV_CONSOLE_")

    listen: str = Field(
        "127.0.0.1:9880", description="Where to listen, HOST:PORT. Port 0 takes any free one, which the log names."
    )
    listen_tls_cert: Path | None = Field(
        None,
        description="Certificate of the page, and those that it was signed by, PEM: then it has TLS, and only that.",
    )
    listen_tls_key: Path | None = Field(None, description="Its private key, PEM, not encrypted.")
    log_in_token_file: Path | None = Field(
        None, description="File with the token that viewers must log in with. Without one, the page is for everybody."
    )
    users_file: Path | None = Field(
        None,
        description="TOML file of people's names, roles and hashed passwords; see `nsctl console-user`.",
    )
    proxy_header: str | None = Field(
        None,
        description="Header in which a proxy says who asks; it is believed from proxy_address only.",
        json_schema_extra=ADVANCED,
    )
    proxy_address: list[str] = Field(
        [],
        description="Address or network, as 10.0.0.0/8, of a proxy that is believed; may be repeated.",
        json_schema_extra=ADVANCED,
    )
    permit_actions: bool = Field(
        False,
        description="Allow operators and admins to drain and restore brokers. Beyond loopback it needs a log-in.",
    )
    allow_insecure: bool = Field(
        False,
        description="Allow a listener beyond loopback without TLS, or without a log-in.",
        json_schema_extra=ADVANCED,
    )
    host_name: list[str] = Field(
        [],
        description="A name by which browsers may reach the page, besides localhost and addresses; may be repeated.",
        json_schema_extra=ADVANCED,
    )
    log_format: LogFormat = Field("text", description="Log lines: text or json.", json_schema_extra=ADVANCED)

    @field_validator("proxy_address")
    @classmethod
    def _proxies(cls, value: list[str]) -> list[str]:
        for address in value:
            try:
                ipaddress.ip_network(address)
            except ValueError as error:
                raise ValueError(f"{address[:64]!r}: {error}") from None
        return value

    @field_validator("listen")
    @classmethod
    def _listener(cls, value: str) -> str:
        return str(Endpoint.parse(value, allow_port_zero=True))

    @model_validator(mode="after")
    def _safe(self) -> Self:
        if (self.listen_tls_cert is None) != (self.listen_tls_key is None):
            raise ValueError("listen_tls_cert and listen_tls_key belong together, and one of them is not set")
        if self.listen_endpoint.is_loopback:
            return self
        needed = {"TLS (listen_tls_cert)": self.listen_tls_cert, "log-in (log_in_token_file)": self.has_log_in or None}
        lacking = [what for what, given in needed.items() if given is None]
        where = f"setting listen: {self.listen} is beyond loopback, and the page has"
        if lacking and not self.allow_insecure:
            raise ValueError(f"{where} no {' and no '.join(lacking)}; set them, or --allow-insecure")
        if self.permit_actions and not self.has_log_in:
            raise ValueError(
                f"{where} no log-in: with permit_actions that needs log_in_token_file, users_file or proxy_header"
            )
        return self

    @model_validator(mode="after")
    def _proxy(self) -> Self:
        if (self.proxy_header is None) != (not self.proxy_address):
            raise ValueError("proxy_header and proxy_address belong together, and one of them is not set")
        if self.proxy_header is not None and not re.fullmatch(r"[A-Za-z0-9-]{1,64}", self.proxy_header):
            raise ValueError(f"proxy_header: {self.proxy_header[:64]!r} is no name of a header")
        return self

    @property
    def has_log_in(self) -> bool:
        """Whether it is known of everybody who gets something who it is, or that he has the token."""
        return any(way is not None for way in (self.log_in_token_file, self.users_file, self.proxy_header))

    @property
    def proxies(self) -> tuple[Network, ...]:
        """Where the proxy is."""
        return tuple(ipaddress.ip_network(address) for address in self.proxy_address)

    @property
    def listen_endpoint(self) -> Endpoint:
        """Where to listen."""
        return Endpoint.parse(self.listen, allow_port_zero=True)


# TLS of the page: certificates that are read again when they change.


class PageTls:
    """What new connections to the page are shown; those that are open go on as they began."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Reads the files. Raises CertificateError."""
        self._files = (certificate, key)
        self._tls = ListenerTls(ListenerFiles(certificate, key))
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        """Stays the same; what it shows changes."""
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.load_cert_chain(*self._files)

    async def watch(self) -> NoReturn:
        """Looks every second whether the files have changed. Runs until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            before = self._tls.generation
            self._tls.look()
            if self._tls.generation != before:
                self.context.load_cert_chain(*self._files)


# The command ``nsctl console``.

PROGRAM = "nsctl console"

SHUTDOWN_SECONDS = 3.0
"""How long requests under way may take at the end."""

CALL_SECONDS = 3.0
"""Time for one call to one name server; then it counts as unreachable. The largest tables take less than a second."""

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
    return LogIn(
        settings.log_in_token_file,
        over_tls=settings.listen_tls_cert is not None,
        users=None if users is None else reloaded_users(users),
        proxy=None if header is None else TrustedProxy(header, settings.proxies),
    )


app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut off our longer flags
)


def main(arguments: Sequence[str]) -> None:
    """Runs the command."""
    app(list(arguments), prog_name=PROGRAM)


def console(settings: ConsoleSettings, *, namesrv: str | None, context: str | None, **tls: str | None) -> None:
    """Serve a web page that shows what name servers hold, live, until SIGTERM or SIGINT."""
    configure_logs(settings.log_format, "info")
    reload_on_hangup()
    try:
        endpoints = name_servers(namesrv, context, os.environ, Path.home())
        files = client_files(tls, namesrv, context, os.environ, Path.home())
        security = None if files is None else ClientSecurity(files)
        check_bindable(settings.listen_endpoint)
        page = _Page.of(settings)
    except (ContextError, OSError, CertificateError) as error:
        exit_with(PROGRAM, str(error))
    if len(endpoints) > MAX_NAME_SERVERS:
        exit_with(PROGRAM, f"there are {len(endpoints)} name servers, at most {MAX_NAME_SERVERS}")
    asyncio.run(_serve(settings, endpoints, security, page))


async def _serve(
    settings: ConsoleSettings, endpoints: Sequence[Endpoint], security: ClientSecurity | None, page: _Page
) -> None:
    stop = stop_event()
    servers = [AioNamesrvClient(endpoint, CALL_SECONDS, security, settings=CONNECTION) for endpoint in endpoints]
    fleet = Fleet(servers)
    connections = page_connections()
    app, events = application(
        fleet,
        permit_actions=settings.permit_actions,
        host_names=settings.host_name,
        log_in=page.log_in,
        connections=connections,
    )
    runner = web.AppRunner(app, shutdown_timeout=SHUTDOWN_SECONDS)
    listener: asyncio.Server | None = None
    try:
        await runner.setup()
        server = runner.server
        assert server is not None, "it has been set up"
        listen, context = settings.listen_endpoint, None if page.tls is None else page.tls.context
        listener = await asyncio.get_running_loop().create_server(
            lambda: PageProtocol(server, connections),
            listen.host,
            listen.port,
            ssl=context,
            backlog=WAITING_CONNECTIONS,
        )
        _log_start(settings, endpoints, Endpoint(*listener.sockets[0].getsockname()[:2]))
        background = Background()
        for work in (fleet.run(), *((page.tls.watch(),) if page.tls else ())):
            background.begin(work)
        await background.run_until(stop)
    finally:
        if listener is not None:
            listener.close()
        events.close()
        await run_step("page", runner.cleanup(), SHUTDOWN_SECONDS + STEP_SECONDS)
        await run_step("connections", asyncio.gather(*(server.close() for server in servers)))


def _log_start(settings: ConsoleSettings, endpoints: Sequence[Endpoint], listen: Endpoint) -> None:
    log = structlog.get_logger("nsctl.console")
    log.info(
        "console_started",
        page=f"{'https' if settings.listen_tls_cert else 'http'}://{listen}/",
        listen=str(listen),
        namesrv=list(map(str, endpoints)),
        permit_actions=settings.permit_actions,
        log_in=settings.has_log_in,
    )
    if not listen.is_loopback and settings.listen_tls_cert is None:
        log.warning("listening_beyond_loopback_without_tls", listen=str(listen))


add_command(app, "console", ConsoleSettings, console, options(CALLED))
