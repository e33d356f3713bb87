"""The console's settings."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from groundwork.endpoints import Endpoint, parse_endpoints
from groundwork.json_lines import LogFormat
from groundwork.logs import LogLevel
from groundwork.settings_cli import ProgramSettings
from groundwork.tls_settings import ClientSecuritySettings
from namesrv_console.log_in.people import RoleName
from namesrv_console.log_in.proxy import Network

MAX_NAME_SERVERS = 16
"""Most name servers of one console: each is a column of the page, and is asked every second."""


MAX_FLEETS = 16
"""Most fleets of one console: each name server of each is asked every second."""


def _checked_endpoints(texts: Sequence[str]) -> tuple[Endpoint, ...]:
    endpoints = parse_endpoints(texts)
    if len(endpoints) > MAX_NAME_SERVERS:
        raise ValueError(f"there are {len(endpoints)} name servers, at most {MAX_NAME_SERVERS}")
    return endpoints


def _fleet(text: str) -> tuple[str, tuple[Endpoint, ...]]:
    name, _, namesrv = text.partition("=")
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
        raise ValueError(f"{text[:80]!r} is not NAME=HOST:PORT;…, with a NAME of 1 to 64 of A-Z a-z 0-9 _ . -")
    return name, _checked_endpoints([namesrv])


class ConsoleSettings(ClientSecuritySettings, ProgramSettings):
    """Settings of ``namesrv console``. Those that begin with tls are for the calls to the name servers."""

    model_config = SettingsConfigDict(env_prefix="NAMESRV_CONSOLE_")

    namesrv: list[str] = Field([], description="Name servers, HOST:PORT;HOST:PORT;…")
    fleet: list[str] = Field(
        [], description="In place of namesrv: NAME=HOST:PORT;HOST:PORT;… of one of several fleets; may be repeated."
    )
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
        description="TOML file of people's names, roles and hashed passwords; see `namesrv console-user`.",
    )
    proxy_header: str | None = Field(
        None, description="Header in which a proxy says who asks; it is believed from proxy_address only."
    )
    proxy_address: list[str] = Field(
        [], description="Address or network, as 10.0.0.0/8, of a proxy that is believed; may be repeated."
    )
    proxy_role: RoleName = Field(
        "viewer", description="Role of those whom the proxy names and the users file does not: viewer, operator, admin."
    )
    permit_actions: bool = Field(
        False,
        description="Allow operators and admins to drain and restore brokers. Beyond loopback it needs a log-in.",
    )
    allow_insecure: bool = Field(
        False, description="Allow a listener beyond loopback without TLS, or without a log-in."
    )
    host_name: list[str] = Field(
        [],
        description="A name by which browsers may reach the page, besides localhost and addresses; may be repeated.",
    )
    call_timeout_millis: int = Field(
        3_000, ge=100, le=60_000, description="Time for one call to one name server; then it counts as unreachable."
    )
    log_format: LogFormat = Field("text", description="Log lines: text or json.")
    log_level: LogLevel = Field("info", description="Lowest level that is logged: debug, info, warning or error.")

    @field_validator("namesrv")
    @classmethod
    def _name_servers(cls, value: list[str]) -> list[str]:
        return [str(endpoint) for endpoint in _checked_endpoints(value)] if value else []

    @field_validator("fleet")
    @classmethod
    def _fleets(cls, value: list[str]) -> list[str]:
        if len(value) > MAX_FLEETS:
            raise ValueError(f"there are {len(value)} fleets, at most {MAX_FLEETS}")
        names = [_fleet(text)[0] for text in value]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"there are two fleets {name!r}")
        return value

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
    def _has_name_servers(self) -> Self:
        if bool(self.namesrv) == bool(self.fleet):
            raise ValueError(
                f"namesrv and fleet: one of them is needed, and {'both are' if self.fleet else 'none is'} set"
            )
        return self

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
    def fleets(self) -> Mapping[str, tuple[Endpoint, ...]]:
        """The name servers of each fleet; the only one of ``namesrv`` has no name."""
        return dict(map(_fleet, self.fleet)) if self.fleet else {"": parse_endpoints(self.namesrv)}

    @property
    def listen_endpoint(self) -> Endpoint:
        """Where to listen."""
        return Endpoint.parse(self.listen, allow_port_zero=True)
