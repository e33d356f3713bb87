"""Contexts: which name servers are meant and how to call them, by flags, the environment or the contexts file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from os.path import expanduser
from pathlib import Path

import typer

from namesrv_common.client.channels import ClientFiles
from namesrv_common.endpoints import Endpoint, parse_endpoints
from namesrv_common.tls.certificates import CertificateError

NAMESRV_VARIABLE = "NAMESRV_ADDR"
"""The variable that RocketMQ's own tools read."""

LISTENER_VARIABLE = "NAMESRV_LISTEN"
"""Where the name server of the same container listens: its image sets the variable."""

CONTEXTS_VARIABLE = "NSCTL_CONTEXTS"
"""Path of the contexts file, if it is not the default."""


TLS_KEYS = ("tls_ca", "tls_cert", "tls_key", "token_file", "tls_server_name")
"""What a context says about TLS. Files are relative to the contexts file."""

_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # listeners' addresses, read and never bound
"""Addresses of all interfaces, and the loopback address of the same family."""


class ContextError(Exception):
    """It is not clear which name servers are meant. The text says what to do."""


def contexts_file(environment: Mapping[str, str]) -> Path:
    """Where the contexts file is. A user without a home, such as one of cron, has none: ``~`` stays as it is."""
    if path := environment.get(CONTEXTS_VARIABLE):
        return Path(path)
    base = environment.get("XDG_CONFIG_HOME") or expanded(environment.get("HOME") or "~") / ".config"
    return Path(base, "nsctl", "contexts.toml")


def expanded(path: str) -> Path:
    """A path with the home of a user instead of ``~``, which stays if the user has none: ``Path`` raises then."""
    return Path(expanduser(path))  # noqa: PTH111 - see above


def name_servers(flag: str | None, context: str | None, environment: Mapping[str, str]) -> tuple[Endpoint, ...]:
    """The name servers to ask.

    ``--namesrv`` wins over ``--context``, that over the variable, that over the file's ``current``, and that over the
    listener of the name server in the same container.

    Raises:
        ContextError: Nothing names any, or what names them makes no sense.
    """
    if flag is not None:
        return parsed("--namesrv", flag)
    where, values = _context_values(context, environment)
    if where:
        namesrv = values.get("namesrv")
        if not isinstance(namesrv, str):
            raise ContextError(f"{where}.namesrv is missing; it must be 'host:port;host:port'")
        return parsed(f"{where}.namesrv", namesrv)
    if text := environment.get(NAMESRV_VARIABLE):
        return parsed(NAMESRV_VARIABLE, text)
    if text := environment.get(LISTENER_VARIABLE):
        # Nobody can call the address of all interfaces.
        listeners = parsed(LISTENER_VARIABLE, text)
        return tuple(Endpoint(_LOOPBACK_OF.get(one.host, one.host), one.port) for one in listeners)
    how = f"Give --namesrv 'host:port;host:port', set {NAMESRV_VARIABLE}, or write {contexts_file(environment)}"
    raise ContextError(f"which name servers? {how}")


def client_files(
    flags: Mapping[str, str | None], namesrv: str | None, context: str | None, environment: Mapping[str, str]
) -> ClientFiles | None:
    """Certificates and authorities for name servers. None means no TLS.

    Any of the flags wins over all that the context says, which counts only if it names the name servers, too.

    Raises:
        ContextError: The files are not right, or do not go together.
    """
    given = {key: value for key, value in flags.items() if value is not None}
    where, told = ("", given) if given or namesrv is not None else _context_values(context, environment)
    where, folder = (f"{where}: ", contexts_file(environment).parent) if where else ("", Path())
    values = {key: told[key] for key in TLS_KEYS if key in told}
    for key, value in values.items():
        if not isinstance(value, str) or not value:
            raise ContextError(f"{where}{key} is {value!r:.100}; it must be a text")
    name = values.get(TLS_KEYS[-1])
    try:
        ca, cert, key_file, token = (
            folder / expanded(str(values[key])) if key in values else None for key in TLS_KEYS[:-1]
        )
        if ca is not None:
            return ClientFiles(ca, cert, key_file, token, None if name is None else str(name))
    except CertificateError as error:
        raise ContextError(f"{where}{error}") from error
    if values:  # a token would travel readable
        raise ContextError(f"{where}a certificate, key, token or server name is for TLS: that needs tls_ca, too")
    return None


def _context_values(wanted: str | None, environment: Mapping[str, str]) -> tuple[str, Mapping[str, object]]:
    """Where a context is, for errors, and what it says; empty values if no context names the name servers."""
    file = contexts_file(environment)
    if wanted is None and (environment.get(NAMESRV_VARIABLE) or not file.exists()):
        return "", {}
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ContextError(f"{file}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ContextError(f"{file}: {error}") from error
    name = values.get("current") if wanted is None else wanted
    if not isinstance(name, str):
        raise ContextError(f"{file}: current is missing; it names the context that is used without --context")
    contexts = values.get("contexts")
    if not isinstance(contexts, dict) or not isinstance(contexts.get(name), dict):
        there = ", ".join(sorted(contexts)) if isinstance(contexts, dict) and contexts else "none"
        raise ContextError(f"{file}: there is no context {name!r:.100}; there are: {there:.1000}")
    return f"{file}: contexts.{name:.100}", contexts[name]


def address(text: str, *, allow_port_zero: bool = False) -> Endpoint:
    """The one address that a text is. Raises typer.BadParameter."""
    try:
        return Endpoint.parse(text, allow_port_zero=allow_port_zero)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def parsed(where: str, text: str | Sequence[str]) -> tuple[Endpoint, ...]:
    """Whom a text names. Raises ContextError, which says where the text is, if one of them is no address."""
    try:
        return parse_endpoints(text)
    except ValueError as error:
        raise ContextError(f"{where}: {error}") from error
