"""Settings of the agent, from flags, environment variables ``BROKER_AGENT_…`` and a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode, SettingsConfigDict

from groundwork.endpoints import Endpoint, parse_endpoints
from groundwork.logs import LogFormat, LogLevel
from groundwork.settings import ProgramSettings
from groundwork.topic_rules import MAX_PERM, check_name

DEFAULT_LISTEN = "127.0.0.1:10920"
"""Where the agent answers, unless told otherwise: on loopback, one above RocketMQ's own port 10919."""


def _address(text: str) -> str:
    return str(Endpoint.parse(text))


def _listen_address(text: str) -> str:
    return str(Endpoint.parse(text, allow_port_zero=True))


def _list_of_one(value: Any) -> Any:
    """An environment variable is a plain string."""
    return [value] if isinstance(value, str) else value


def _endpoint_list(texts: list[str]) -> list[str]:
    return [str(endpoint) for endpoint in parse_endpoints(texts)]


_Name = Annotated[str, AfterValidator(check_name)]
_Address = Annotated[str, AfterValidator(_address)]


class AgentSettings(ProgramSettings):
    """What the agent registers, where, and how often. Times are in milliseconds."""

    model_config = SettingsConfigDict(env_prefix="BROKER_AGENT_")

    broker_name: _Name = Field(description="Name shared by a master and its slaves (brokerName).")
    cluster: _Name = Field("DefaultCluster", description="Cluster of the broker (brokerClusterName).")
    broker_id: int = Field(ge=0, le=2**63 - 1, description="0 is the master, above 0 a slave (brokerId).")
    broker_addr: _Address = Field(description="Where clients reach the broker, host:port.")
    ha_server_addr: _Address | None = Field(None, description="Where slaves replicate from, host:port.")
    broker_permission: int = Field(
        6, ge=0, le=MAX_PERM, description="What the broker allows: read 4, write 2 (brokerPermission)."
    )
    namesrv: Annotated[list[str], NoDecode, BeforeValidator(_list_of_one), AfterValidator(_endpoint_list)] = Field(
        description="Name servers, host:port, separated by ';', ',' or white space; may be repeated (namesrvAddr)."
    )
    topics: Path = Field(description="The broker's topics.json.")
    register_name_server_period_millis: int = Field(
        30_000, gt=0, description="Time between two registrations, clamped to 10000..60000 (registerNameServerPeriod)."
    )
    register_broker_timeout_millis: int = Field(
        6_000, ge=100, description="Time for one round of registrations (registerBrokerTimeoutMills)."
    )
    force_register: bool = Field(
        False, description="Send the whole table each period, without asking first whether it changed (forceRegister)."
    )
    connect_timeout_millis: int = Field(
        3_000, ge=100, description="Time to connect to a name server and open a channel (connectTimeoutMillis)."
    )
    keepalive_time_millis: int = Field(5_000, ge=1_000, description="Silence after which a name server is pinged.")
    keepalive_timeout_millis: int = Field(
        5_000, ge=100, description="Time for the answer to a ping, before the connection counts as lost."
    )
    listen: Annotated[str, AfterValidator(_listen_address)] = Field(
        DEFAULT_LISTEN, description="Where the agent answers health checks and GetAgentStatus, host:port."
    )
    log_format: LogFormat = Field("text", description="text for a terminal, json for a machine.")
    log_level: LogLevel = Field("info", description="Lowest level that is logged: debug, info, warning or error.")

    @property
    def is_slave(self) -> bool:
        """Whether the broker is a slave."""
        return self.broker_id != 0
