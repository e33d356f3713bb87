"""Permits: principals, their file, what each may call for which broker groups, and open calls that lose the right."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import secrets
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

import structlog
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationError

from namesrv_common.endpoints import MAX_ADDRESS_LENGTH, Endpoint, is_host_name
from namesrv_common.errors import Refused, not_authenticated, not_permitted
from namesrv_common.files.regular_files import read_at_most
from namesrv_common.files.watched_file import WatchedFile
from namesrv_common.process.logs import RateLimitedLog
from namesrv_common.server.rpc_handlers import Context
from namesrv_common.tls.certificates import identities
from namesrv_common.topic_names import MAX_NAME_LENGTH, Group, GroupPattern

# Permits: principals, the certificates and tokens that identify them, and what each may do.

_SECRET = secrets.token_bytes(32)

_Network = IPv4Network | IPv6Network


class NamedBroker(NamedTuple):
    """A broker as a call names it. Its names and its address are not checked yet."""

    group: Group
    address: str | None = None
    """``HOST:PORT``; None if the call names the group only."""


class Permission(Enum):
    """The permission that a call of a name server needs, by its service. The values are words for people."""

    LOOKUP = "look up"
    """All calls of RouteService."""
    REGISTER = "register"
    """All calls of RegistrationService, for some broker groups."""
    ADMINISTER = "administer"
    """All calls of AdminService, also those that only read: they show who did what."""


class AgentAction(Enum):
    """An action of a call of an agent. The values are the keys of the file."""

    READ = "read"
    """Shows the agent's status, its broker's topics and clients."""
    CLIENTS = "clients"
    """What producers and consumers do: channels, heartbeats, the members of a consumer group."""
    FILTER_SERVERS = "filter_servers"
    """Registers a filter server of the broker."""
    TOPICS = "topics"
    """Makes, changes and deletes topics of the broker."""
    OPERATE = "operate"
    """Changes the broker's role and permission."""
    REPLICATE = "replicate"
    """Copies the topics, as agents of slaves do."""


@dataclass(frozen=True, slots=True)
class BrokerPattern:
    """Brokers by group and address: ``CLUSTER/BROKER`` for any address, or ``CLUSTER/BROKER@HOSTS``.

    HOSTS is a network (``10.0.0.0/24``, ``fd00::/64``), which has no host names in it, or one address or host name.
    """

    groups: GroupPattern
    hosts: _Network | str | None = None
    """A network, a host name, or None for any address."""

    @classmethod
    def parse(cls, text: str) -> BrokerPattern:
        """Reads a pattern. Raises ValueError if the text is not of that form."""
        groups, at, hosts = text.partition("@")
        return cls(GroupPattern.parse(groups), _hosts(hosts) if at else None)

    def matches(self, broker: NamedBroker) -> bool:
        return self.groups.matches(broker.group) and (
            self.hosts is None or broker.address is None or self._has(broker.address)
        )

    def _has(self, address: str) -> bool:
        try:
            host = Endpoint.parse(address).host
            return ip_address(host) in self.hosts if isinstance(self.hosts, _Network) else host == self.hosts
        except ValueError:  # no address at all, or a host name, which is in no network
            return False


