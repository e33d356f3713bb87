"""One run of a command: whom to ask, how to show the answer, and which exit code."""

from __future__ import annotations

import json
import os
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

import grpc
import typer
from google.protobuf.message import Message
from rich.highlighter import JSONHighlighter
from typer.core import TyperCommand

from namesrv_common.client.channels import ClientSecurity, ConnectionSettings
from namesrv_common.client.namesrv_client import Client, NamesrvClient
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError, hint_on
from namesrv_common.printable import print_error, printable_json
from namesrv_common.process.terminal import TableConsole
from namesrv_common.tls.certificates import CertificateError, read_authorities
from nsctl.contexts import TLS_KEYS, ContextError, client_files, expanded, name_servers, parsed
from nsctl.findings import Code, Finding
from nsctl.output import Format, Row, row, table
from nsctl.rocketmq import RocketmqClient, RocketmqError

# Exit codes of the commands.

FOUND = 1
"""``diff`` or ``compare-rocketmq`` found a difference, ``doctor`` a problem, ``drain-status`` messages that wait, or
``agent status`` a registration that is missing."""
USAGE = 2
"""The command line, the environment or the contexts file makes no sense; nobody was asked."""
REFUSED = 3
"""A name server or agent answered with an error: there is no such topic or broker, or it did not take the change."""
UNREACHABLE = 4
"""A name server or agent did not answer. The answers of the others are shown."""
WARNED = 5
"""``doctor`` found a warning and no problem: cron may tell the two apart. ``backup save`` could not write an intent."""


class Ended(Exception):
    """What ends a command: a line for people, and the exit code."""


# The name servers or agents of a command: asked one after the other until one answers, or all at once.

AnswerT = TypeVar("AnswerT")
ClientT = TypeVar("ClientT", bound=Client)

CONNECTION = ConnectionSettings(longest_backoff_seconds=5.0)
"""Lets commands such as ``--follow`` find a restarted name server within seconds instead of two minutes."""


class Fleet(tuple[ClientT, ...]):
    """The name servers, or agents, that a command is about."""

    __slots__ = ()

    def first(self, ask: Callable[[ClientT], AnswerT]) -> AnswerT:
        """The answer of the first one that gives one.

        Raises:
            CallError: One of them refused the call, or none could be reached. Then it is the last error.
        """
        *others, last = self
        for server in others:
            try:
                return ask(server)
            except CallError as error:
                if not error.unreachable:
                    raise
        return ask(last)

    def each(self, ask: Callable[[ClientT], AnswerT]) -> tuple[dict[Endpoint, AnswerT], dict[Endpoint, CallError]]:
        """Asks all at the same time. Returns the answers, and the errors of the others, in the order of the fleet."""
        answers: dict[Endpoint, AnswerT] = {}
        errors: dict[Endpoint, CallError] = {}
        with ThreadPoolExecutor(len(self) or 1) as pool:
            for server, answer in [(server, pool.submit(ask, server)) for server in self]:
                try:
                    answers[server.endpoint] = answer.result()
                except CallError as error:
                    errors[server.endpoint] = error
        return answers, errors

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Closes all connections."""
        for server in self:
            server.close()


def name_servers_at(
    endpoints: Iterable[Endpoint], timeout_seconds: float, security: ClientSecurity | None
) -> Fleet[NamesrvClient]:
    """The name servers at these endpoints, connected at the first call."""
    return Fleet(NamesrvClient(one, timeout_seconds, security, settings=CONNECTION) for one in endpoints)


# Why a server does not answer a call of gRPC, and what to do about it.

_BY_HINT = {
    "the server's certificate has ended": Code.CERTIFICATE_ENDED,
    "something else than gRPC listens there": Code.WRONG_PORT,
}
"""Findings by gRPC's hints; all others are about TLS."""


def check_silence(error: CallError, timeout_seconds: float) -> Finding:
    """Why a server did not answer within so many seconds, and what to do about that."""
    told = error.error
    if told.code is grpc.StatusCode.DEADLINE_EXCEEDED:
        do = "see whether its process hangs, or the network drops packets"
        return Finding(Code.UNREACHABLE, f"did not answer within {timeout_seconds:g} s", do)
    if told.code is not grpc.StatusCode.UNAVAILABLE or told.reason:
        return Finding(Code.SERVER_ERROR, f"it answers with an error: {told}")
    what, _, do = hint_on(told.message).partition(": ")
    if "certificate" not in what and _speaks_rocketmq(error.endpoint, timeout_seconds):
        what = "it speaks RocketMQ's protocol: this is the port of brokers and clients"
        return Finding(Code.WRONG_PORT, what, "name its gRPC port")
    if not what:
        return Finding(Code.UNREACHABLE, f"cannot be reached: {told}", "start it, or take it off the list")
    return Finding(_BY_HINT.get(what, Code.TLS_REFUSED), what, do)


