"""The cache of routes: how answers change it, when a loss is held back, and where brokers are."""

from __future__ import annotations

import enum
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from namesrv_api.v1 import route_data_pb2 as pb
from namesrv_api.v1 import route_service_pb2

from route_client.route import MASTER_ID, BrokerData, GroupKey, TopicRoute, from_wire

# Safety rules: whether an answer that loses all brokers of a topic is believed at once or held back.
#
# Registries that pushed an empty list after a restart, or behind a partition, have taken whole fleets down. So the
# client continues with the brokers that it knows, unless the name server gives a real reason for each of them.

REALLY_WENT = frozenset(
    {
        pb.REMOVAL_REASON_UNREGISTERED,
        pb.REMOVAL_REASON_BROKER_DOWN,
        pb.REMOVAL_REASON_REPLACED,
        pb.REMOVAL_REASON_NOT_IN_REGISTRATION,
        pb.REMOVAL_REASON_DELETED_BY_OPERATOR,
        pb.REMOVAL_REASON_LOSS_CONFIRMED,
    }
)
"""Reasons that somebody decided or observed. The other reasons only say that the name server hears nothing. An ended
channel or a silence may be the network's fault, and GROUP_GONE follows from the end of the last broker.
"""


@dataclass(frozen=True, slots=True)
class Removal:
    """A broker that left a topic's route, and why."""

    key: GroupKey
    """Its group; empty names if the topic itself was removed."""
    broker_id: int | None
    """None if the whole group was removed."""
    broker_addr: str
    reason: int
    """A number of the contract's RemovalReason."""

    @property
    def reason_name(self) -> str:
        """Such as ``UNREGISTERED``; the number for reasons that are newer than this client."""
        known = pb.RemovalReason.DESCRIPTOR.values_by_number.get(self.reason)
        return known.name.removeprefix("REMOVAL_REASON_") if known else str(self.reason)

    @classmethod
    def from_wire(cls, wire: route_service_pb2.BrokerRemoval) -> Self:
        """Reads a removal."""
        broker_id = wire.broker_id if wire.HasField("broker_id") else None
        return cls(GroupKey(wire.cluster_name, wire.broker_name), broker_id, wire.broker_addr, wire.reason)


def all_really_went(old: TopicRoute, removals: Iterable[Removal]) -> bool:
    """Whether each broker of the old route is named with a reason that is a decision or an observation."""
    real = [removal for removal in removals if removal.reason in REALLY_WENT]
    if any(not removal.key.broker_name for removal in real):
        return True
    gone = {(removal.key, removal.broker_id) for removal in real}
    return all((key, id_) in gone or (key, None) in gone for key, id_, _ in old.brokers)


# Addresses of the kept routes' brokers (RocketMQ: brokerAddrTable, findBrokerAddressInPublish, ...InSubscribe).


class FoundBroker(NamedTuple):
    """A broker to pull from."""

    broker_addr: str
    broker_id: int

    @property
    def slave(self) -> bool:
        """Whether it is a slave."""
        return self.broker_id != MASTER_ID


class BrokerAddrTable:
    """The groups that kept routes name, as the route that changed last has them.

    Changed on the event loop; the lookups may be called from any thread.
    """

    def __init__(self) -> None:
        self._groups: dict[GroupKey, BrokerData] = {}
        self._routes_of: Counter[GroupKey] = Counter()

    def replace(self, old: TopicRoute | None, new: TopicRoute | None) -> None:
        """A topic's route changed. Drops groups that are in no route now (RocketMQ: cleanOfflineBroker)."""
        for group in new.broker_datas if new is not None else ():
            self._routes_of[group.key] += 1
            self._groups[group.key] = group
        for group in old.broker_datas if old is not None else ():
            self._routes_of[group.key] -= 1
            if not self._routes_of[group.key]:
                del self._routes_of[group.key], self._groups[group.key]

    def find_in_publish(self, broker_name: str, cluster_name: str | None = None) -> str | None:
        """Address of a group's master; None if no kept route has one."""
        groups = self._named(broker_name, cluster_name)
        return next((group.master_addr for group in groups if group.master_addr is not None), None)

    def find_in_subscribe(
        self, broker_name: str, broker_id: int, cluster_name: str | None = None, *, only_this_broker: bool = False
    ) -> FoundBroker | None:
        """A group's broker to pull from.

        The wanted one. If that is a slave and missing, the one with the next id, then any of the group, unless only the
        wanted one will do. None if no kept route has the group.
        """
        for group in self._named(broker_name, cluster_name):
            addrs = dict(group.broker_addrs)
            wanted = [broker_id] if broker_id == MASTER_ID else [broker_id, broker_id + 1]
            candidates = [*wanted, *([] if only_this_broker else addrs)]
            found = next((id_ for id_ in candidates if id_ in addrs), None)
            if found is not None:
                return FoundBroker(addrs[found], found)
        return None

    def _named(self, broker_name: str, cluster_name: str | None) -> list[BrokerData]:
        """The groups of a name, in one cluster or, as queues of an ordered configuration name none, in all."""
        if cluster_name:
            group = self._groups.get(GroupKey(cluster_name, broker_name))
            return [] if group is None else [group]
        return [group for group in list(self._groups.values()) if group.broker_name == broker_name]