def _hosts(text: str) -> _Network | str:
    try:
        return ip_network(text)
    except ValueError as error:
        if "/" in text:
            raise ValueError(f"{text!r} is not a network such as 10.0.0.0/24 or fd00::/64: {error}") from None
    if not is_host_name(text):
        raise ValueError(f"{text!r} is not a network, an IP address or a host name; * stands for nothing after @")
    return text


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller that the permits know. It may do nothing that they do not grant."""

    name: str
    """What the journal and the log call it."""
    lookup: bool = False
    register: tuple[BrokerPattern, ...] = ()
    """Brokers for which it may make the calls of RegistrationService."""
    administer: bool = False
    agents: Mapping[AgentAction, tuple[GroupPattern, ...]] = field(default_factory=dict)
    """What it may have agents do, of the brokers of which groups."""

    def check(self, permission: Permission) -> None:
        """Raises NOT_PERMITTED if it lacks a permission altogether."""
        granted = {
            Permission.LOOKUP: self.lookup,
            Permission.REGISTER: bool(self.register),
            Permission.ADMINISTER: self.administer,
        }
        if not granted[permission]:
            raise not_permitted(self.name, permission.value)

    def check_brokers(self, brokers: Iterable[NamedBroker]) -> None:
        """Raises NOT_PERMITTED if it may not register one of these brokers."""
        for broker in brokers:
            if not any(pattern.matches(broker) for pattern in self.register):
                group = "/".join(name[:MAX_NAME_LENGTH] for name in broker.group)
                address = None if broker.address is None else broker.address[:MAX_ADDRESS_LENGTH]
                raise not_permitted(self.name, Permission.REGISTER.value, group, address)

    def check_agent(self, actions: Iterable[AgentAction], group: Group) -> None:
        """Raises NOT_PERMITTED if it may have the agent of a group's broker do none of these."""
        actions = tuple(actions)
        if not any(pattern.matches(group) for action in actions for pattern in self.agents.get(action, ())):
            raise not_permitted(self.name, " or ".join(action.value for action in actions), "/".join(group))


@dataclass(frozen=True, slots=True)
class Permits:
    """All principals, by the certificates and tokens that they show."""

    by_certificate: Mapping[str, Principal] = field(default_factory=dict)
    """By a name in the client certificate: a URI or DNS name, or the common name if there is neither."""
    by_token: Mapping[bytes, Principal] = field(default_factory=dict)
    """By ``token_key``. The tokens themselves are not kept."""


def token_key(digest: bytes) -> bytes:
    """The key of a token: its SHA-256, hashed again with a secret of this process.

    Callers can neither choose nor foresee these keys. So the time of a search reveals nothing about the tokens that
    exist, just as a constant-time comparison with all of them would not.
    """
    return hmac.digest(_SECRET, digest, "sha256")


# The credentials that a call shows: its bearer token, and the names in the certificate of its connection.

MAX_SHOWN_NAME = 127
"""Characters that name a certificate that the permits do not know."""


def of_token(call: Context, permits: Permits) -> Principal | None:
    """The principal of a call's bearer token; None if the call carries none. Raises NOT_AUTHENTICATED if it is no good.

    The scheme is case-insensitive, and exactly one space follows it. The token is the rest, white space included.
    """
    values = [value for key, value in call.invocation_metadata() or () if key == "authorization"]
    if not values:
        return None
    if len(values) > 1:
        raise not_authenticated("there is more than one authorization in the metadata; send one")
    scheme, _, token = str(values[0]).partition(" ")
    if scheme.lower() != "bearer":
        raise not_authenticated("authorization has another scheme than Bearer; send 'Bearer TOKEN'")
    principal = permits.by_token.get(token_key(hashlib.sha256(token.encode()).digest()))
    if principal is None:
        raise not_authenticated("the bearer token is not one of the permits")
    return principal


def principal_of(call: Context, permits: Permits) -> Principal:
    """The principal that calls. If there is a token, it decides and not the certificate.

    Raises:
        NOT_AUTHENTICATED: The call shows neither, or a token that the permits do not know.
    """
    return of_token(call, permits) or of_certificate([*identities(call.auth_context())], permits)


def of_certificate(names: Sequence[str], permits: Permits) -> Principal:
    """Returns the principal of the first known name in a certificate. Without a known name it has no permission.

    Raises:
        NOT_AUTHENTICATED: There is no name, so there is no certificate.
    """
    if not names:
        raise not_authenticated("show a client certificate, or send 'authorization: Bearer TOKEN' in the metadata")
    known = (permits.by_certificate[name] for name in names if name in permits.by_certificate)
    # A caller with a certificate that the permits do not know has a name, but may do nothing.
    return next(known, None) or Principal(names[0][:MAX_SHOWN_NAME])