def _speaks_rocketmq(endpoint: Endpoint, timeout_seconds: float) -> bool:
    try:
        with RocketmqClient(endpoint, timeout_seconds) as server:
            server.groups()
    except CallError as error:
        return "answered code" in error.error.message
    return True


# One run of a command: which name servers, how its answer is shown, and what its exit code will be.

PROGRAM = "nsctl"
WIDTH_WITHOUT_TERMINAL = 1_000_000
"""Columns of a table that goes to a file or a pipe: each row is one line, so that other programs find whole names."""
DEFAULT_TIMEOUT_SECONDS = 5.0
"""Time for one call to one name server (RocketMQ's mqadmin: timeoutMillis 5000)."""

Namesrv = Annotated[
    str | None, typer.Option("--namesrv", "-n", metavar="HOST:PORT;...", help="Name servers (else $NAMESRV_ADDR).")
]
Context = Annotated[str | None, typer.Option("--context", help="A context of the contexts file.")]
Agent = Annotated[str, typer.Argument(metavar="AGENT", help="An agent's listener for operators, HOST:PORT.")]
Agents = Annotated[list[str], typer.Argument(metavar="AGENT...", help="Agents' listeners for operators, HOST:PORT.")]
RocketmqTlsCa = Annotated[
    Path | None,
    typer.Option(
        "--rocketmq-tls-ca",
        metavar="FILE",
        help="Certificates of authorities for a call over TLS; without them, no TLS.",
    ),
]


class Session(typer.Context):
    """One run of a command, and its context for typer: the options, connections and output."""

    servers: Fleet[NamesrvClient] = Fleet(())
    security: ClientSecurity | None = None
    timeout_seconds = DEFAULT_TIMEOUT_SECONDS
    form: Format = "table"
    watch: float | None = None
    """Pause in seconds after which the command runs again, or None if it runs once."""
    exit_code = 0

    def agents(self, named: Sequence[str]) -> Fleet[Client]:
        """Makes clients of agents; the caller closes them."""
        found = parsed("AGENT", named)
        return Fleet(Client(one, self.timeout_seconds, self.security, settings=CONNECTION) for one in found)

    def rocketmq(self, endpoint: Endpoint, authorities: Path | None) -> RocketmqClient:
        """Connects to a program of RocketMQ, which is shown the same certificate as the name servers. Raises CallError.

        Args:
            authorities: Certificates that its own is checked with. None if it is called without TLS.
        """
        if authorities is None:
            return RocketmqClient(endpoint, self.timeout_seconds)
        context = ssl.create_default_context(cadata=read_authorities(authorities).decode("ascii", "ignore"))
        if self.security is not None and (own := self.security.files).certificate is not None:
            context.load_cert_chain(own.certificate, own.key)
        return RocketmqClient(endpoint, self.timeout_seconds, context)

    def show(self, rows: Sequence[Row], columns: Sequence[str], title: str = "") -> None:
        """Shows rows as the user wants them.

        Args:
            rows: Values by name. Programs get all of them, with their types.
            columns: Names of the values that people see, in this order; or ``title=path`` of a value within others.
            title: A line above a table.
        """
        out = TableConsole()
        if not out.is_terminal:
            out = TableConsole(width=WIDTH_WITHOUT_TERMINAL)
        if self.form == "json":
            text = printable_json(json.dumps(list(rows), indent=2, ensure_ascii=False))
            out.print(JSONHighlighter()(text), soft_wrap=True)
        else:
            out.print(table(rows, columns, title))

    def show_parts(self, parts: Sequence[tuple[str, Sequence[Row], Sequence[str]]]) -> None:
        """Shows rows of several kinds, each with its columns: a table of each kind that has some, or one list."""
        if self.form != "table":
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
        elif isinstance(error, RocketmqError):
            self.note(str(error), UNREACHABLE)
        else:
            found = check_silence(error, self.timeout_seconds)
            exit_code = REFUSED if found.code is Code.SERVER_ERROR else UNREACHABLE
            self.note(f"{error.endpoint}: {found.what}: {found.do}", exit_code)

    def asked(self, fleet: Fleet[ClientT], ask: Callable[[ClientT], AnswerT]) -> dict[str, AnswerT]:
        """Asks name servers or agents; the answers by endpoint. Reports those that failed."""
        answers, errors = fleet.each(ask)
        for error in errors.values():
            self.failed(error)
        return {str(endpoint): answer for endpoint, answer in answers.items()}

    def each(self, ask: Callable[[NamesrvClient], AnswerT]) -> dict[str, AnswerT]:
        """Asks all name servers; the answers by endpoint. Reports those that failed."""
        return self.asked(self.servers, ask)

    def rows(self, ask: Callable[[NamesrvClient], Iterable[Message]]) -> list[Row]:
        """Asks all name servers for messages; a row for each message. Reports those that failed."""
        found = self.each(lambda server: [row(message) for message in ask(server)])
        return [{"endpoint": endpoint, **one} for endpoint, rows in found.items() for one in rows]