def any_broker_of(route: TopicRoute, rng: random.Random) -> str | None:
    """A random group's master, or any of its brokers, to ask for a group's consumers. None without brokers."""
    groups = [group for group in route.broker_datas if group.broker_addrs]
    if not groups:
        return None
    group = rng.choice(groups)
    return group.master_addr or group.broker_addrs[0][1]


# The cache of routes, and how answers change it. Pure: time comes from the clock that it is given.


class Stale(enum.Enum):
    """Why a route may be out of date."""

    HELD = "held"
    """The last answer had no brokers and no real reason for their removal; the route before it stays for a while."""
    FROM_DISK = "from_disk"
    """From an earlier run's disk cache; no name server has answered for the topic since."""
    DISCONNECTED = "disconnected"
    """No name server can be reached at present, so nobody would tell of a change."""


@dataclass(frozen=True, slots=True)
class Origin:
    """One process lifetime of one name server. Two of them are equal or not; neither is ever the later one."""

    namesrv_name: str
    epoch: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a name server about a topic."""

    topic: str
    route: TopicRoute | None
    """None if it has no such topic."""
    origin: Origin
    revision: int
    removals: tuple[Removal, ...] = ()
    encoded_bytes: int = 0
    """Size of the route on the wire."""
    wire: pb.TopicRouteData | None = None
    """The route as the name server sent it, for the disk cache."""

    @classmethod
    def read(
        cls,
        topic: str,
        wire: pb.TopicRouteData | None,
        origin: Origin,
        revision: int,
        removals: tuple[Removal, ...] = (),
    ) -> Self | ValueError:
        """Reads an answer; returns an error that names the topic if its route cannot be read."""
        try:
            route = None if wire is None else from_wire(wire)
        except ValueError as error:
            return ValueError(f"the route of topic {topic!r}: {error}")
        return cls(topic, route, origin, revision, removals, 0 if wire is None else wire.ByteSize(), wire)


@dataclass(frozen=True, slots=True)
class KnownRoute:
    """The route of a topic as the client knows it."""

    topic: str
    route: TopicRoute | None
    """None if the topic does not exist, as far as the client knows."""
    stale: Stale | None = None
    """None if a name server confirms it now."""
    origin: Origin | None = None
    """The name server that it is from; None for a route from disk."""
    revision: int = 0
    """The origin's revision. Never compare it with another origin's."""


@dataclass(frozen=True, slots=True)
class RouteChange:
    """A difference that a user of the route can see."""

    topic: str
    before: KnownRoute | None
    after: KnownRoute
    removals: tuple[Removal, ...] = ()
    """Why brokers left, as far as the name server said."""

    @property
    def old_route(self) -> TopicRoute | None:
        """The route before; None if there was none, or nothing was known."""
        return self.before.route if self.before is not None else None

    @property
    def new_route(self) -> TopicRoute | None:
        """The route now; None if there is none."""
        return self.after.route


@dataclass(slots=True)
class Counters:
    """Counters of what happened so far."""

    answers: int = 0
    """Answers taken in."""
    outdated: int = 0
    """Answers of the same origin with a lower revision than one before; not taken."""
    refused: int = 0
    """Answers that could not be read."""
    held: int = 0
    """Losses of all brokers that were held back."""
    holds_averted: int = 0
    """... whose brokers returned in time."""
    holds_expired: int = 0
    """... that ran out of time, so that the loss was taken."""


MAX_ROUTE_BYTES = 512 * 1024 * 1024
"""Most bytes of all routes of a client, as they are on the wire. 10,000 topics on a hundred groups each have 110 MB."""


class RoutesTooLarge(ValueError):
    """An answer is not taken because all routes together would be over their limit. The text names who sent it."""


@dataclass(frozen=True, slots=True)
class _Entry:
    known: KnownRoute
    origin: Origin | None
    """The origin of the last answer, held back or not."""
    revision: int
    encoded_bytes: int = 0
    held: Answer | None = None
    held_until: float = 0.0

    @property
    def weight(self) -> int:
        """Encoded bytes of the route, and of the answer that is held back."""
        return self.encoded_bytes + (0 if self.held is None else self.held.encoded_bytes)


class RouteCache:
    """Routes by topic. Everything but ``get`` belongs to the event loop; ``get`` may be called from any thread."""

    def __init__(self, hold_seconds: float, clock: Callable[[], float]) -> None:
        """Starts empty.

        Args:
            hold_seconds: How long an unexplained loss of all brokers is held back. 0: not at all.
            clock: Monotonic, in seconds.
        """
        self._hold_seconds = hold_seconds
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._encoded_bytes = 0
        self.brokers = BrokerAddrTable()
        self.counters = Counters()
        self.cut_off = False
        """Whether no name server keeps the routes up to date, since the last one failed."""

    def get(self, topic: str) -> KnownRoute | None:
        """The route or absence that is known of a topic; None if no answer has arrived yet."""
        entry = self._entries.get(topic)
        known = None if entry is None else entry.known
        return self._shown(known) if self.cut_off and known is not None else known

    def set_cut_off(self, cut_off: bool) -> list[RouteChange]:
        """Notes that no name server keeps the routes up to date, or that one does again. Returns what has changed."""
        if cut_off == self.cut_off:
            return []
        self.cut_off = cut_off
        routes = [entry.known for entry in self._entries.values() if entry.known.route is not None]
        pairs = [(known, replace(known, stale=Stale.DISCONNECTED)) for known in routes if known.stale is None]
        return [RouteChange(on.topic, on, off) if cut_off else RouteChange(on.topic, off, on) for on, off in pairs]

    def held_topics(self) -> tuple[str, ...]:
        """Topics whose loss is held back."""
        return tuple(topic for topic, entry in list(self._entries.items()) if entry.held is not None)

    def offer(self, answer: Answer) -> RouteChange | None:
        """Takes an answer in, or holds it back.

        Returns:
            What has changed for users of the route; None if nothing.

        Raises:
            RoutesTooLarge: The cache is full. The known route stays.
        """
        entry = self._entries.get(answer.topic)
        if entry is not None and entry.origin == answer.origin and answer.revision < entry.revision:
            self.counters.outdated += 1
            return None
        encoded_bytes = self._encoded_bytes + answer.encoded_bytes - (0 if entry is None else entry.weight)
        if answer.encoded_bytes and encoded_bytes > MAX_ROUTE_BYTES:
            raise RoutesTooLarge(
                f"the route of topic {answer.topic!r} from {answer.origin.namesrv_name}: "
                f"all routes would have {encoded_bytes:,} bytes, over the limit of {MAX_ROUTE_BYTES:,}"
            )
        self.counters.answers += 1
        if entry is not None:
            old, new = entry.known.route, answer.route
            if old is None or not old.has_brokers or (new is not None and new.has_brokers):
                self.counters.holds_averted += entry.held is not None
            elif self._hold_seconds > 0 and not all_really_went(old, answer.removals):
                return self._hold(entry, answer)
        return self._take(answer)

    def restore(self, topic: str, route: TopicRoute) -> RouteChange | None:
        """Takes a route from disk in, unless a name server has said something since."""
        if topic in self._entries:
            return None
        return self._put(_Entry(KnownRoute(topic, route, Stale.FROM_DISK), None, 0))

    def next_hold_ends(self) -> float | None:
        """When the next hold runs out, by the clock; None if nothing is held."""
        return min((entry.held_until for entry in self._entries.values() if entry.held is not None), default=None)

    def expire_holds(self) -> list[tuple[Answer, RouteChange]]:
        """Takes the losses whose time has run out. Returns each with what has changed."""
        now = self._clock()
        due = [e.held for e in self._entries.values() if e.held is not None and e.held_until <= now]
        self.counters.holds_expired += len(due)
        return [(answer, change) for answer in due if (change := self._take(answer)) is not None]

    def forget(self, topic: str) -> None:
        """Drops a topic."""
        entry = self._entries.pop(topic, None)
        if entry is not None:
            self._encoded_bytes -= entry.weight
            self.brokers.replace(entry.known.route, None)

    def _shown(self, known: KnownRoute) -> KnownRoute:
        return replace(known, stale=Stale.DISCONNECTED) if self.cut_off and known.stale is None else known

    def _told(self, known: KnownRoute) -> KnownRoute:
        """A route as readers of changes know it. They hear nothing of missing topics while no name server answers."""
        return known if known.route is None else self._shown(known)

    def _hold(self, entry: _Entry, answer: Answer) -> RouteChange | None:
        self.counters.held += entry.held is None
        held_until = self._clock() + self._hold_seconds if entry.held is None else entry.held_until
        known = replace(entry.known, stale=Stale.HELD)
        held = _Entry(known, answer.origin, answer.revision, entry.encoded_bytes, answer, held_until)
        return self._put(held, answer.removals)

    def _take(self, answer: Answer) -> RouteChange | None:
        known = KnownRoute(answer.topic, answer.route, None, answer.origin, answer.revision)
        return self._put(_Entry(known, answer.origin, answer.revision, answer.encoded_bytes), answer.removals)

    def _put(self, entry: _Entry, removals: tuple[Removal, ...] = ()) -> RouteChange | None:
        """Replaces a topic's entry. Returns what has changed for users of its route; None if nothing."""
        known, earlier = entry.known, self._entries.get(entry.known.topic)
        before = None if earlier is None else earlier.known
        old_route, old_stale = (None, None) if before is None else (before.route, before.stale)
        self._entries[known.topic] = entry
        self._encoded_bytes += entry.weight - (0 if earlier is None else earlier.weight)
        if old_route != known.route:
            self.brokers.replace(old_route, known.route)
        if (old_route, old_stale) == (known.route, known.stale):
            return None
        return RouteChange(known.topic, None if before is None else self._told(before), self._told(known), removals)
