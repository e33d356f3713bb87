"""The name server's settings: by flags, files and variables, and by their names on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from ipaddress import IPv4Network, IPv6Network, ip_network
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import Field, TypeAdapter, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic.alias_generators import to_camel
from pydantic_settings import SettingsConfigDict

from namesrv.core.errors import FieldProblems, Reason, Refused, invalid_field
from namesrv.core.model import Behaviour
from namesrv.limits import MAX_PRODUCT_ENV_NAMESRVS, MAX_PROXY_NETWORKS
from namesrv_common.endpoints import Endpoint, parse_endpoints
from namesrv_common.process.settings_cli import ListenerSecuritySettings, ProgramSettings, advanced
from namesrv_common.server.shares import ShareRules

_ANY = {"0.0.0.0", "::"}  # noqa: S104 - to compare with
"""Hosts that stand for all addresses of the machine."""

Engine = Literal["native", "development"]
RemotingTlsMode = Literal["disabled", "permissive", "enforcing"]

Network = IPv4Network | IPv6Network

REMOTING_GRADES = ("lookups", "registrations", "operators", "settings")
"""Grades of calls of RocketMQ's protocol that can be allowed."""


class NamesrvSettings(ListenerSecuritySettings, ProgramSettings):
    """Settings of ``namesrv serve``. Names in RocketMQ's configuration are kept where there is one."""

    model_config = SettingsConfigDict(env_prefix="NAMESRV_")
    other_variables: ClassVar[str] = "ADDR|TLS_CA|TLS_SERVER_NAME"
    """Variables of nsctl and the health check."""

    listen: str = Field("127.0.0.1:9876", description="Address to listen on, HOST:PORT. Port 0 takes any free port.")
    name: str | None = Field(
        None, min_length=1, max_length=127, description="Name in answers and snapshots. Default: the value of listen."
    )
    data_dir: Path | None = Field(None, description="Folder for everything durable. Without it, nothing is on disk.")
    engine: Engine = Field(
        "native", description="native, or development: to try things out on this machine without the native engine."
    )
    engine_threads: int = Field(
        1, ge=1, le=64, description="Threads of the native engine: each answers cached lookups on a core."
    )
    caller_share_percent: int = Field(
        50, ge=1, le=100, description="Percent of each limit that one caller may hold; 100 behind a load balancer."
    )
    allow_insecure: bool = Field(
        False, description="Listen beyond loopback without TLS, for RocketMQ's clients without certificates."
    )
    permits_file: Path | None = Field(
        None, description="TOML or JSON file of callers and permissions. Without it, callers may do all."
    )
    broker_channel_expired_time_millis: int = Field(
        120_000, ge=1_000, le=86_400_000, description="Silence after which a broker is removed: four periods of 30 s."
    )
    mass_loss_percent: int = Field(
        50, ge=1, le=100, description="Percent of a principal's brokers that must be lost to trip the guard; 100: off."
    )
    remoting_listen: str = Field("", description="Address for RocketMQ's protocol, HOST:PORT. Empty: off.")
    remoting_allow: str = Field(
        "lookups,registrations", description="Requests on remoting_listen: lookups, registrations, operators, settings."
    )
    metrics_listen: str = Field("", description="Address of /metrics, /healthz and /readyz, HOST:PORT. Empty: off.")

    # Advanced settings. RocketMQ's switches have the names of its NamesrvConfig.

    support_acting_master: bool = advanced(False, "Slaves stand in for lost masters, for reading.")
    delete_topic_with_broker_registration: bool = advanced(
        False, "A full registration removes the group's topics that it does not name."
    )
    notify_min_broker_id_changed: bool = advanced(False, "Notify channels of the lowest broker id of their group.")
    order_message_enable: bool = advanced(False, "Lookup responses have the ordered-topic configuration.")
    return_order_topic_config_to_broker: bool = advanced(
        True, "Registration responses have the ordered-topic configuration."
    )
    scan_not_active_broker_interval_millis: int = advanced(
        10_000, "Time between scans for silent brokers, as in RocketMQ 4; 0: no scans.", ge=0, le=3_600_000
    )
    product_env_namesrv: str = advanced(
        "", "Name servers to ask, without TLS, for unknown topics, HOST:PORT;HOST:PORT (clusterTest)."
    )
    warm_up_millis: int = advanced(
        45_000,
        "Time after a cold start in which unknown topics are UNAVAILABLE: more than a period of 30 s.",
        ge=0,
        le=3_600_000,
    )
    snapshot_interval_millis: int = advanced(
        30_000,
        "Time between snapshot files, if routes changed: a period of registrations. 0: at shutdown only.",
        ge=0,
        le=3_600_000,
    )
    journal_max_bytes: int = advanced(
        64 * 1024 * 1024,
        "Text that the journal in the data directory holds; the oldest entries go first. 0: in memory.",
        ge=0,
        le=10_000_000_000,
    )
    channel_grace_millis: int = advanced(
        30_000, "Time for the next agent after a handover: an agent restarts in a few seconds.", ge=0, le=600_000
    )
    shutdown_grace_millis: int = advanced(
        5_000, "Time for open calls at shutdown: container engines kill after 10 s.", ge=0, le=300_000
    )
    remoting_tls: RemotingTlsMode | None = advanced(
        None, "TLS of RocketMQ's protocol: disabled, permissive or enforcing. Default: enforcing with tls_cert."
    )
    remoting_proxies: str = advanced(
        "", "Networks of load balancers that send the PROXY protocol to remoting_listen: 10.0.0.0/8,..."
    )
    cache_bytes: int = advanced(
        256 << 20, "Memory of the native engine for cached answers. 0: no cache.", ge=0, le=1 << 40
    )
    keepalive_time_millis: int = advanced(
        5_000, "Silence after which a connection is pinged: a dead peer is noticed within 10 s.", ge=100, le=3_600_000
    )
    slow_reader_timeout_millis: int = advanced(
        30_000,
        "Time after which a stream ends if its reader takes nothing: messages pile up until then.",
        ge=100,
        le=3_600_000,
    )

    @field_validator("data_dir", mode="before")
    @classmethod
    def _check_data_dir(cls, value: object) -> object:
        if value == "":  # as a path it would be the current folder
            raise ValueError("is empty")
        return value

    @field_validator("listen", "metrics_listen", "remoting_listen")
    @classmethod
    def _check_listen(cls, value: str, info: ValidationInfo) -> str:
        is_off = not value and info.field_name != "listen"
        return "" if is_off else str(Endpoint.parse(value, allow_port_zero=True))

    @field_validator("remoting_allow")
    @classmethod
    def _check_remoting_allow(cls, value: str) -> str:
        grades = [grade.strip() for grade in value.split(",") if grade.strip()]
        for grade in grades:
            if grade not in REMOTING_GRADES:
                raise ValueError(f"has {grade[:40]!r}, must be some of {','.join(REMOTING_GRADES)}")
        if not grades:
            raise ValueError(f"is empty, must be some of {','.join(REMOTING_GRADES)}")
        return ",".join(dict.fromkeys(grades))

    @field_validator("remoting_proxies")
    @classmethod
    def _check_remoting_proxies(cls, value: str) -> str:
        return ",".join(map(str, _networks(value)))

    @field_validator("product_env_namesrv")
    @classmethod
    def _check_product_env_namesrv(cls, value: str) -> str:
        endpoints = parse_endpoints(value) if value else ()
        if len(endpoints) > MAX_PRODUCT_ENV_NAMESRVS:
            raise ValueError(f"has {len(endpoints)} name servers, at most {MAX_PRODUCT_ENV_NAMESRVS}")
        return ";".join(map(str, endpoints))

    @property
    def share_rules(self) -> ShareRules:
        return ShareRules(self.caller_share_percent)

    @property
    def proxy_networks(self) -> tuple[Network, ...]:
        """Networks of load balancers that send the PROXY protocol."""
        return _networks(self.remoting_proxies)

    @property
    def product_env_endpoints(self) -> tuple[Endpoint, ...]:
        """The name servers to ask for topics that are unknown here; none unless in cluster-test mode."""
        return parse_endpoints(self.product_env_namesrv) if self.product_env_namesrv else ()

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint.parse(self.listen, allow_port_zero=True)

    @property
    def remoting_endpoint(self) -> Endpoint | None:
        """Returns the endpoint of RocketMQ's protocol, or None."""
        return Endpoint.parse(self.remoting_listen, allow_port_zero=True) if self.remoting_listen else None

    @property
    def remoting_tls_mode(self) -> RemotingTlsMode:
        return self.remoting_tls or ("enforcing" if self.listens_with_tls else "disabled")

    @property
    def behaviour(self) -> Behaviour:
        """The part of the settings that the core goes by."""
        return Behaviour(
            support_acting_master=self.support_acting_master,
            delete_topic_with_broker_registration=self.delete_topic_with_broker_registration,
            notify_min_broker_id_changed=self.notify_min_broker_id_changed,
            order_message_enable=self.order_message_enable,
            return_order_topic_config_to_broker=self.return_order_topic_config_to_broker,
            mass_loss_percent=self.mass_loss_percent,
            channel_grace_seconds=self.channel_grace_millis / 1000,
        )

    @model_validator(mode="after")
    def _check_development(self) -> Self:
        if self.engine != "development":
            return self
        if not self.endpoint.is_loopback:
            raise ValueError(f"listen is {self.listen}, but engine is development, which serves this machine alone")
        for name in ("tls_cert", "permits_file", "remoting_listen"):
            if getattr(self, name):
                raise ValueError(f"{name} is set, but engine is development, which has no such thing: use native")
        return self

    @model_validator(mode="after")
    def _check_ports(self) -> Self:
        names = ("listen", "remoting_listen", "metrics_listen")
        listeners = [
            (name, Endpoint.parse(text, allow_port_zero=True)) for name in names if (text := getattr(self, name))
        ]
        for (name, endpoint), (other_name, other) in combinations(listeners, 2):
            if endpoint.port == other.port != 0 and (endpoint.host == other.host or {endpoint.host, other.host} & _ANY):
                raise ValueError(f"{other_name} is {other}, but {name} has that port: give each a port of its own")
        return self

    @model_validator(mode="after")
    def _check_remoting(self) -> Self:
        endpoint = self.remoting_endpoint
        if endpoint is None:
            return self
        if self.remoting_tls in {"permissive", "enforcing"} and not self.listens_with_tls:
            raise ValueError(f"remoting_tls is {self.remoting_tls}, but tls_cert is not set: there is nothing to show")
        proves = self.remoting_tls_mode == "enforcing" and self.tls_client_ca is not None
        if not (endpoint.is_loopback or proves or self.allow_insecure):
            raise ValueError(
                f"remoting_listen {self.remoting_listen} is beyond loopback, where everybody could register brokers: "
                "that needs tls_client_ca with remoting_tls enforcing, or --allow-insecure"
            )
        return self

    @model_validator(mode="after")
    def _check_exposure(self) -> Self:
        if not (self.endpoint.is_loopback or self.listens_with_tls or self.allow_insecure):
            raise ValueError(f"listen {self.listen} is beyond loopback and without TLS: that needs --allow-insecure")
        return self