def _tls(name: str, meaning: str, metavar: str | None = "FILE") -> Any:
    """Makes an option that may also be a variable of its name."""
    return typer.Option(name, envvar=f"NSCTL_{name[2:].replace('-', '_').upper()}", metavar=metavar, help=meaning)


_declared = typer.Typer(add_completion=False)


@_declared.command()
def _prepare(
    session: Session,
    *,
    namesrv: Namesrv = None,
    context: Context = None,
    tls_ca: Annotated[str | None, _tls("--tls-ca", "Authorities of name servers; without it, no TLS.")] = None,
    tls_cert: Annotated[str | None, _tls("--tls-cert", "Certificate of this caller.")] = None,
    tls_key: Annotated[str | None, _tls("--tls-key", "Its private key.")] = None,
    token_file: Annotated[str | None, _tls("--token-file", "Bearer token to send.")] = None,
    tls_server_name: Annotated[
        str | None, _tls("--tls-server-name", "Name that certificates must have.", metavar=None)
    ] = None,
    agent_token_file: Annotated[
        str | None, typer.Option("--token-file", metavar="FILE", help="Bearer token to send to the agent.")
    ] = None,
    agent_server_name: Annotated[
        str | None, typer.Option("--tls-server-name", help="Name that the agent's certificate must have.")
    ] = None,
    output: Annotated[Format, typer.Option("--output", "-o", help="table for people, json for programs.")] = "table",
    timeout: Annotated[
        float, typer.Option(min=0.1, max=600.0, metavar="SECONDS", help="Time for one call.")
    ] = DEFAULT_TIMEOUT_SECONDS,
    watch: Annotated[
        float | None, typer.Option("--watch", min=0.5, metavar="SECONDS", help="Period of repetition.")
    ] = None,
) -> None:
    """Takes the values of the options that commands share, which are declared here.

    Makes clients of name servers, which are closed with the session. A command about agents has two options of its own
    instead of those for name servers: of its environment, agents get no token.
    """
    # The options before the command, which set ``obj``. Those after it win.
    namesrv_before, context_before = session.find_root().obj or (None, None)
    session.timeout_seconds, session.form, session.watch = timeout, output, watch
    asks_agents = isinstance(session.command, AgentShow)
    if asks_agents:
        token_file, tls_server_name = agent_token_file, agent_server_name
        if namesrv_before is not None:
            raise ContextError("--namesrv is for name servers, and this command asks agents: name them as AGENT")
    namesrv, context = namesrv or namesrv_before, context or context_before
    flags = dict(zip(TLS_KEYS, (tls_ca, tls_cert, tls_key, token_file, tls_server_name), strict=True))
    files = client_files(flags, namesrv, context, os.environ)
    if asks_agents and files is not None:
        # These values of a context are for name servers: an agent must not see their token.
        token = None if token_file is None else expanded(token_file)
        files = replace(files, token=token, server_name=tls_server_name)
    endpoints = () if asks_agents else name_servers(namesrv, context, os.environ)
    session.security = None if files is None else ClientSecurity(files)
    session.servers = session.with_resource(name_servers_at(endpoints, timeout, session.security))


OPTIONS = {str(one.name): one for one in typer.main.get_command(_declared).params}
OF_NAME_SERVERS, OF_AGENTS = {"namesrv", "token_file", "tls_server_name"}, {"agent_token_file", "agent_server_name"}


class Show(TyperCommand):
    """A command about name servers that changes nothing, so that it can be repeated. Shared options follow its own."""

    context_class = Session
    without: ClassVar[set[str]] = OF_AGENTS

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params += [option for name, option in OPTIONS.items() if name not in self.without]

    def invoke(self, ctx: Any) -> None:
        """Prepares the session and runs the command, again and again with ``--watch``."""
        session: Session = ctx
        try:
            _prepare(session, **{name: session.params.pop(name) for name in OPTIONS.keys() - self.without})
            while True:
                try:
                    super().invoke(session)
                except CallError as error:
                    session.failed(error)
                except Ended as end:
                    session.note(*end.args)
                if session.watch is None:
                    break
                try:
                    time.sleep(session.watch)
                except KeyboardInterrupt:
                    break
                session.exit_code = 0
        except (ContextError, CertificateError) as error:  # it is not clear whom to call, or how
            session.note(str(error), USAGE)
        raise typer.Exit(session.exit_code)


class Act(Show):
    """A command about name servers that may change something, or that repeats by itself."""

    without = OF_AGENTS | {"watch"}


class Serve(Show):
    """A command that shows nothing itself."""

    without = OF_AGENTS | {"watch", "output", "timeout"}


class AgentShow(Show):
    """A command about agents, which are among its own arguments, that changes nothing."""

    without = OF_NAME_SERVERS


class AgentAct(AgentShow):
    """A command about agents that changes something."""

    without = OF_NAME_SERVERS | {"watch"}
