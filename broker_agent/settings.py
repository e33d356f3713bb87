"""Settings of the agent, from flags, environment variables ``BROKER_AGENT_…`` and a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from broker_agent.broker_probe import FAILURES, ProbeKind
from broker_agent.channel import LONGEST_WAIT_SECONDS, ConnectionOptions
from broker_agent.namesrv_list import check_address_server, check_namesrv
from groundwork.endpoints import Endpoint
from groundwork.json_lines import LogFormat
from groundwork.logs import LogLevel
from groundwork.settings_cli import ProgramSettings
from groundwork.tls_settings import ClientSecuritySettings, ListenerSecuritySettings
from groundwork.topic_names import MAX_PERM, check_name

DEFAULT_LISTEN = "127.0.0.1:10920"
"""Default address of the ordinary listener: on loopback, one above RocketMQ's own port 10919."""
FAST_PORT_OFFSET = -2
"""Port of the fast listener, counted from the ordinary one's (RocketMQ: fastRemotingServer, 10909 beside 10911)."""

OnStop = Literal["unregister", "keep"]
TopicsMode = Literal["follow", "own"]
TopicsMissing = Literal["refuse", "wait"]


def _address(text: str) -> str:
    return str(Endpoint.parse(text))


def _listen_address(text: str) -> str:
    return str(Endpoint.parse(text, allow_port_zero=True))


def _list_of_one(value: Any) -> Any:
    """An environment variable is a plain string."""
    return [value] if isinstance(value, str) else value


def _name_servers(texts: list[str]) -> list[str]:
    return check_namesrv(texts) if texts else []  # then there is an address server


_Name = Annotated[str, AfterValidator(check_name)]
_Address = Annotated[str, AfterValidator(_address)]


