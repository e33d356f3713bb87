"""Permits: principals, the certificates and tokens that identify them, and what each may do."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from groundwork.errors import NotPermitted
from groundwork.topic_rules import MAX_NAME_LENGTH

_SECRET = secrets.token_bytes(32)
_NAMES = re.compile(r"[%|a-zA-Z0-9_.*-]+/[%|a-zA-Z0-9_.*-]+")


Group = tuple[str, str]
"""The names of a broker group: cluster and broker."""


class Permission(Enum):
    """The permission that a call of a name server needs, by its service. The values are words for people."""

    LOOKUP = "look up"
    """All calls of RouteService."""
    REGISTER = "register"
    """All calls of RegistrationService, for some broker groups."""
    ADMINISTER = "administer"
    """All calls of AdminService, also those that only read: they show who did what."""


class AgentAction(Enum):
    """What a call of an agent does. The values are the keys of the file."""

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
class GroupPattern:
    """Names of broker groups, ``CLUSTER/BROKER``, where ``*`` stands for any characters of a name."""

    text: str
    _compiled: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> GroupPattern:
        """Reads a pattern. Raises ValueError if it is none."""
        if not _NAMES.fullmatch(text):
            raise ValueError(f"{text!r} is not CLUSTER/BROKER; * stands for any characters of a name")
        return cls(text, re.compile(re.escape(text).replace(r"\*", "[^/]*")))

    def matches(self, group: Group) -> bool:
        """Whether a group's names fit."""
        return self._compiled.fullmatch("/".join(group)) is not None


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller that the permits know. It may do nothing that they do not grant."""

    name: str
    """What the journal and the log call it."""
    lookup: bool = False
    register: tuple[GroupPattern, ...] = ()
    """Groups for which it may make the calls of RegistrationService."""
    administer: bool = False
    agents: Mapping[AgentAction, tuple[GroupPattern, ...]] = field(default_factory=dict)
    """What it may have agents do, of the brokers of which groups."""

    def check(self, permission: Permission) -> None:
        """Raises NotPermitted if it lacks a permission altogether."""
        granted = {
            Permission.LOOKUP: self.lookup,
            Permission.REGISTER: bool(self.register),
            Permission.ADMINISTER: self.administer,
        }
        if not granted[permission]:
            raise NotPermitted(self.name, permission.value)

    def check_groups(self, groups: Iterable[Group]) -> None:
        """Raises NotPermitted if it may not register one of these groups."""
        for group in groups:
            if not any(pattern.matches(group) for pattern in self.register):
                shown = "/".join(name[:MAX_NAME_LENGTH] for name in group)
                raise NotPermitted(self.name, Permission.REGISTER.value, shown)

    def check_agent(self, actions: Iterable[AgentAction], group: Group) -> None:
        """Raises NotPermitted if it may have the agent of a group's broker do none of these."""
        actions = tuple(actions)
        if not any(pattern.matches(group) for action in actions for pattern in self.agents.get(action, ())):
            raise NotPermitted(self.name, " or ".join(action.value for action in actions), "/".join(group))


@dataclass(frozen=True, slots=True)
class Permits:
    """All principals, by the certificates and tokens that they show."""

    by_certificate: Mapping[str, Principal] = field(default_factory=dict)
    """By a name in the client certificate: a URI or DNS name, or the common name if there is neither."""
    by_token: Mapping[bytes, Principal] = field(default_factory=dict)
    """By ``token_key``. The tokens themselves are not kept."""

    def of_certificate(self, names: Iterable[str]) -> Principal | None:
        """The principal of the first name that one has."""
        for name in names:
            if principal := self.by_certificate.get(name):
                return principal
        return None

    def of_token(self, token: str) -> Principal | None:
        """The principal of a token."""
        return self.by_token.get(token_key(hashlib.sha256(token.encode()).digest()))


def token_key(digest: bytes) -> bytes:
    """The key of a token: its SHA-256, hashed again with a secret of this process.

    Callers can neither choose nor foresee these keys. So the time of a search tells them nothing about the tokens that
    exist, just as a constant-time comparison with all of them would not.
    """
    return hmac.digest(_SECRET, digest, "sha256")
