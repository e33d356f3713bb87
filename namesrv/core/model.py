"""The immutable records, from brokers and registrations to settings, and the clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum, IntEnum
from itertools import chain
from operator import attrgetter
from typing import NamedTuple, Protocol

from namesrv_common.topic_names import Labels

# The rows of the route tables, immutable: a table's value is replaced, never changed.

MASTER_ID = 0
"""Broker id of a master (MixAll.MASTER_ID)."""


class BrokerKey(NamedTuple):
    """A broker group. RocketMQ keys groups by name alone and mixes up two clusters (its #1450, #3892, #3991)."""

    cluster_name: str
    broker_name: str


class LiveKey(NamedTuple):
    """A live broker process: the address is unique within its cluster."""

    cluster_name: str
    broker_addr: str


class RemovalReason(Enum):
    """Why a broker left. The values are those of the wire's RemovalReason."""

    UNREGISTERED = 1
    CHANNEL_CLOSED = 2
    EXPIRED = 3
    BROKER_DOWN = 4
    REPLACED = 5
    GROUP_GONE = 6
    NOT_IN_REGISTRATION = 7
    DELETED_BY_OPERATOR = 8
    LOSS_CONFIRMED = 9


class Doubt(Enum):
    """Why a broker is in the routes without proof that it lives."""

    SNAPSHOT_FILE = -2
    """It was there before the name server's restart."""
    GUARD = -1
    """It vanished together with too many others."""
    # The end of its channel said nothing about it. The values are those of the wire's DoubtReason.
    OWN_STALL = 1
    CLOSED_HERE = 2
    HANDED_OVER = 3

    @property
    def is_unconfirmed(self) -> bool:
        """Whether rows show the broker as unconfirmed."""
        return self.value < 0


class Doubted(NamedTuple):
    """A broker that is in the routes without proof."""

    why: Doubt
    ends_at_millis: int
    """When it leaves unless it reports before, milliseconds since the Unix epoch."""


class WriteRule(IntEnum):
    """What is made of the write permission that a group reports."""

    REPORTED = 0
    """It stands."""
    WIPED = 1
    """It is taken away: an operator drains the group, or a slave stands in for its lost master."""
    ADDED = 2
    """It is given, whatever is reported: by an intent."""


@dataclass(frozen=True, slots=True)
class DataVersion:
    """Version of a broker's topic table (RocketMQ: DataVersion). Equal only if all three are equal."""

    timestamp_millis: int
    counter: int
    state_version: int = 0


QueueNumbers = tuple[int, int, int, int]
"""Read queues, write queues, permission bits and flag bits of a topic on a broker."""


class StaticMapping(NamedTuple):
    """Which queues of a static topic are on one broker group now (RocketMQ: TopicQueueMappingInfo)."""

    scope: str
    total_queues: int
    """Queues of the topic on all groups of its scope."""
    epoch: int
    is_dirty: bool
    queue_ids: tuple[tuple[int, int], ...]
    """Queue of the topic, and the group's own queue that it is: by ascending queue of the topic (currIdMap)."""


ReportedQueues = QueueNumbers | tuple[int, int, int, int, StaticMapping]
"""All that a group reports of a topic: the numbers, and of a static topic its mapping."""

ReportedTopic = tuple[str, ReportedQueues]
"""A topic, and all that a group reports of it (RocketMQ: TopicConfig). A plain tuple, because a registration makes a
hundred thousand of them."""


class TopicTableFingerprint(NamedTuple):
    """Size and digest of a topic table that was read. An equal table is not read again."""

    size: int
    """Bytes of the table, so that it is found within a body."""
    digest: bytes
    """SHA-256 of these bytes: nobody can make another table with the same."""
    topics: int
    """How many it has."""


READ = 4
"""Permission bit for reading (PermName.PERM_READ)."""

WRITE = 2
"""Permission bit for writing (PermName.PERM_WRITE)."""


@dataclass(frozen=True, slots=True)
class QueueData:
    """The queues of any topic on one broker group, as the broker reports them (RocketMQ: QueueData).

    Topics with the same counts and permission on the same group share one instance.
    """

    broker: BrokerKey
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int
    fragment: bytes = field(compare=False, repr=False)
    """This, encoded and framed as field queue_datas of a TopicRouteData. Rows of the topic table are made of it."""
    fragments: tuple[bytes, ...] = field(compare=False, repr=False)
    """The same under each write rule: with the permission in force, and the reported permission too if that differs."""
    mapping: StaticMapping | None = None
    """Of a static topic: which of its queues are on the group."""

    @property
    def numbers(self) -> QueueNumbers:
        return self.read_queue_nums, self.write_queue_nums, self.perm, self.topic_sys_flag

    @property
    def reported(self) -> ReportedQueues:
        return self.numbers if self.mapping is None else (*self.numbers, self.mapping)

    def is_writable_under(self, rule: WriteRule) -> bool:
        """Whether there is a queue to write to, by what is reported and the rule."""
        return self.write_queue_nums > 0 and bool(perm_under(rule, self.perm) & WRITE)


def perm_under(rule: WriteRule, perm: int) -> int:
    """The permission in force where a broker reports ``perm``."""
    return (perm, perm & ~WRITE, perm | WRITE)[rule]


TopicQueues = tuple[bytes, ...]
"""A topic's queues as the fragments of its QueueDatas, ordered by broker group; never empty in a table.

Plain tuples of bytes, because the garbage collector stops looking at these: a full table is half a million rows."""


class Member(NamedTuple):
    """A broker of a group."""

    broker_id: int
    broker_addr: str
    unconfirmed: bool = False
    """Whether it is known from a snapshot file or held by the mass-loss guard."""
    labels: Labels = ()


@dataclass(frozen=True, slots=True)
class BrokerData:
    """The brokers of one group (RocketMQ: BrokerData)."""

    key: BrokerKey
    members: tuple[Member, ...] = ()
    """By broker id; never empty in a table."""
    zone_name: str | None = None
    enable_acting_master: bool | None = None
    write: WriteRule = WriteRule.REPORTED
    """What is made of the write permission that the group reports."""
    fragment: bytes = field(default=b"", compare=False, repr=False)
    """This, encoded and framed as the field broker_datas of a TopicRouteData."""
    filter_fragment: bytes = field(default=b"", compare=False, repr=False)
    """The filter servers of these addresses, framed as the field filter_servers of a TopicRouteData."""
    acting_fragment: bytes = field(default=b"", compare=False, repr=False)
    """Like fragment, with the lowest slave as broker id 0; empty where no slave stands in for the master."""

    @property
    def addrs(self) -> dict[int, str]:
        """Addresses by broker id, in the order of the ids."""
        return {member.broker_id: member.broker_addr for member in self.members}

    @property
    def unconfirmed(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.unconfirmed)

    @property
    def min_id(self) -> int:
        return self.members[0].broker_id

    @property
    def has_master(self) -> bool:
        return bool(self.members) and self.members[0].broker_id == MASTER_ID

    def live_key(self, member: Member) -> LiveKey:
        return LiveKey(self.key.cluster_name, member.broker_addr)

    def without(self, broker_addr: str) -> BrokerData:
        """The group without the broker at an address."""
        return replace(self, members=tuple(member for member in self.members if member.broker_addr != broker_addr))

    def with_member(self, member: Member) -> BrokerData:
        """The group with a broker, and none else with its id or its address; the same group if it has it."""
        if member in self.members:
            return self
        others = (one for one in self.members if one.broker_id != member.broker_id)
        kept = (one for one in others if one.broker_addr != member.broker_addr)
        return replace(self, members=tuple(sorted((*kept, member))))


@dataclass(frozen=True, slots=True)
class BrokerLiveInfo:
    """One live broker (RocketMQ: BrokerLiveInfo, without the changing time stamp)."""

    broker: BrokerKey
    broker_id: int
    broker_addr: str
    ha_server_addr: str | None
    data_version: DataVersion
    channel_id: str | None
    """Channel of the current registration, or None if it was sent without a channel."""
    generation: int
    """Number of the current registration."""
    timeout_seconds: float
    """How long the broker may be silent."""
    unconfirmed: bool = False
    """Whether it is known from a snapshot file or held by the mass-loss guard, and not from its own word since."""
    topic_by_topic: bool = False
    """Whether its last registration was: then the version identifies no topic table."""
    labels: Labels = ()
    key: LiveKey = field(init=False, compare=False, repr=False)
    """Key of this row: made once, as a removal asks for it a dozen times."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", LiveKey(self.broker.cluster_name, self.broker_addr))

    def as_member(self) -> Member:
        """The broker in its group's row."""
        return Member(self.broker_id, self.broker_addr, self.unconfirmed, self.labels)

    def version_matches(self, data_version: DataVersion) -> bool:
        """Whether the topics held of the broker have this version."""
        return not self.unconfirmed and not self.topic_by_topic and self.data_version == data_version

    def same_but_renewed(self, other: BrokerLiveInfo) -> bool:
        """Whether the other row differs at most in channel and generation, which no reader of a route sees."""
        return _SHOWN_OF_LIVE(self) == _SHOWN_OF_LIVE(other)


_SHOWN_OF_LIVE = attrgetter(
    *(each.name for each in fields(BrokerLiveInfo) if each.compare and each.name not in ("channel_id", "generation"))
)


@dataclass(frozen=True, slots=True)
class Registration:
    """What a broker registers (RocketMQ: RegisterBrokerRequestHeader and RegisterBrokerBody).

    There are two kinds. An agent sends its whole topic table, or an increment that names its base. Its version
    identifies the table, so an equal table need not be read again. RocketMQ's brokers may send a part of their table:
    one topic right after it changed, or a large table in parts, each under the version of the whole. Theirs is a
    merging registration, whatever its version.
    """

    broker: BrokerKey
    broker_id: int
    broker_addr: str
    data_version: DataVersion
    topic_configs: Mapping[str, ReportedQueues] | None
    """The topic table, or its changed topics, by name. None: not read yet."""
    ha_server_addr: str | None = None
    filter_servers: tuple[str, ...] | None = None
    """None leaves the broker's filter servers as they are, an empty tuple removes them."""
    channel_id: str | None = None
    base_version: DataVersion | None = None
    """If topic_configs is an increment: the version it builds on."""
    zone_name: str | None = None
    enable_acting_master: bool | None = None
    labels: Labels | None = None
    """None leaves the broker's labels as they are: RocketMQ's protocol has none."""
    timeout_seconds: float | None = None
    """How long this broker may be silent; None means the name server's setting."""
    topic_by_topic: bool = False
    """Whether topic_configs may be a part of the topic table, whatever the version. It has no base_version then."""
    mappings: Mapping[str, StaticMapping] = field(default_factory=dict)
    """Mappings of static topics in a merging registration, whether or not topic_configs names the topics. Mappings that
    it leaves out stay. A whole table and its increments have a static topic's mapping in topic_configs."""
    table_fingerprint: TopicTableFingerprint | None = None
    """Of the table that topic_configs are, or would be, in a merging registration. None if it has mappings."""

    @property
    def live_key(self) -> LiveKey:
        return LiveKey(self.broker.cluster_name, self.broker_addr)

    @property
    def topic_count(self) -> int:
        """How many topics it names, read or not."""
        if self.topic_configs is None:
            return 0 if self.table_fingerprint is None else self.table_fingerprint.topics
        return len(self.topic_configs)


class RemovedBroker(NamedTuple):
    """A broker that has left the tables, and why."""

    live: BrokerLiveInfo
    reason: RemovalReason
    group_gone: bool
    """Whether it was the last of its group, so that the group's queues were removed with it."""
    topics_removed: int
    """Topics that lost the group's queues with it."""


class RegisterBrokerResult(NamedTuple):
    """The result of a registration (RocketMQ: RegisterBrokerResult)."""

    generation: int
    changed: bool
    """Whether anything changed that a reader of routes can see."""
    is_new: bool
    """Whether the broker was not registered under this address, name and id before."""
    ha_server_addr: str | None
    """The master's HA address, for a slave whose master is live."""
    master_addr: str | None
    """The master's address, for a slave whose master is live."""
    replaced: tuple[RemovedBroker, ...]
    """Brokers that had to go: the holder of the id, or this address under its old name."""


# Intents of operators, kept apart from what brokers report.


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
    """One intent of an operator."""

    kind: IntentKind
    key: IntentKey
    """A BrokerKey for the permission kinds, a HoldKey for a topic hold."""
    caller: str
    """The operator."""
    since_millis: int
    """When, milliseconds since the Unix epoch."""
    comment: str = ""
    """The operator's comment."""
    ends_at_millis: int | None = None
    """When it expires, in milliseconds since the Unix epoch. None: it stays until it is lifted."""


@dataclass(frozen=True, slots=True)
class IntentTable:
    """All intents, oldest first. A change makes a new table and leaves this one as it is."""

    intents: Mapping[IntentKey, Intent] = field(default_factory=dict)
    _holds: Mapping[str | None, frozenset[str]] = field(init=False, repr=False, compare=False)
    """Topics held in each cluster, and (None) in all clusters. Every registration asks for them."""

    def __post_init__(self) -> None:
        holds: dict[str | None, set[str]] = {None: set()}
        for key in self.intents:
            if isinstance(key, HoldKey):
                holds.setdefault(key.cluster_name, set()).add(key.topic)
        object.__setattr__(self, "_holds", {cluster: frozenset(topics) for cluster, topics in holds.items()})

    @classmethod
    def of(cls, intents: Iterable[Intent]) -> IntentTable:
        return cls({intent.key: intent for intent in intents})

    def with_intent(self, intent: Intent) -> IntentTable:
        """A table with the intent instead of the one with the same key."""
        intents = dict(self.intents)
        intents.pop(intent.key, None)  # puts the intent last: an assignment would keep the old position
        intents[intent.key] = intent
        return IntentTable(intents)

    def without(self, keys: Iterable[IntentKey]) -> IntentTable:
        intents = dict(self.intents)
        for key in keys:
            intents.pop(key, None)
        return IntentTable(intents)

    def of_group(self, broker: BrokerKey) -> IntentKind | None:
        """The permission intent about a group; None if there is none."""
        intent = self.intents.get(broker)
        return intent.kind if intent else None

    def holds_of(self, cluster_name: str) -> frozenset[str]:
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


# The KV configuration: namespace to key to value (RocketMQ: KVConfigManager).

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""Namespace of the ordered-topic configuration, which answers to registrations carry (RocketMQ: NamesrvUtil)."""


@dataclass(frozen=True, slots=True)
class KvConfigTable:
    """The whole configuration (RocketMQ: configTable). A change makes a new table; those who hold this one keep it."""

    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """No namespace in it is empty: RocketMQ keeps one whose last key was deleted and lists it as empty."""

    @classmethod
    def of(cls, namespaces: Mapping[str, Mapping[str, str]]) -> KvConfigTable:
        return cls({namespace: dict(entries) for namespace, entries in namespaces.items() if entries})

    @property
    def key_count(self) -> int:
        """Keys of all namespaces."""
        return sum(map(len, self.namespaces.values()))

    @property
    def byte_size(self) -> int:
        """UTF-8 bytes of all entries, the namespace counted with each: what a list of everything takes."""
        texts = ((name * len(entries), *entries, *entries.values()) for name, entries in self.namespaces.items())
        return len("".join(chain.from_iterable(texts)).encode())

    def get(self, namespace: str, key: str) -> str | None:
        return self.entries(namespace).get(key)

    def entries(self, namespace: str) -> Mapping[str, str]:
        """Keys and values of a namespace; none if it is not there."""
        return self.namespaces.get(namespace, {})

    def with_value(self, namespace: str, key: str, value: str) -> KvConfigTable:
        """A table in which the key has the value; this table if it has it already."""
        if self.get(namespace, key) == value:
            return self
        return KvConfigTable({**self.namespaces, namespace: {**self.entries(namespace), key: value}})

    def without(self, namespace: str, key: str) -> KvConfigTable:
        """A table without the key; this table if it is not in it."""
        if key not in self.entries(namespace):
            return self
        left = {other: value for other, value in self.entries(namespace).items() if other != key}
        namespaces = {**self.namespaces, namespace: left}
        return KvConfigTable({name: entries for name, entries in namespaces.items() if entries})

    def differences_from(self, before: KvConfigTable) -> list[tuple[tuple[str, str], str | None, str | None]]:
        """Namespace and key of each entry that another table has otherwise, with its value there and here."""
        found: list[tuple[tuple[str, str], str | None, str | None]] = []
        for namespace in {**before.namespaces, **self.namespaces}:
            entries, entries_before = self.entries(namespace), before.entries(namespace)
            if entries is not entries_before:
                values = ((key, entries_before.get(key), entries.get(key)) for key in {**entries_before, **entries})
                found += [((namespace, key), old, new) for key, old, new in values if old != new]
        return found


# Switches of RocketMQ that operators set differently, the guard's numbers, and times that brokers are given.


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Replaced as a whole when an operator changes a part of it. Names are RocketMQ's (NamesrvConfig) in snake case.

    The defaults are RocketMQ 4's behaviour. Additions of version 5 are off, or on where readers see nothing new.
    """

    support_acting_master: bool = False
    """Whether a slave stands in for a lost master of a group that enables it. Fixed at the start."""
    delete_topic_with_broker_registration: bool = False
    """Whether a full registration removes the group's topics that are not in it."""
    notify_min_broker_id_changed: bool = False
    """Whether channels are told when the lowest broker id of a group changes."""
    order_message_enable: bool = False
    """Whether routes carry the ordered-topic configuration."""
    return_order_topic_config_to_broker: bool = True
    """Whether answers to registrations carry it."""
    mass_loss_percent: int = 50
    """The guard trips when more than this part of a principal's brokers is lost within the window, in percent."""
    mass_loss_min_brokers: int = 5
    """The guard does not trip below this many lost brokers: one machine may hold two groups of a master and a slave."""
    mass_loss_window_seconds: float = 30.0
    """Losses within this time count together: longer than a network takes to show all of its losses."""
    mass_loss_hold_seconds: float = 600.0
    """How long the guard keeps a lost broker in the routes: enough to look at the fleet and to confirm the loss."""
    channel_grace_seconds: float = 30.0
    """How long brokers stay after the end of a channel that was handed over."""


class Clock(Protocol):
    """Time as the core sees it: deadlines go by ``monotonic``, and ``wall_millis`` is only reported."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary point; never goes back."""

    def wall_millis(self) -> int:
        """Milliseconds since the Unix epoch."""