def _networks(value: str) -> tuple[Network, ...]:
    """Networks in a list with commas. Raises ValueError."""
    texts = [text.strip() for text in value.split(",") if text.strip()]
    if len(texts) > MAX_PROXY_NETWORKS:
        raise ValueError(f"has {len(texts)} networks, at most {MAX_PROXY_NETWORKS}")
    return tuple(ip_network(text) for text in texts)


# The settings by their names on the wire, and RocketMQ's keys that operators change there.

MAX_KEY_CHARACTERS = 100
"""Longest key that is looked up and named in an error; HTTP/2 bounds the size of errors."""
MAX_VALUE_CHARACTERS = 255
"""Longest value: those that can be changed are switches and numbers."""

ROCKETMQ_NAMES = MappingProxyType(
    {
        "scan_not_active_broker_interval_millis": "scanNotActiveBrokerInterval",
        "broker_channel_expired_time_millis": "brokerChannelExpiredTime",
    }
)
"""Names that are not simply the field's in camel case. RocketMQ has milliseconds for both, too."""
FIELDS = MappingProxyType(
    dict(sorted((ROCKETMQ_NAMES.get(field) or to_camel(field), field) for field in NamesrvSettings.model_fields))
)
"""The field of every setting by its key, sorted: RocketMQ's key where there is one."""
CHANGEABLE = (
    *("deleteTopicWithBrokerRegistration", "notifyMinBrokerIdChanged", "orderMessageEnable"),
    *("returnOrderTopicConfigToBroker", "scanNotActiveBrokerInterval"),
)
"""Keys that change over the wire, at once. RocketMQ changes them there, too."""
ROCKETMQ_DENIED = frozenset(
    (
        *("rocketmqHome", "kvConfigPath", "configStorePath", "configStorePathName", "configBlackList"),
        *("listenPort", "bindAddress"),
    )
)
"""RocketMQ's settings that must never get a counterpart on the wire. With them, anyone could write a file of any
content anywhere (CVE-2023-33246, CVE-2023-37582), lift the ban on that, or move the listener."""


