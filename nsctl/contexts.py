"""Which name servers are meant: a flag, the environment, or a context of the contexts file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from groundwork.endpoints import Endpoint, parse_endpoints

NAMESRV_VARIABLE = "NAMESRV_ADDR"
"""The variable that RocketMQ's own tools read."""

CONTEXTS_VARIABLE = "NSCTL_CONTEXTS"
"""Where the contexts file is, if not at its usual place."""


class ContextError(Exception):
    """It is not clear which name servers are meant. The text says what to do."""


def contexts_file(environment: Mapping[str, str], home: Path) -> Path:
    """Where the contexts file is."""
    if path := environment.get(CONTEXTS_VARIABLE):
        return Path(path)
    base = environment.get("XDG_CONFIG_HOME")
    return (Path(base) if base else home / ".config") / "nsctl" / "contexts.toml"


def name_servers(
    flag: str | None, context: str | None, environment: Mapping[str, str], home: Path
) -> tuple[Endpoint, ...]:
    """The name servers to ask.

    ``--namesrv`` wins over ``--context``, that over the variable, that over the file's ``current``.

    Raises:
        ContextError: Nothing names any, or what names them makes no sense.
    """
    file = contexts_file(environment, home)
    if flag is not None:
        return _parsed("--namesrv", flag)
    if context is not None:
        return _of_context(file, context)
    if text := environment.get(NAMESRV_VARIABLE):
        return _parsed(NAMESRV_VARIABLE, text)
    if file.exists():
        return _of_context(file, None)
    raise ContextError(
        f"which name servers? Give --namesrv 'host:port;host:port', set {NAMESRV_VARIABLE}, or write {file}"
    )


def _of_context(file: Path, wanted: str | None) -> tuple[Endpoint, ...]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ContextError(f"{file}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ContextError(f"{file}: {error}") from error
    name = values.get("current") if wanted is None else wanted
    if not isinstance(name, str):
        raise ContextError(f"{file}: current is missing; it names the context that is used without --context")
    contexts = values.get("contexts")
    if not isinstance(contexts, dict) or not isinstance(contexts.get(name), dict):
        there = ", ".join(sorted(contexts)) if isinstance(contexts, dict) and contexts else "none"
        raise ContextError(f"{file}: there is no context {name!r}; there are: {there}")
    namesrv = contexts[name].get("namesrv")
    if not isinstance(namesrv, str):
        raise ContextError(f"{file}: contexts.{name}.namesrv is missing; it must be 'host:port;host:port'")
    return _parsed(f"{file}: contexts.{name}.namesrv", namesrv)


def _parsed(where: str, text: str) -> tuple[Endpoint, ...]:
    try:
        return parse_endpoints(text)
    except ValueError as error:
        raise ContextError(f"{where}: {error}") from error
