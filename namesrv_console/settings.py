"""The console's settings."""

from __future__ import annotations

from typing import Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from groundwork.endpoints import Endpoint, parse_endpoints
from groundwork.logs import LogFormat, LogLevel
from groundwork.security_settings import ClientSecuritySettings
from groundwork.settings import ProgramSettings

MAX_NAME_SERVERS = 16
"""Most name servers of one console: each is a column of the page, and is asked every second."""


class ConsoleSettings(ClientSecuritySettings, ProgramSettings):
    """Settings of ``namesrv console``. Those of TLS are for the calls to the name servers."""

    model_config = SettingsConfigDict(env_prefix="NAMESRV_CONSOLE_")

    namesrv: list[str] = Field(description="Name servers, HOST:PORT;HOST:PORT;…")
    listen: str = Field(
        "127.0.0.1:9880", description="Where to listen, HOST:PORT. Port 0 takes any free one, which the log names."
    )
    permit_actions: bool = Field(False, description="Allow whoever sees the page to drain and restore brokers.")
    allow_insecure: bool = Field(
        False, description="Allow a listener beyond loopback: the page has no log-in and no TLS of its own."
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
        endpoints = parse_endpoints(value)
        if len(endpoints) > MAX_NAME_SERVERS:
            raise ValueError(f"there are {len(endpoints)} name servers, at most {MAX_NAME_SERVERS}")
        return [str(endpoint) for endpoint in endpoints]

    @field_validator("listen")
    @classmethod
    def _listener(cls, value: str) -> str:
        return str(Endpoint.parse(value, allow_port_zero=True))

    @model_validator(mode="after")
    def _safe(self) -> Self:
        if not self.listen_endpoint.is_loopback and not self.allow_insecure:
            raise ValueError(
                f"setting listen: {self.listen} is beyond loopback, and the page has no log-in and no TLS; "
                "put a proxy that has both in front of it, or set --allow-insecure"
            )
        return self

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The name servers."""
        return parse_endpoints(self.namesrv)

    @property
    def listen_endpoint(self) -> Endpoint:
        """Where to listen."""
        return Endpoint.parse(self.listen, allow_port_zero=True)