def text_of(settings: NamesrvSettings, key: str) -> str:
    """Returns a value as text; empty if there is none. A pydantic Secret would come out masked."""
    value = getattr(settings, FIELDS[key])
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


def changeable_texts(settings: NamesrvSettings) -> dict[str, str]:
    """Returns the values of the keys that change over the wire."""
    return {key: text_of(settings, key) for key in CHANGEABLE}


def with_texts(settings: NamesrvSettings, texts: Mapping[str, str]) -> NamesrvSettings:
    """Returns the settings with some of them replaced, checked by the rules that hold for flags.

    Raises:
        CONFIG_KEY_DENIED: A key is not changed over the wire.
        INVALID_FIELD: A key is unknown, or a value breaks its rule.
    """
    for key in sorted(texts):  # checked first, so that no other mistake hides an attack
        if key in ROCKETMQ_DENIED:
            rule = "never changes over the wire"
        elif key in FIELDS and key not in CHANGEABLE:
            rule = f"changes with a start only: set --{FIELDS[key].replace('_', '-')}"
        else:
            continue
        raise Refused(Reason.CONFIG_KEY_DENIED, f"the setting {key} {rule}", key=key)
    problems, update = FieldProblems(), {}
    for key in sorted(texts):
        with problems:
            update[FIELDS.get(key, "")] = _value(key, texts[key])
    problems.raise_any()
    return settings.model_copy(update=update)


def _value(key: str, text: str) -> object:
    if len(key) > MAX_KEY_CHARACTERS:
        raise _invalid(key, f"the key has {len(key)} characters, at most {MAX_KEY_CHARACTERS}")
    if key not in FIELDS:
        meant = get_close_matches(key, CHANGEABLE, n=1)
        hint = f"did you mean {meant[0]}? " if meant else ""
        raise _invalid(key, f"there is no such setting; {hint}GetNamesrvConfig lists all")
    if len(text) > MAX_VALUE_CHARACTERS:
        raise _invalid(key, f"has {len(text)} characters, at most {MAX_VALUE_CHARACTERS}")
    if not text.isprintable():
        raise _invalid(key, f"is {text!r}; only printable characters are allowed")
    field = NamesrvSettings.model_fields[FIELDS[key]]
    rule: Any = Annotated[field.annotation, field]
    try:
        return cast("object", TypeAdapter(rule).validate_python(text))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False)[0]
        raise _invalid(key, f"{problem['msg']} (got {text!r})") from None


def _invalid(key: str, problem: str) -> Refused:
    """Makes an error that names a key, with whatever characters it has."""
    return invalid_field(f"values[{key[:MAX_KEY_CHARACTERS].encode('unicode_escape').decode()}]", problem)