class AgentSettings(ListenerSecuritySettings, ClientSecuritySettings, ProgramSettings):
    """Settings of ``broker-agent serve``: what it registers, where, and how often. Times are in milliseconds."""

    model_config = SettingsConfigDict(env_prefix="BROKER_AGENT_")

    broker_name: _Name = Field(description="Name shared by a master and its slaves (brokerName).")
    cluster: _Name = Field("DefaultCluster", description="Cluster of the broker (brokerClusterName).")
    broker_id: int = Field(ge=0, le=2**63 - 1, description="0 is the master, above 0 a slave (brokerId).")
    broker_addr: _Address = Field(description="Where clients reach the broker, host:port.")
    ha_server_addr: _Address | None = Field(None, description="Where slaves replicate from, host:port.")
    broker_permission: int = Field(
        6, ge=0, le=MAX_PERM, description="What the broker allows: read 4, write 2 (brokerPermission)."
    )
    zone_name: _Name | None = Field(None, description="Zone of the broker (zoneName).")
    enable_acting_master: bool = Field(
        False, description="Whether a slave may stand in for a lost master (enableSlaveActingMaster)."
    )
    namesrv: Annotated[list[str], NoDecode, BeforeValidator(_list_of_one), AfterValidator(_name_servers)] = Field(
        [],
        description="Name servers, host:port, separated by ';', ',' or white space; may be repeated. Or file:PATH of a "
        "file with such a list, which is watched. Each address behind a name is a name server (namesrvAddr).",
    )
    namesrv_address_server: Annotated[str, AfterValidator(check_address_server)] | None = Field(
        None,
        description="URL that answers with the list of name servers, asked first after 10 s, then every 120 s "
        "(fetchNamesrvAddrByAddressServer).",
    )
    topics: Path = Field(description="The broker's topics.json.")
    topics_mode: TopicsMode = Field(
        "follow",
        description="follow: the file is the broker's, the agent watches it and never writes; own: the file is the "
        "agent's, and its calls are the way to change topics.",
    )
    topics_missing: TopicsMissing = Field(
        "refuse",
        description="In mode follow, without a file at the start: refuse to start, or wait for the file and register "
        "the built-in topics until then. A fresh RocketMQ broker writes it with its first change of a topic.",
    )
    register_name_server_period_millis: int = Field(
        30_000, ge=1_000, le=60_000, description="Time between two registrations, 10 % more or less, in milliseconds."
    )
    register_broker_timeout_millis: int = Field(
        6_000, ge=100, description="Time for one round of registrations (registerBrokerTimeoutMills)."
    )
    force_register: bool = Field(
        False,
        description="Send the whole table each period, without asking first whether it changed (forceRegister, true "
        "in RocketMQ). The registration at start always is.",
    )
    compressed_register: bool = Field(
        False, description="Compress registrations with gRPC's gzip (compressedRegister)."
    )
    keepalive_time_millis: int = Field(5_000, ge=1_000, description="Silence after which a name server is pinged.")
    ha_master_address: _Address | None = Field(
        None,
        description="For a slave: where it replicates from, whatever the name servers say (haMasterAddress).",
    )
    master_agent: _Address | None = Field(
        None,
        description="For a slave: where the master's agent answers (fast listener). By default on the master's host, "
        "at the port of this agent's own fast listener.",
    )
    probe: ProbeKind = Field(
        "tcp",
        description="How the agent watches its broker: tcp connects to it each second, none takes it for alive. A dead "
        "broker is unregistered.",
    )
    probe_addr: _Address | None = Field(
        None, description="Where the probe connects, host:port; broker_addr by default."
    )
    probe_failures: int = Field(
        FAILURES, ge=1, le=100, description="Failed probes in a row after which the broker counts as dead."
    )
    on_stop: OnStop = Field(
        "unregister",
        description="At the end: unregister the broker, or keep it for the agent that comes next, as in an upgrade; "
        "name servers wait for that one for their channelGraceMillis.",
    )
    notify_consumer_ids_changed_enable: bool = Field(
        True,
        description="Tell consumers when the members of their group change (notifyConsumerIdsChangedEnable).",
    )
    master_token_file: Path | None = Field(
        None,
        description="File with a bearer token for a slave's calls to its master's agent. Needs tls_ca and tls_cert.",
    )
    permits_file: Path | None = Field(
        None,
        description="TOML or JSON file of who may do what here, the same as the name servers'; read again when it "
        "changes. Without it everybody may, but with tls_client_ca commands come from this machine or the own group.",
    )
    listen: Annotated[str, AfterValidator(_listen_address)] = Field(
        DEFAULT_LISTEN, description="Where the agent answers clients, host:port; also health checks and the status."
    )
    fast_listen: Annotated[str, AfterValidator(_listen_address)] | None = Field(
        None,
        description="Where the agent answers operators and other agents, undisturbed by clients, host:port. By default "
        "the port of --listen minus 2 (fastRemotingServer).",
    )
    metrics_listen: Annotated[str, AfterValidator(_listen_address)] | None = Field(
        None, description="Where /metrics, /healthz and /readyz answer over HTTP, host:port; by default nowhere."
    )
    log_format: LogFormat = Field("text", description="text for a terminal, json for a machine.")
    log_level: LogLevel = Field("info", description="Lowest level that is logged: debug, info, warning or error.")

    @property
    def is_slave(self) -> bool:
        """Whether the broker is a slave."""
        return self.broker_id != 0

    @property
    def period_seconds(self) -> float:
        """Time between two registrations."""
        return self.register_name_server_period_millis / 1000

    @model_validator(mode="after")
    def _check_master_token(self) -> Self:
        if self.master_token_file is not None and (self.tls_ca is None or self.tls_cert is None):
            raise ValueError("master_token_file is set, but not tls_ca and tls_cert: it is for calls over TLS")
        return self

    @property
    def connection_options(self) -> ConnectionOptions:
        """How connections to name servers are made and watched."""
        return ConnectionOptions(
            keepalive_time_millis=self.keepalive_time_millis,
            compressed_register=self.compressed_register,
            longest_wait_seconds=min(LONGEST_WAIT_SECONDS, self.period_seconds),
        )

    @property
    def probe_endpoint(self) -> Endpoint | None:
        """Where the probe connects; None without a probe."""
        return None if self.probe == "none" else Endpoint.parse(self.probe_addr or self.broker_addr)

    @property
    def listen_endpoint(self) -> Endpoint:
        """Where the ordinary listener is."""
        return Endpoint.parse(self.listen, allow_port_zero=True)

    @property
    def fast_listen_endpoint(self) -> Endpoint:
        """Where the fast listener is."""
        if self.fast_listen is not None:
            return Endpoint.parse(self.fast_listen, allow_port_zero=True)
        return fast_endpoint(self.listen_endpoint)


def fast_endpoint(ordinary: Endpoint) -> Endpoint:
    """Where the fast listener is beside an ordinary one: 2 below; any free port beside any free port."""
    return Endpoint(ordinary.host, max(0, ordinary.port + FAST_PORT_OFFSET) if ordinary.port else 0)