# The permits file, TOML or JSON: read whole, or not at all.

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


_NO_TOKEN_SHA256 = hashlib.sha256(b"").hexdigest()


def _digest(text: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise ValueError("is not a SHA-256 in hexadecimal; printf %s TOKEN | sha256sum makes one")
    if text.lower() == _NO_TOKEN_SHA256:
        raise ValueError("is the SHA-256 of an empty token, which any caller can send; printf %s TOKEN | sha256sum")
    return text.lower()


def _certificate(text: str) -> str:
    if "*" in text:
        raise ValueError(
            f"{text[:MAX_SHOWN_NAME]!r} has *, which stands for nothing here; write the exact URI or DNS name"
        )
    return text


_Patterns = list[Annotated[str, AfterValidator(GroupPattern.parse)]]


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    certificates: list[
        Annotated[str, Field(min_length=1, max_length=MAX_IDENTITY_LENGTH), AfterValidator(_certificate)]
    ] = []
    token_sha256: list[Annotated[str, AfterValidator(_digest)]] = []
    look_up: bool = False
    register_: list[Annotated[str, AfterValidator(BrokerPattern.parse)]] = Field([], alias="register")
    administer: bool = False
    agents: dict[Annotated[AgentAction, Strict(strict=False)], _Patterns] = {}


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    principals: dict[str, _Row] = Field(min_length=1, max_length=MAX_PRINCIPALS)


_NAMES = {
    1: list(_File.model_fields),
    3: [field.alias or name for name, field in _Row.model_fields.items()],
    4: [action.value for action in AgentAction],
}
"""The keys of a permits file, by how many keys lead to them."""


def read_permits(path: Path) -> Permits:
    """Reads a permits file. Raises PermitsError, also if two principals show the same."""
    try:
        data = read_at_most(path, MAX_PERMITS_FILE_BYTES)
    except OSError as error:
        raise PermitsError(f"permits file {path}: {error.strerror}") from None
    if not data.strip():
        raise PermitsError(f"permits file {path}: is empty, so nobody could call")
    try:
        parse = json.loads if path.suffix == ".json" else tomllib.loads
        return _permits(_File.model_validate(parse(data.decode())))
    except ValidationError as error:
        problems = "; ".join(map(_problem, error.errors()[:5]))
        raise PermitsError(f"permits file {path}: {problems}") from None
    except (ValueError, RecursionError) as error:
        raise PermitsError(f"permits file {path}: {error!s:.1000}") from None


def reloaded_permits(path: Path) -> WatchedFile[Permits]:
    """The permits of a file, read again when it changes; a change that cannot be used leaves those before in force.

    Raises:
        PermitsError: It cannot be used now.
    """

    def logged(event: str, permits: Permits) -> None:
        _log.info(event, file=str(path), certificates=len(permits.by_certificate), tokens=len(permits.by_token))

    def kept(error: ValueError) -> None:
        _log.error("permits_file_refused", problem=str(error), in_force="those read before")

    def reread(permits: Permits) -> None:
        logged("permits_reloaded", permits)

    reloaded = WatchedFile([path], lambda: read_permits(path), on_reloaded=reread, on_kept=kept)
    logged("permits_loaded", reloaded.value)
    return reloaded


def warn_of_permits(permits: Permits, *, with_tls: bool, client_ca: Path | None) -> None:
    """Logs what is unwise about permits on a listener, with TLS or without, that may ask for certificates."""
    if permits.by_token and not with_tls:
        _log.warning("tokens_without_tls", problem="bearer tokens travel readable")
    if permits.by_certificate and client_ca is None:
        _log.warning("permits_without_client_certificates", problem="no caller can show one: tls_client_ca is not set")


def _problem(item: Any) -> str:
    """Returns the keys and the text of one error in a permits file."""
    keys = [f"{key!s:.{MAX_SHOWN_NAME}}" for key in item["loc"] if key != "[key]"]
    text = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] in {"extra_forbidden", "enum"}:
        known = _NAMES.get(len(keys), ())
        found = get_close_matches(keys[-1], known, n=1)
        text = "is unknown" + (f"; did you mean {found[0]}?" if found else f"; known are {', '.join(known)}")
    return f"{'.'.join(keys)}: {text:.250}"


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
        patterns: Any = tuple(row.register_)  # the validator has parsed the texts
        agents: Any = {action: tuple(groups) for action, groups in row.agents.items()}
        principal = Principal(name, row.look_up, patterns, row.administer, agents)
        for identity in row.certificates:
            if (other := by_certificate.setdefault(identity, principal)) is not principal:
                raise ValueError(f"principals.{name}: the certificate {identity!r} is {other.name}'s already")
        for digest in row.token_sha256:
            if (other := by_token.setdefault(token_key(bytes.fromhex(digest)), principal)) is not principal:
                raise ValueError(f"principals.{name}: the token with SHA-256 {digest[:8]}... is {other.name}'s already")
    return Permits(by_certificate, by_token)


