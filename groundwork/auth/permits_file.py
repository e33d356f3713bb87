"""The permits file, TOML or JSON: read whole, or not at all."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import structlog
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from groundwork.auth.permits import AgentAction, GroupPattern, Permits, Principal, token_key
from groundwork.files.bounded_read import read_at_most
from groundwork.files.hot_reload import HotReloaded

MAX_PERMITS_FILE_BYTES = 4 * 1024 * 1024
"""Largest permits file: reading one holds the interpreter for moments at a time."""

MAX_PRINCIPALS = 10_000
"""Most callers of one permits file."""

MAX_IDENTITY_LENGTH = 2_048
"""Longest name in a certificate (SPIFFE: a URI has at most 2,048 bytes)."""

_log = structlog.get_logger(__name__)

_PRINCIPAL_NAME = re.compile(r"[\w.@:/+-]{1,127}", re.ASCII)


class PermitsError(ValueError):
    """The permits file cannot be used. The text names it and says why."""


def _digest(text: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise ValueError("is not a SHA-256 in hexadecimal; printf %s TOKEN | sha256sum makes one")
    return text.lower()


def _pattern(text: str) -> str:
    return GroupPattern.parse(text).text


_Patterns = list[Annotated[str, AfterValidator(_pattern)]]


class _Agents(BaseModel):
    """A field for each AgentAction."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    read: _Patterns = []
    clients: _Patterns = []
    filter_servers: _Patterns = []
    topics: _Patterns = []
    operate: _Patterns = []
    replicate: _Patterns = []

    def granted(self) -> dict[AgentAction, tuple[GroupPattern, ...]]:
        return {
            action: tuple(map(GroupPattern.parse, patterns))
            for action in AgentAction
            if (patterns := getattr(self, action.value))
        }


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    certificates: list[Annotated[str, Field(min_length=1, max_length=MAX_IDENTITY_LENGTH)]] = []
    token_sha256: list[Annotated[str, AfterValidator(_digest)]] = []
    look_up: bool = False
    register_: _Patterns = Field([], alias="register")
    administer: bool = False
    agents: _Agents = _Agents()


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    principals: dict[str, _Row] = Field(min_length=1, max_length=MAX_PRINCIPALS)


def read_permits(path: Path) -> Permits:
    """Reads a permits file.

    Raises:
        PermitsError: It cannot be read, is empty or wrong, or two principals show the same.
    """
    try:
        data = read_at_most(path, MAX_PERMITS_FILE_BYTES)
    except OSError as error:
        raise PermitsError(f"permits file {path}: {error.strerror}") from None
    if not data.strip():
        raise PermitsError(f"permits file {path}: is empty, so nobody could call")
    try:
        return _permits(_File.model_validate(_parsed(path, data)))
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {_text(item)}" for item in error.errors()[:5])
        raise PermitsError(f"permits file {path}: {problems}") from None
    except (ValueError, RecursionError) as error:
        raise PermitsError(f"permits file {path}: {error}") from None


def reloaded_permits(path: Path, on_reloaded: Callable[[], None] = lambda: None) -> HotReloaded[Permits]:
    """The permits of a file, read again when it changes; a change that cannot be used leaves those before in force.

    Args:
        path: The file.
        on_reloaded: Called, in the thread that reads, when others than before are in force.

    Raises:
        PermitsError: It cannot be used now.
    """

    def tell(event: str, permits: Permits) -> None:
        _log.info(event, file=str(path), certificates=len(permits.by_certificate), tokens=len(permits.by_token))

    def reloaded_now(permits: Permits) -> None:
        on_reloaded()
        tell("permits_reloaded", permits)

    def kept(error: ValueError) -> None:
        _log.error("permits_file_refused", problem=str(error), in_force="those read before")

    reloaded = HotReloaded([path], lambda: read_permits(path), on_reloaded=reloaded_now, on_kept=kept)
    tell("permits_loaded", reloaded.value)
    return reloaded


def warn_of_permits(permits: Permits, *, with_tls: bool, client_ca: Path | None) -> None:
    """Logs what is unwise about permits on a listener, with TLS or without, that may ask for certificates."""
    if permits.by_token and not with_tls:
        _log.warning("tokens_without_tls", problem="bearer tokens travel readable")
    if permits.by_certificate and client_ca is None:
        _log.warning("permits_without_client_certificates", problem="no caller can show one: tls_client_ca is not set")


def _parsed(path: Path, data: bytes) -> Any:
    text = data.decode()
    return json.loads(text) if path.suffix == ".json" else tomllib.loads(text)


def _text(item: Any) -> str:
    return str(item["msg"]).removeprefix("Value error, ")


def _permits(file: _File) -> Permits:
    by_certificate: dict[str, Principal] = {}
    by_token: dict[bytes, Principal] = {}
    for name, row in file.principals.items():
        if not _PRINCIPAL_NAME.fullmatch(name):
            raise ValueError(
                f"principals.{name[:127]!r}: a name has 1 to 127 of the characters A-Z a-z 0-9 _ . @ : / + -"
            )
        if not row.certificates and not row.token_sha256:
            raise ValueError(f"principals.{name}: has neither certificates nor token_sha256, so nobody can be it")
        patterns = tuple(GroupPattern.parse(text) for text in row.register_)
        principal = Principal(
            name, lookup=row.look_up, register=patterns, administer=row.administer, agents=row.agents.granted()
        )
        for identity in row.certificates:
            if (other := by_certificate.setdefault(identity, principal)) is not principal:
                raise ValueError(f"principals.{name}: the certificate {identity!r} is {other.name}'s already")
        for digest in row.token_sha256:
            if (other := by_token.setdefault(token_key(bytes.fromhex(digest)), principal)) is not principal:
                raise ValueError(f"principals.{name}: the token with SHA-256 {digest[:8]}... is {other.name}'s already")
    return Permits(by_certificate, by_token)
