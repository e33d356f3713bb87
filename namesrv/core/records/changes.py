"""Rows of a change. The change log holds them; all others only read them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from namesrv.core.records.intents import Intent
from namesrv.core.records.rows import (
    BrokerData,
    BrokerKey,
    BrokerLiveInfo,
    LiveKey,
    QueueData,
    RemovalReason,
    WriteRule,
)


class Cause(NamedTuple):
    """The cause of a change."""

    call: str
    """The call, such as ``RegisterBroker``, or another cause: ``expiry``, ``channel end``."""
    caller: str = ""
    """Who called: identity or address."""
    comment: str = ""
    """Why, as the caller put it."""


class QueuesPut(NamedTuple):
    """A group got or changed queues of topics, or its permission in force changed."""

    broker: BrokerKey
    queues: Mapping[str, QueueData]
    """Queues by topic, as the broker reports them."""
    write: WriteRule
    """The rule for the reported permission."""


class QueuesRemoved(NamedTuple):
    """A group has no queues of these topics any more."""

    broker: BrokerKey
    topics: Collection[str]
    reason: RemovalReason


class GroupPut(NamedTuple):
    """A broker group came or changed."""

    before: BrokerData | None
    after: BrokerData


class GroupRemoved(NamedTuple):
    """A broker group lost its last broker. Its queues are in a QueuesRemoved of the same change."""

    before: BrokerData
    reason: RemovalReason


class LivePut(NamedTuple):
    """A live broker came, or registered something new."""

    live: BrokerLiveInfo


class LiveRemoved(NamedTuple):
    """A broker left."""

    live: BrokerLiveInfo
    reason: RemovalReason


class ClusterPut(NamedTuple):
    """A cluster came. It names all of its groups as of that revision; those that come later have a GroupPut only."""

    cluster_name: str
    broker_names: frozenset[str]


class ClusterRemoved(NamedTuple):
    """A cluster lost its last group."""

    cluster_name: str
    reason: RemovalReason


class FilterServersPut(NamedTuple):
    """A broker's filter servers changed; an empty tuple: it has none any more."""

    key: LiveKey
    broker: BrokerKey
    filter_servers: tuple[str, ...]


class KvPut(NamedTuple):
    """A key of the KV configuration got another value; None: it went."""

    namespace: str
    key: str
    value: str | None


class IntentPut(NamedTuple):
    """An operator decided something."""

    intent: Intent


class IntentLifted(NamedTuple):
    """An intent was lifted, or its time ran out."""

    intent: Intent


class ConfigPut(NamedTuple):
    """A setting got another value."""

    key: str
    value: str


class AddressClaimReleased(NamedTuple):
    """An operator let go of the address that a broker had when it left."""

    key: LiveKey
    """The address."""
    broker: BrokerKey
    broker_id: int


Row = (
    QueuesPut
    | QueuesRemoved
    | GroupPut
    | GroupRemoved
    | LivePut
    | LiveRemoved
    | ClusterPut
    | ClusterRemoved
    | FilterServersPut
    | KvPut
    | IntentPut
    | IntentLifted
    | ConfigPut
    | AddressClaimReleased
)


@dataclass(slots=True, eq=False)
class Change:
    """All that one revision changed. Immutable but for the link to the change after it."""

    revision: int
    applied_at_millis: int
    """By the wall clock, milliseconds since the Unix epoch."""
    cause: Cause
    rows: tuple[Row, ...]
    next: Change | None = None
    """The change after it; None as long as there is none. Readers walk along these links, each at its own pace."""

    @property
    def weight(self) -> int:
        """How many rows it has for the bound of the change log: each topic of a group counts."""
        return 1 + sum(
            len(row.queues) if isinstance(row, QueuesPut) else len(row.topics) if isinstance(row, QueuesRemoved) else 1
            for row in self.rows
        )
