"""One run of a command: whom to ask, how to show the answer, and which exit code."""

from __future__ import annotations

import inspect
import os
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from namesrv_common.client.channels import ClientSecurity
from namesrv_common.client.namesrv_client import SERVICES, NamesrvClient
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError
from namesrv_common.printable import say
from namesrv_common.tls.certificates import CertificateError, read_authorities
from nsctl.contexts import TLS_KEYS, ContextError, client_files, expanded, name_servers
from nsctl.contexts import agents as agent_endpoints
from nsctl.fleet import AGENT_SERVICES, Answer, AnswerT, NameServers
from nsctl.output import Format, Row, row, show
from nsctl.probe import Silence, why_silent

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
TlsCa = Annotated[
    str | None,
    typer.Option(
        "--tls-ca", envvar="NSCTL_TLS_CA", metavar="FILE", help="Authorities of name servers; without it, no TLS."
    ),
]
TlsCert = Annotated[
    str | None, typer.Option("--tls-cert", envvar="NSCTL_TLS_CERT", metavar="FILE", help="Certificate of this caller.")
]
TlsKey = Annotated[
    str | None, typer.Option("--tls-key", envvar="NSCTL_TLS_KEY", metavar="FILE", help="Its private key.")
]
TokenFile = Annotated[
    str | None, typer.Option("--token-file", envvar="NSCTL_TOKEN_FILE", metavar="FILE", help="Bearer token to send.")
]
TlsServerName = Annotated[
    str | None,
    typer.Option("--tls-server-name", envvar="NSCTL_TLS_SERVER_NAME", help="Name that certificates must have."),
]
CALLED = {
    "namesrv": Namesrv,
    "context": Context,
    "tls_ca": TlsCa,
    "tls_cert": TlsCert,
    "tls_key": TlsKey,
    "token_file": TokenFile,
    "tls_server_name": TlsServerName,
}
"""Options that say which name servers a command calls, and how."""
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


class Session:
    """The options, connections and output of a command."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        timeout_seconds: float,
        form: Format,
        security: ClientSecurity | None = None,
        services: Sequence[ServiceDescriptor] = SERVICES,
        *,
        watch: float | None = None,
    ) -> None:
        self.servers = NameServers(endpoints, timeout_seconds, security, services)
        self.security = security
        self.timeout_seconds = timeout_seconds
        self.form = form
        self.watch = watch
        """Pause in seconds after which the command runs again, or None if it runs once."""
        self.exit_code = 0

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
        files = None if self.security is None else self.security.files
        if files is not None and files.certificate is not None:
            context.load_cert_chain(files.certificate, files.key)
        return context

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

    def note(self, text: str) -> None:
        """Prints a line for people to standard error."""
        say(PROGRAM, text)

    def found(self, code: int) -> None:
        """Remembers an exit code; the largest wins."""
        self.exit_code = max(self.exit_code, code)

    def failed(self, error: CallError) -> None:
        """Reports a name server or agent that refused or failed. One that gave a reason did answer."""
        if not error.unreachable or error.error.reason:
            self.note(str(error))
            self.found(REFUSED)
            return
        of_grpc = error.endpoint in {server.endpoint for server in self.servers.all}
        files = None if self.security is None else self.security.files
        why = why_silent(error, files, self.timeout_seconds) if of_grpc else Silence.GONE
        said = f"{error.endpoint}: {why.said(error, self.timeout_seconds)}: {why.do}"
        self.note(str(error) if why in {Silence.GONE, Silence.ERROR} else said)
        self.found(REFUSED if why is Silence.ERROR else UNREACHABLE)

    def each(self, ask: Callable[[NamesrvClient], AnswerT]) -> list[Answer[AnswerT]]:
        """Asks all; reports those that failed."""
        answers = self.servers.each(ask)
        for answer in answers:
            if answer.error is not None:
                self.failed(answer.error)
        return answers

    def rows_of_pages(self, call: str, request: Message, field: str) -> list[Row]:
        """Asks all for the pages of a list; the rows of those that answered, and reports those that failed."""

        def ask(server: NamesrvClient) -> list[Row]:
            pages = server.pages(call, request)
            return [{"endpoint": str(server.endpoint), **row(one)} for page in pages for one in getattr(page, field)]

        return [row for answer in self.each(ask) for row in answer.value or ()]


def add_command(
    app: typer.Typer, name: str, run: Callable[..., None], *, acts: bool = False, agents: Any = None
) -> None:
    """Adds a command that is given a Session first, and the options that every command has last.

    Args:
        app: The program, or a part of it.
        run: What it does; its docstring is the help text, its other parameters are the command's own.
        acts: Whether it changes something; only what does not can be repeated with ``--watch``.
        agents: ``Agent`` or ``Agents`` if that is whom it asks, named by its first argument; else name servers.
    """
    signature = inspect.signature(run, eval_str=True)
    own = [parameter for key, parameter in signature.parameters.items() if key != "session"]

    def command(**values: Any) -> None:
        before: Called = values.pop("program").find_root().obj or Called()
        namesrv, asked = values.pop("namesrv", None) or before.namesrv, values.pop("agents", None)
        context = values.pop("context") or before.context
        output, timeout, watch = values.pop("output"), values.pop("timeout"), values.pop("watch", None)
        tls = {key: values.pop(key, None) for key in TLS_KEYS}
        if agents is not None and namesrv is not None:
            say(PROGRAM, "--namesrv is for name servers, and this command asks agents: name them as AGENT")
            raise typer.Exit(USAGE)
        try:
            files = client_files(tls, namesrv, context, os.environ)
            if agents is None:
                endpoints, services = name_servers(namesrv, context, os.environ), SERVICES
            else:
                endpoints, services = agent_endpoints([asked] if isinstance(asked, str) else asked), AGENT_SERVICES
                # These values of a context are for name servers: an agent must not see their token.
                token = tls["token_file"] and expanded(tls["token_file"])
                files = files and replace(files, token=token, server_name=tls["tls_server_name"])
            security = None if files is None else ClientSecurity(files)
        except (ContextError, CertificateError) as error:
            say(PROGRAM, str(error))
            raise typer.Exit(USAGE) from error
        session = Session(endpoints, timeout, output, security, services, watch=watch)
        try:
            _run(session, lambda: run(session, **values))
        finally:
            session.servers.close()
        raise typer.Exit(session.exit_code)

    called = dict(CALLED)
    parameters = [inspect.Parameter("program", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    if agents is not None:
        parameters.append(inspect.Parameter("agents", inspect.Parameter.KEYWORD_ONLY, annotation=agents))
        del called["namesrv"]
        called |= {"token_file": AgentTokenFile, "tls_server_name": AgentServerName}
    parameters += [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    parameters += options(called)
    parameters += options({"output": Output}, Format.TABLE) + options({"timeout": Timeout}, DEFAULT_TIMEOUT_SECONDS)
    parameters += [] if acts else options({"watch": Watch})
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.command(name, help=inspect.getdoc(run))(command)


def options(annotations: Mapping[str, Any], default: object = None) -> list[inspect.Parameter]:
    """Parameters of a command, by name."""
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, annotation in annotations.items()
    ]


def _run(session: Session, run: Callable[[], None]) -> None:
    while True:
        try:
            run()
        except CallError as error:
            session.failed(error)
        if session.watch is None:
            return
        try:
            time.sleep(session.watch)
        except KeyboardInterrupt:
            return
        session.exit_code = 0