# The log of refused calls: a flood of them makes few lines.

REFUSAL_LOG_SECONDS = 1.0
"""Between two log lines about refused calls; those in between are counted."""


def log_of_refusals(monotonic: Callable[[], float]) -> Callable[[str, str, Refused], None]:
    """Returns what logs a refused call, of a peer, with its error: once a second at most. Thread-safe."""
    log = RateLimitedLog("call_refused", REFUSAL_LOG_SECONDS, monotonic)
    return lambda call, peer, error: log.log(call=call, peer=peer, problem=error.text)


# Open calls: when permits change, the calls whose callers lost the right to them are ended.

CHECK_SLICE = 64
"""Calls that are checked before yielding: less than a millisecond, and the ends of as many calls."""


class OpenCall(Protocol):
    """A call, or a connection, that lasts."""

    def check(self) -> None:
        """Checks again what admitted it. Raises Refused if the caller has lost the right."""

    def end(self, refusal: Refused) -> None: ...


class OpenCalls:
    """The open calls of one event loop. Everything happens in that loop."""

    def __init__(self) -> None:
        self._open: dict[OpenCall, None] = {}

    def add(self, call: OpenCall) -> None:
        """A call has been admitted in this very step; ``remove`` must follow."""
        self._open[call] = None

    def remove(self, call: OpenCall) -> None:
        """The call has ended, or was removed before."""
        self._open.pop(call, None)

    @contextmanager
    def while_allowed(self, check: Callable[[], None]) -> Iterator[None]:
        """A context in which the current task is ended with Refused once its check fails."""
        task = asyncio.current_task()
        assert task is not None, "only a task can be ended"
        call, cancels = _TaskCall(check, task), task.cancelling()
        self.add(call)
        try:
            yield
        finally:
            self.remove(call)
            if call.refusal is not None and task.uncancel() <= cancels:  # else the caller has left, too
                raise call.refusal from None

    async def check_again(self) -> None:
        """Checks every open call, and ends those that are refused now, a few at a time."""
        ended = 0
        for count, call in enumerate(tuple(self._open), 1):
            if call in self._open:
                try:
                    call.check()
                except Refused as refusal:
                    self.remove(call)
                    call.end(refusal)
                    ended += 1
            if count % CHECK_SLICE == 0:
                await asyncio.sleep(0)
        if ended:
            _log.info("open_calls_ended", count=ended, problem="their callers lost the right to them")


@dataclass(slots=True, eq=False)
class _TaskCall:
    check: Callable[[], None]
    task: asyncio.Task[object]
    refusal: Refused | None = None

    def end(self, refusal: Refused) -> None:
        """Cancels what the task does. The task continues at the end of the context."""
        self.refusal = refusal
        self.task.cancel()
