"""Settings of the agent, from flags, environment variables ``BROKER_AGENT_…`` and a file."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from broker_agent.broker_probe import FAILURES
from broker_agent.namesrv_list import check_namesrv
from namesrv_common.endpoints import Endpoint
from namesrv_common.process.settings_cli import ListenerSecuritySettings, ProgramSettings, advanced
from namesrv_common.topic_names import MAX_LABELS, MAX_PERM, check_name, label_problem, shown_labels

DEFAULT_BROKER_PORT = 10911
"""RocketMQ's default port of a broker."""
PORT_OFFSET = 9
"""Default port of the ordinary listener, counted from the broker's: two agents on one host have different ones."""
MAX_PORT = 65_535
_SHOWN_CHARACTERS = 70
"""Characters of a label that an error repeats."""
FAST_PORT_OFFSET = -2
"""Port of the fast listener, counted from the ordinary one's (RocketMQ: fastRemotingServer, 10909 next to 10911)."""


def _labels(texts: list[str]) -> list[str]:
    """Labels as people write them, ``key=value``, sorted by key. Raises ValueError."""
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"{text[:_SHOWN_CHARACTERS]!r} has no '='; write key=value")
        if key in labels:
            raise ValueError(f"has the key {key[:_SHOWN_CHARACTERS]!r} twice")
        labels[key] = value
    if len(labels) > MAX_LABELS:
        raise ValueError(f"has {len(labels)} labels, at most {MAX_LABELS}")
    if problem := label_problem(labels):
        raise ValueError(problem)
    return shown_labels(labels)


_Name = Annotated[str, AfterValidator(check_name)]
_Address = Annotated[str, AfterValidator(lambda text: str(Endpoint.parse(text)))]
_ListenAddress = Annotated[str, AfterValidator(lambda text: str(Endpoint.parse(text, allow_port_zero=True)))]
# An environment variable is one text: a list of name servers, or labels between commas, which no label has.
_ListOfOne = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
_ListOfLabels = BeforeValidator(lambda value: value.split(",") if isinstance(value, str) else value)


