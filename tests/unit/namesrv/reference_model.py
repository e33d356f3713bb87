"""A reference model of the tables, as plain as possible: one dictionary of brokers, one of reported queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from namesrv.core.errors import Reason
from namesrv.core.model import (
    Behaviour,
    BrokerKey,
    DataVersion,
    HoldKey,
    Intent,
    IntentKey,
    IntentKind,
    LiveKey,
    QueueNumbers,
    Registration,
    ReportedQueues,
    WriteRule,
)
from namesrv_common.topic_names import Labels

TIMEOUT = 120.0
"""Seconds of silence that a broker may have that asks for nothing else."""

Place = tuple[str, BrokerKey]
"""A topic and a group: where queues are."""


@dataclass
class Broker:
    group: BrokerKey
    broker_id: int
    version: DataVersion
    channel: str | None
    timeout: float
    due: float
    labels: Labels
    ha: str | None
    unconfirmed: bool = False
    topic_by_topic: bool = False
    increment_first: bool = False
    """Whether it has said one topic at most since it came."""
    doubted: bool = False
    """Whether its channel has ended in a way that says nothing, and it has not reported since."""

    def vouches_for(self, version: DataVersion) -> bool:
        return self.version == version and not self.unconfirmed and not self.topic_by_topic

    def renew(self, now: float) -> None:
        self.due, self.doubted = now + self.timeout, False

    def heard_by_address(self, now: float) -> None:
        self.doubted = False
        self.due = max(now + self.timeout, self.due if self.unconfirmed else 0.0)


@dataclass
class Lost:
    """A broker that vanished, as the guard keeps it in mind."""

    at: float
    broker: Broker
    facts: tuple[str | None, bool | None]
    queues: dict[str, ReportedQueues]
    """Of its group, if that went with it."""
    filters: tuple[str, ...] | None


@dataclass
class ReferenceModel:
    behaviour: Behaviour
    brokers: dict[LiveKey, Broker] = field(default_factory=dict)
    facts: dict[BrokerKey, tuple[str | None, bool | None]] = field(default_factory=dict)
    """Zone of each group, and whether it enables an acting master."""
    queues: dict[Place, ReportedQueues] = field(default_factory=dict)
    """As reported, those of held topics among them."""
    filters: dict[LiveKey, tuple[str, ...]] = field(default_factory=dict)
    intents: dict[IntentKey, Intent] = field(default_factory=dict)
    kv: dict[tuple[str, str], str] = field(default_factory=dict)
    recent: dict[LiveKey, Lost] = field(default_factory=dict)
    """Losses that the guard counts and may bring back, oldest first."""
    held: dict[LiveKey, float] = field(default_factory=dict)
    """Losses that the guard counts and holds, and when they were."""
    open_channels: set[str] = field(default_factory=set)
    ended_channels: set[str] = field(default_factory=set)
    """Those that have ended and whose brokers nobody has removed yet."""

    # Registration

    def refusal(self, registration: Registration) -> Reason | None:
        """Why a registration is refused, if it is."""
        live = self.brokers.get(registration.live_key)
        if registration.channel_id is not None and registration.channel_id not in self.open_channels:
            return Reason.CHANNEL_GONE
        if registration.base_version is not None and (
            live is None
            or (live.group, live.broker_id) != (registration.broker, registration.broker_id)
            or not live.vouches_for(registration.base_version)
        ):
            return Reason.NEED_FULL_REGISTRATION
        holder = self._holder(registration)
        stated = registration.data_version.state_version
        if holder is None or self.brokers[holder].unconfirmed or self.brokers[holder].doubted:
            return None
        return Reason.STALE_STATE_VERSION if self.brokers[holder].version.state_version > stated else None

    def register(self, registration: Registration, now: float) -> None:
        key, group, broker_id = registration.live_key, registration.broker, registration.broker_id
        before = self.brokers.get(key)
        if before is not None and before.group != group:
            self.remove(key)
        holder = self._holder(registration)
        if holder is not None:
            del self.brokers[holder]
            self.filters.pop(holder, None)
        zone, acting = self.facts.get(group, (None, None))
        self.facts[group] = (
            zone if registration.zone_name is None else registration.zone_name,
            acting if registration.enable_acting_master is None else registration.enable_acting_master,
        )
        timeout = TIMEOUT if registration.timeout_seconds is None else registration.timeout_seconds
        version = registration.data_version
        by_topic = registration.topic_by_topic
        labels = registration.labels
        if labels is None:
            labels = () if before is None else before.labels
        self.brokers[key] = Broker(
            group, broker_id, version, registration.channel_id, timeout, now + timeout, labels,
            registration.ha_server_addr, topic_by_topic=by_topic,
        )  # fmt: skip
        is_new = before is None or (before.group, before.broker_id) != (group, broker_id)
        knows_nothing = before is None or is_new or before.unconfirmed or before.increment_first
        self.brokers[key].increment_first = by_topic and knows_nothing and len(registration.topic_configs or ()) < 2
        known = (
            before is not None
            and before.vouches_for(version)
            and (before.group, before.broker_id) == (group, broker_id)
            and not by_topic
        )
        exactly = self.behaviour.delete_topic_with_broker_registration
        if self._is_authoritative(registration) and (exactly or not known):
            topics = registration.topic_configs
            assert topics is not None, "they are given where they count"
            reported = self._reported(registration, topics)
            if exactly and registration.base_version is None and not (by_topic and registration.mappings):
                self._drop_queues(group)
            self.queues.update(reported)
        if registration.filter_servers is not None:
            self.filters.pop(key, None)
            if registration.filter_servers:
                self.filters[key] = registration.filter_servers
        self.recent.pop(key, None)
        self.held.pop(key, None)

    def _reported(
        self, registration: Registration, topics: Mapping[str, ReportedQueues]
    ) -> dict[Place, ReportedQueues]:
        group, mappings = registration.broker, registration.mappings
        if not registration.topic_by_topic:
            return {(topic, group): reported for topic, reported in topics.items()}
        reported: dict[Place, ReportedQueues] = {}
        for topic in {*topics, *mappings}:
            present = self.queues.get((topic, group), ())
            numbers = topics[topic][:4] if topic in topics else present[:4]
            mapping = (mappings[topic],) if topic in mappings else present[4:]
            if numbers:
                reported[topic, group] = (*numbers, *mapping)
        return reported

    def _holder(self, registration: Registration) -> LiveKey | None:
        """Who holds the id under another address."""
        place = registration.broker, registration.broker_id
        for key, broker in self.brokers.items():
            if key != registration.live_key and (broker.group, broker.broker_id) == place:
                return key
        return None

    def _is_authoritative(self, registration: Registration) -> bool:
        if registration.broker_id == 0:
            return True
        may_speak = self.behaviour.support_acting_master or registration.topic_by_topic
        knows_acting = registration.enable_acting_master is not None
        return may_speak and knows_acting and registration.broker_id == min(self.group_addrs()[registration.broker])

    def register_topic(self, topic: str, queues: dict[BrokerKey, QueueNumbers]) -> None:
        for group, numbers in queues.items():
            self.queues[topic, group] = (*numbers, *self.queues.get((topic, group), ())[4:])

    def master_of(self, key: LiveKey) -> tuple[str | None, str | None]:
        """HA address and address of the master that a slave learns."""
        broker = self.brokers[key]
        addr = self.group_addrs()[broker.group].get(0)
        master = self.brokers[LiveKey(key.cluster_name, addr)] if addr and broker.broker_id else None
        if addr is None or master is None or master.unconfirmed or master.doubted:
            return None, None
        return master.ha, addr

    # Restart

    def restart(self, now: float) -> None:
        """A snapshot file has what readers see. All brokers have their timeout again, and must register."""
        self.queues = self.shown()
        for broker in self.brokers.values():
            broker.unconfirmed, broker.channel, broker.due = True, None, now + min(broker.timeout, TIMEOUT)
            broker.doubted = broker.increment_first = False
        self.recent, self.held = {}, {}
        self.open_channels, self.ended_channels = set(), set()

    # Removal

    def remove(self, key: LiveKey) -> None:
        gone = self.brokers.pop(key)
        self.filters.pop(key, None)
        if gone.group not in self.group_addrs():
            del self.facts[gone.group]
            self._drop_queues(gone.group)

    def _drop_queues(self, group: BrokerKey) -> None:
        self.queues = {place: numbers for place, numbers in self.queues.items() if place[1] != group}

    # What readers see

    def group_addrs(self) -> dict[BrokerKey, dict[int, str]]:
        groups: dict[BrokerKey, dict[int, str]] = {}
        for key, broker in self.brokers.items():
            groups.setdefault(broker.group, {})[broker.broker_id] = key.broker_addr
        return groups

    def unconfirmed(self) -> set[LiveKey]:
        return {key for key, broker in self.brokers.items() if broker.unconfirmed}

    def is_held(self, place: Place) -> bool:
        topic, group = place
        return HoldKey(topic, None) in self.intents or HoldKey(topic, group.cluster_name) in self.intents

    def shown(self) -> dict[Place, ReportedQueues]:
        """Queues that are in routes, with the permission that is reported."""
        return {place: numbers for place, numbers in self.queues.items() if not self.is_held(place)}

    def is_acted_for(self, group: BrokerKey) -> bool:
        """Whether a slave stands in for the master."""
        enabled = self.behaviour.support_acting_master and bool(self.facts[group][1])
        return enabled and 0 not in self.group_addrs()[group]

    def rule_of(self, group: BrokerKey) -> WriteRule:
        intent = self.intents.get(group)
        if intent is not None:
            return WriteRule.WIPED if intent.kind is IntentKind.WIPE_WRITE_PERM else WriteRule.ADDED
        return WriteRule.WIPED if self.is_acted_for(group) else WriteRule.REPORTED

    def visible(self) -> object:
        """Everything that a reader can see."""
        return (
            {
                key: replace(broker, channel=None, due=0.0, increment_first=False, doubted=False)
                for key, broker in self.brokers.items()
            },
            {group: (facts, self.rule_of(group)) for group, facts in self.facts.items()},
            self.shown(),
            dict(self.filters),
            dict(self.intents),
            dict(self.kv),
            self.behaviour,
        )

    def lists(self) -> dict[str, list[str]]:
        """Topics by cluster, by first flags and system topics, as the lists should have them."""
        shown = self.shown()
        first_flag = {topic: shown[topic, group][3] for topic, group in sorted(shown, reverse=True)}
        return {
            "all": sorted(first_flag),
            "c1": sorted({topic for topic, group in shown if group.cluster_name == "c1"}),
            "unit": sorted(topic for topic, flag in first_flag.items() if flag & 1),
            "sub": sorted(topic for topic, flag in first_flag.items() if flag & 2),
            "sub not unit": sorted(topic for topic, flag in first_flag.items() if flag & 3 == 2),
            "system": sorted({name for group in self.facts for name in group}),
        }
