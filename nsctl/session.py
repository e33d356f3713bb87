"""One run of a command: whom to ask, how to show the answer, and which exit code."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import typer
from google.protobuf.message import Message
from typer.core import TyperCommand

from namesrv_common.client.channels import ClientFiles, ClientSecurity
from namesrv_common.client.namesrv_client import NamesrvClient
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError
from namesrv_common.printable import print_error
from namesrv_common.tls.certificates import CertificateError, read_authorities
from nsctl.contexts import ContextError, client_files, expanded, name_servers
from nsctl.contexts import agents as agent_endpoints
from nsctl.fleet import AgentClient, AnswerT, Fleet, name_servers_at
from nsctl.output import Format, Row, row, show
from nsctl.probe import Silence, why_silent
from nsctl.rocketmq import RocketmqError

# Exit codes of the commands.

FOUND = 1
"""``diff`` or ``compare-rocketmq`` found a difference, ``doctor`` a problem, ``drained`` messages that wait, or
``agent status`` a registration that is missing."""
USAGE = 2
"""The command line, the environment or the contexts file makes no sense; nobody was asked."""
REFUSED = 3
"""A name server or agent answered with an error: there is no such topic or broker, or it did not take the change."""
UNREACHABLE = 4
"""A name server or agent did not answer. The answers of the others are shown."""
WARNED = 5
"""``doctor`` found a warning and no problem: cron may tell the two apart. ``backup save`` could not write an intent."""


# One run of a command: which name servers, how its answer is shown, and what its exit code will be.

PROGRAM = "nsctl"
DEFAULT_TIMEOUT_SECONDS = 5.0
"""Time for one call to one name server (RocketMQ's mqadmin: timeoutMillis 5000)."""

Namesrv = Annotated[
    str | None, typer.Option("--namesrv", "-n", metavar="HOST:PORT;...", help="Name servers (else $NAMESRV_ADDR).")
]
Context = Annotated[str | None, typer.Option("--context", help="A context of the contexts file.")]
Output = Annotated[Format, typer.Option("--output", "-o", help="table for people, json for programs.")]
Timeout = Annotated[float, typer.Option(min=0.1, max=600.0, metavar="SECONDS", help="Time for one call.")]


def _file(name: str, meaning: str) -> Any:
    """Makes an option that is a file, or a variable of its name."""
    return typer.Option(name, envvar=f"NSCTL_{name[2:].replace('-', '_').upper()}", metavar="FILE", help=meaning)


TlsCa = Annotated[str | None, _file("--tls-ca", "Authorities of name servers; without it, no TLS.")]
TlsCert = Annotated[str | None, _file("--tls-cert", "Certificate of this caller.")]
TlsKey = Annotated[str | None, _file("--tls-key", "Its private key.")]
TokenFile = Annotated[str | None, _file("--token-file", "Bearer token to send.")]
TlsServerName = Annotated[
    str | None,
    typer.Option("--tls-server-name", envvar="NSCTL_TLS_SERVER_NAME", help="Name that certificates must have."),
]
Agent = Annotated[str, typer.Argument(metavar="AGENT", help="An agent's listener for operators, HOST:PORT.")]
Agents = Annotated[list[str], typer.Argument(metavar="AGENT...", help="Agents' listeners for operators, HOST:PORT.")]
AgentServerName = Annotated[
    str | None, typer.Option("--tls-server-name", help="Name that the agent's certificate must have.")
]
AgentTokenFile = Annotated[
    str | None, typer.Option("--token-file", metavar="FILE", help="Bearer token to send to the agent.")
]
RocketmqTlsCa = Annotated[
    Path | None,
    typer.Option(
        "--rocketmq-tls-ca",
        metavar="FILE",
        help="Certificates of authorities for a call over TLS; without them, no TLS.",
    ),
]
Watch = Annotated[float | None, typer.Option("--watch", min=0.5, metavar="SECONDS", help="Period of repetition.")]


class Called(NamedTuple):
    """Which name servers the options before the command name; those after it win."""

    namesrv: str | None = None
    context: str | None = None


class Session(typer.Context):
    """One run of a command, and its context for typer: the options, connections and output."""

    servers: Fleet[NamesrvClient] = Fleet(())
    security: ClientSecurity | None = None
    timeout_seconds = DEFAULT_TIMEOUT_SECONDS
    form = Format.TABLE
    watch: float | None = None
    """Pause in seconds after which the command runs again, or None if it runs once."""
    exit_code = 0

    def prepare(
        self,
        *,
        namesrv: str | None = None,
        context: str | None = None,
        output: Format = Format.TABLE,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        watch: float | None = None,
        **tls: str | None,
    ) -> None:
        """Takes the values of the shared options. Makes clients of name servers, which are closed with this context."""
        before: Called = self.find_root().obj or Called()
        self.timeout_seconds, self.form, self.watch = timeout, output, watch
        asks_agents = isinstance(self.command, AgentAct)
        if asks_agents and before.namesrv is not None:
            self.note("--namesrv is for name servers, and this command asks agents: name them as AGENT")
            raise typer.Exit(USAGE)
        namesrv, context = namesrv or before.namesrv, context or before.context
        with _usage_errors():
            files = client_files(tls, namesrv, context, os.environ)
            if asks_agents and files is not None:
                # These values of a context are for name servers: an agent must not see their token.
                token = None if tls["token_file"] is None else expanded(tls["token_file"])
                files = replace(files, token=token, server_name=tls["tls_server_name"])
            endpoints = () if asks_agents else name_servers(namesrv, context, os.environ)
            self.security = None if files is None else ClientSecurity(files)
        self.servers = self.with_resource(name_servers_at(endpoints, timeout, self.security))

    def agents(self, named: Sequence[str]) -> Fleet[AgentClient]:
        """Makes clients of agents; the caller closes them."""
        with _usage_errors():
            endpoints = agent_endpoints(named)
        return Fleet(AgentClient(one, self.timeout_seconds, self.security) for one in endpoints)

    def rocketmq_tls(self, authorities: Path | None) -> ssl.SSLContext | None:
        """Returns how to call a program of RocketMQ, which is shown the same certificate as the name servers.

        Args:
            authorities: Certificates that its own is checked with. None if it is called without TLS.
        """
        if authorities is None:
            return None
        try:
            context = ssl.create_default_context(cadata=read_authorities(authorities).decode("ascii", "ignore"))
        except CertificateError as error:
            raise typer.BadParameter(str(error)) from error
        if self.files is not None and self.files.certificate is not None:
            context.load_cert_chain(self.files.certificate, self.files.key)
        return context

    @property
    def files(self) -> ClientFiles | None:
        """Certificates and authorities of calls. None means no TLS."""
        return None if self.security is None else self.security.files

    def show(self, rows: Sequence[Row], columns: Sequence[str], title: str = "") -> None:
        """Shows rows as the user wants them."""
        show(rows, columns, self.form, title)

    def show_parts(self, parts: Sequence[tuple[str, Sequence[Row], Sequence[str]]]) -> None:
        """Shows rows of several kinds, each with its columns: a table of each kind that has some, or one list."""
        if self.form is not Format.TABLE:
            self.show([{"part": part, **row} for part, rows, _ in parts for row in rows], ())
            return
        for part, rows, columns in parts:
            if rows:
                self.show(rows, columns, part)

    def note(self, text: str, exit_code: int = 0) -> None:
        """Prints a line for people to standard error, and remembers an exit code."""
        print_error(PROGRAM, text)
        self.found(exit_code)

    def found(self, exit_code: int) -> None:
        """Remembers an exit code; the largest wins."""
        self.exit_code = max(self.exit_code, exit_code)

    def failed(self, error: CallError) -> None:
        """Reports a name server or agent that refused or failed. One that gave a reason did answer."""
        if not error.unreachable or error.error.reason:
            self.note(str(error), REFUSED)
            return
        is_rocketmq = isinstance(error, RocketmqError)
        why = Silence.GONE if is_rocketmq else why_silent(error, self.files, self.timeout_seconds)
        said = f"{error.endpoint}: {why.said(error, self.timeout_seconds)}: {why.do}"
        self.note(str(error) if why in {Silence.GONE, Silence.ERROR} else said)
        self.found(REFUSED if why is Silence.ERROR else UNREACHABLE)

    def answered(self, answers: Iterable[tuple[Endpoint, AnswerT | CallError]]) -> dict[str, AnswerT]:
        """The answers by endpoint. Reports the name servers or agents that failed."""
        found: dict[str, AnswerT] = {}
        for endpoint, answer in answers:
            if isinstance(answer, CallError):
                self.failed(answer)
            else:
                found[str(endpoint)] = answer
        return found

    def each(self, ask: Callable[[NamesrvClient], AnswerT]) -> dict[str, AnswerT]:
        """Asks all name servers; the answers by endpoint. Reports those that failed."""
        return self.answered(self.servers.each(ask))

    def rows(self, ask: Callable[[NamesrvClient], Iterable[Message]]) -> list[Row]:
        """Asks all name servers for messages; a row for each message. Reports those that failed."""
        found = self.each(lambda server: [row(message) for message in ask(server)])
        return [{"endpoint": endpoint, **one} for endpoint, rows in found.items() for one in rows]


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Ends the command with one line if it is not clear whom to call, or how."""
    try:
        yield
    except (ContextError, CertificateError) as error:
        print_error(PROGRAM, str(error))
        raise typer.Exit(USAGE) from error


def _of_name_servers(
    *,
    namesrv: Namesrv = None,
    context: Context = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
    tls_server_name: TlsServerName = None,
    output: Output = Format.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    watch: Watch = None,
) -> None:
    """Declares the options of every command about name servers: ``Session.prepare`` gets their values."""


def _of_agents(*, token_file: AgentTokenFile = None, tls_server_name: AgentServerName = None) -> None:
    """Declares the options that a command about agents has instead: of its environment, they get no token."""


def _options_of(declaration: Callable[..., None]) -> dict[str, Any]:
    """The options of a function by name."""
    app = typer.Typer(add_completion=False)
    app.command()(declaration)
    return {str(one.name): one for one in typer.main.get_command(app).params}


class Act(TyperCommand):
    """A command about name servers. The options of every command follow its own."""

    context_class = Session
    shared: ClassVar[Mapping[str, Any]] = _options_of(_of_name_servers)
    omitted: ClassVar[AbstractSet[str]] = {"watch"}
    """Options that it does not have. ``--watch`` is only for commands that change nothing."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params += [one for name, one in self.shared.items() if name not in self.omitted]

    def invoke(self, ctx: Any) -> None:
        """Prepares the session and runs the command, again and again with ``--watch``."""
        session: Session = ctx
        session.prepare(**{name: session.params.pop(name) for name in self.shared if name not in self.omitted})
        while True:
            try:
                super().invoke(session)
            except CallError as error:
                session.failed(error)
            if session.watch is None:
                raise typer.Exit(session.exit_code)
            try:
                time.sleep(session.watch)
            except KeyboardInterrupt:
                raise typer.Exit(session.exit_code) from None
            session.exit_code = 0


class Show(Act):
    """A command that changes nothing, so that it can be repeated."""

    omitted: ClassVar[AbstractSet[str]] = frozenset()


class Serve(Act):
    """A command that shows nothing itself."""

    omitted: ClassVar[AbstractSet[str]] = {"watch", "output", "timeout"}


class AgentAct(Act):
    """A command about agents, which are among its own arguments."""

    shared: ClassVar[Mapping[str, Any]] = {**Act.shared, **_options_of(_of_agents)}
    omitted: ClassVar[AbstractSet[str]] = {"namesrv", "watch"}


class AgentShow(AgentAct):
    """A command about agents that changes nothing."""

    omitted: ClassVar[AbstractSet[str]] = {"namesrv"}