class AgentSettings(ListenerSecuritySettings, ProgramSettings):
    """Settings of ``broker-agent serve``: what it registers, where, and how often. Times are in milliseconds."""

    model_config = SettingsConfigDict(env_prefix="BROKER_AGENT_")

    broker_name: _Name = Field(description="Name that a master and its slaves share (brokerName).")
    cluster: _Name = Field("DefaultCluster", description="Cluster of the broker (brokerClusterName).")
    broker_id: int = Field(ge=0, le=2**63 - 1, description="0 for a master, above 0 for a slave (brokerId).")
    broker_addr: _Address = Field(description="Broker's address for clients, host:port.")
    ha_server_addr: _Address | None = Field(None, description="Broker's address for its slaves, host:port.")
    broker_permission: int = advanced(6, "Broker's permission: read 4, write 2.", ge=0, le=MAX_PERM)
    zone_name: _Name | None = advanced(None, "Zone of the broker (zoneName).")
    label: Annotated[list[str], NoDecode, _ListOfLabels, AfterValidator(_labels)] = advanced(
        [], "Label of the broker, key=value, by the rules of Kubernetes; repeatable, at most 16."
    )
    enable_acting_master: bool = advanced(False, "A slave may stand in for a lost master (enableSlaveActingMaster).")
    namesrv: Annotated[list[str], NoDecode, _ListOfOne, AfterValidator(check_namesrv)] = Field(
        description="Name servers: 'host:port;host:port', file:PATH of a watched list, or the URL of an address server."
    )
    topics: Path = Field(description="The broker's topics.json.")
    topics_mode: Literal["follow", "own"] = Field(
        "follow", description="follow: the broker writes the file; own: the agent does."
    )
    topics_missing: Literal["refuse", "wait"] = Field(
        "refuse", description="If the file to follow is missing: refuse to start, or wait for it."
    )
    register_name_server_period_millis: int = advanced(
        30_000, "Milliseconds between two registrations.", ge=1_000, le=60_000
    )
    force_register: bool = advanced(
        False, "Registrations have the whole table even if it is unchanged (forceRegister)."
    )
    compressed_register: bool = advanced(False, "Registrations are compressed with gzip.")
    keepalive_time_millis: int = advanced(
        5_000, "Milliseconds of silence after which a name server is pinged.", ge=1_000
    )
    master_agent: _Address | None = advanced(
        None, "Master's agent for a slave, host:port; by default on the master's host, at its default port."
    )
    probe: Literal["tcp", "none"] = Field(
        "tcp", description="tcp: unregister a broker that takes no connections; none: never."
    )
    probe_addr: _Address | None = advanced(None, "Address to probe, host:port; broker_addr by default.")
    probe_failures: int = advanced(
        FAILURES, "Failed probes in a row, one a second, after which a broker counts as dead.", ge=1, le=100
    )
    on_stop: Literal["unregister", "handover"] = Field(
        "unregister", description="At the end: unregister the broker, or keep it for a new agent."
    )
    tls_ca: Path | None = Field(
        None, description="Certificates that servers' are checked with, PEM. Without it calls go without TLS."
    )
    token_file: Path | None = Field(None, description="File with a bearer token to send. Needs tls_ca.")
    tls_server_name: str | None = Field(
        None, min_length=1, max_length=253, description="Name that servers' certificates must have, if not their host."
    )
    master_token_file: Path | None = advanced(
        None, "File with a bearer token for the master's agent. Needs tls_ca and tls_cert."
    )
    permits_file: Path | None = Field(None, description="TOML or JSON file of what each caller may do, watched.")
    listen: _ListenAddress | None = Field(
        None, description="Listener for clients, host:port; on loopback, 9 above the broker's port by default."
    )
    fast_listen: _ListenAddress | None = advanced(
        None, "Listener for operators and agents, host:port; the port of --listen minus 2 by default."
    )
    metrics_listen: _ListenAddress | None = Field(
        None, description="HTTP listener of /metrics, /healthz and /readyz, host:port; none by default."
    )

    @property
    def period_seconds(self) -> float:
        """Time between two registrations."""
        return self.register_name_server_period_millis / 1000

    @model_validator(mode="after")
    def _check_client(self) -> Self:
        for name in ("token_file", "tls_server_name"):
            if getattr(self, name) is not None and self.tls_ca is None:
                raise ValueError(f"{name} is set, but tls_ca is not: it is for calls over TLS")
        if self.master_token_file is not None and (self.tls_ca is None or self.tls_cert is None):
            raise ValueError("master_token_file is set, but not tls_ca and tls_cert: it is for calls over TLS")
        return self

    @property
    def probe_endpoint(self) -> Endpoint | None:
        """Where the probe connects; None without a probe."""
        return None if self.probe == "none" else Endpoint.parse(self.probe_addr or self.broker_addr)

    @property
    def listen_endpoint(self) -> Endpoint:
        if self.listen is not None:
            return Endpoint.parse(self.listen, allow_port_zero=True)
        return default_listen(Endpoint.parse(self.broker_addr))

    @property
    def fast_listen_endpoint(self) -> Endpoint:
        if self.fast_listen is not None:
            return Endpoint.parse(self.fast_listen, allow_port_zero=True)
        return fast_endpoint(self.listen_endpoint)

    def agent_of_master(self, master_addr: str, own_port: int) -> Endpoint | None:
        """Where the agent of a slave's master is; None if the master is this broker, or its address is none.

        Args:
            master_addr: Where clients reach the master, as the name servers say.
            own_port: The port of this agent's fast listener. Agents of a fleet are alike.
        """
        if master_addr == self.broker_addr:
            return None
        if self.master_agent is not None:
            return Endpoint.parse(self.master_agent)
        with suppress(ValueError):
            master = Endpoint.parse(master_addr)
            ports_are_given = self.listen is not None or self.fast_listen is not None
            return Endpoint(master.host, own_port if ports_are_given else fast_endpoint(default_listen(master)).port)
        return None


def default_listen(broker: Endpoint) -> Endpoint:
    """Where the ordinary listener of a broker's agent is by default."""
    port = broker.port + PORT_OFFSET
    return Endpoint("127.0.0.1", port if port <= MAX_PORT else DEFAULT_BROKER_PORT + PORT_OFFSET)


def fast_endpoint(ordinary: Endpoint) -> Endpoint:
    """The fast listener's address: 2 below the ordinary one's port, or any free port if that is any free port."""
    return Endpoint(ordinary.host, max(0, ordinary.port + FAST_PORT_OFFSET) if ordinary.port else 0)
