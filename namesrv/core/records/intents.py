"""Intents: decisions of operators, kept apart from what brokers report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from namesrv.core.records.rows import BrokerKey


class IntentKind(Enum):
    """Kinds of intent. The values are those of the wire's Intent.Kind."""

    WIPE_WRITE_PERM = 1
    ADD_WRITE_PERM = 2
    TOPIC_HOLD = 3


@dataclass(frozen=True, slots=True)
class HoldKey:
    """The key of a topic hold: a topic, in one cluster or (None) in all. Not a tuple, or it could equal a BrokerKey."""

    topic: str
    cluster_name: str | None


IntentKey = BrokerKey | HoldKey
"""The key of an intent. A group has at most one intent, wipe or add."""


@dataclass(frozen=True, slots=True)
class Intent:
    """One decision."""

    kind: IntentKind
    key: IntentKey
    """A BrokerKey for the permission kinds, a HoldKey for a topic hold."""
    caller: str
    """Who decided."""
    since_millis: int
    """When, milliseconds since the Unix epoch."""
    comment: str = ""
    """The operator's comment."""
    ends_at_millis: int | None = None
    """When it ends by itself, milliseconds since the Unix epoch; None: when it is lifted."""


@dataclass(frozen=True, slots=True)
class IntentTable:
    """All intents, oldest first. A change makes a new table and leaves this one as it is."""

    intents: Mapping[IntentKey, Intent] = field(default_factory=dict)
    _holds: Mapping[str | None, frozenset[str]] = field(init=False, repr=False, compare=False)
    """Topics held in each cluster, and (None) in all clusters. Every registration asks for them."""

    def __post_init__(self) -> None:
        """Indexes the holds."""
        holds: dict[str | None, set[str]] = {None: set()}
        for key in self.intents:
            if isinstance(key, HoldKey):
                holds.setdefault(key.cluster_name, set()).add(key.topic)
        object.__setattr__(self, "_holds", {cluster: frozenset(topics) for cluster, topics in holds.items()})

    @classmethod
    def of(cls, intents: Iterable[Intent]) -> IntentTable:
        """A table of these."""
        return cls({intent.key: intent for intent in intents})

    def with_intent(self, intent: Intent) -> IntentTable:
        """A table with the intent, in place of the one with the same key."""
        intents = dict(self.intents)
        intents.pop(intent.key, None)  # or it would keep the place of the older one
        intents[intent.key] = intent
        return IntentTable(intents)

    def without(self, keys: Iterable[IntentKey]) -> IntentTable:
        """A table without these."""
        intents = dict(self.intents)
        for key in keys:
            intents.pop(key, None)
        return IntentTable(intents)

    def of_group(self, broker: BrokerKey) -> IntentKind | None:
        """The permission intent about a group; None if there is none."""
        intent = self.intents.get(broker)
        return intent.kind if intent else None

    def holds_of(self, cluster_name: str) -> frozenset[str]:
        """Topics that are held in a cluster."""
        in_all = self._holds[None]
        in_this = self._holds.get(cluster_name)
        return in_all | in_this if in_this else in_all

    def ended(self, now_millis: int) -> list[Intent]:
        """Intents whose time has run out."""
        return [
            intent
            for intent in self.intents.values()
            if intent.ends_at_millis is not None and intent.ends_at_millis <= now_millis
        ]
