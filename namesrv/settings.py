"""The name server's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from groundwork.endpoints import Endpoint
from groundwork.logs import LogFormat, LogLevel
from groundwork.settings import ProgramSettings

Engine = Literal["grpcio", "native"]


class NamesrvSettings(ProgramSettings):
    """Settings of ``namesrv serve``. Names in RocketMQ's configuration are kept where there is one."""

    model_config = SettingsConfigDict(env_prefix="NAMESRV_")

    listen: str = Field(
        "127.0.0.1:9876", description="Where to listen, HOST:PORT. Port 0 takes any free one, which the log names."
    )
    name: str | None = Field(
        None, min_length=1, max_length=127, description="Name in answers and snapshots. Default: where it listens."
    )
    data_dir: Path | None = Field(
        None, description="Folder for everything durable. Without one, nothing is written to disk."
    )
    engine: Engine = Field(
        "grpcio",
        description="What carries the calls: grpcio (safe everywhere) or native (fast, trusted networks only).",
    )
    allow_insecure: bool = Field(False, description="Allow a listener beyond loopback without TLS.")
    trusted_network: bool = Field(
        False, description="Allow the native engine beyond loopback: every peer there can exhaust its memory."
    )
    scan_not_active_broker_interval_millis: int = Field(
        10_000, ge=0, le=3_600_000, description="Pause between two scans for silent brokers; 0 never scans."
    )
    broker_channel_expired_time_millis: int = Field(
        120_000, ge=1_000, le=86_400_000, description="Silence after which a broker, or an idle channel, is removed."
    )
    keepalive_time_millis: int = Field(
        5_000, ge=100, le=3_600_000, description="Pause after which a silent connection is pinged."
    )
    keepalive_timeout_millis: int = Field(
        5_000, ge=100, le=3_600_000, description="How long a ping may stay unanswered before the connection is dead."
    )
    max_concurrent_streams: int = Field(
        200, ge=1, le=100_000, description="Calls open at once on one connection; more wait at the client."
    )
    max_pending_requests: int = Field(
        20_000, ge=1, le=1_000_000, description="Calls that wait to be taken, grpcio only: a storm of reconnects fits."
    )
    slow_reader_timeout_millis: int = Field(
        30_000, ge=100, le=3_600_000, description="How long a stream's reader may take nothing before it is cut."
    )
    shutdown_grace_millis: int = Field(
        5_000, ge=0, le=300_000, description="How long calls under way may take at shutdown."
    )
    log_format: LogFormat = Field("text", description="text for a terminal, json for machines: one object a line.")
    log_level: LogLevel = Field("info", description="Lowest level that is logged: debug, info, warning or error.")

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, value: str) -> str:
        return str(Endpoint.parse(value, allow_port_zero=True))

    @property
    def endpoint(self) -> Endpoint:
        """Where to listen."""
        return Endpoint.parse(self.listen, allow_port_zero=True)

    @model_validator(mode="after")
    def _check_exposure(self) -> Self:
        if self.endpoint.is_loopback:
            return self
        if not self.allow_insecure:
            raise ValueError(f"listen {self.listen} is beyond loopback and without TLS: that needs --allow-insecure")
        if self.engine == "native" and not self.trusted_network:
            raise ValueError(
                f"listen {self.listen} is beyond loopback: the native engine needs --trusted-network there"
            )
        return self
