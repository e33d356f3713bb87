"""Everything that may happen to a name server's tables, in any order: rules that tell the reference model, too.

Changes have yield points, and another one before they are committed. What else may happen then, happens: some are given
up, and some meet tables that have been frozen.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from namesrv.core.changes import Cause, SettingChange
from namesrv.core.errors import Reason, Refused
from namesrv.core.model import (
    ORDER_TOPIC_CONFIG,
    Behaviour,
    BrokerKey,
    DataVersion,
    Doubt,
    HoldKey,
    Intent,
    IntentKey,
    IntentKind,
    IntentTable,
    LiveKey,
    QueueNumbers,
    Registration,
    RemovalReason,
    ReportedQueues,
    StaticMapping,
    TopicTableFingerprint,
)
from namesrv.core.operator_changes import (
    IntentsChange,
    OperatorOutcome,
    TopicDeletion,
    publish_behaviour,
    publish_kv_config,
)
from namesrv.core.registrations import BrokerRegistration, TopicRegistration
from namesrv.core.removals import (
    confirm_broker_loss,
    on_channel_destroy,
    preview_broker_loss,
    scan_not_active_broker,
    unregister_broker,
)
from namesrv.core.state import StateChange
from namesrv.core.watch.affected import ORDER_MESSAGE_ENABLE
from tests.support.refusals import refuses
from tests.support.state_changes import apply_now
from tests.unit.namesrv.reference_change_log import GUARDED
from tests.unit.namesrv.reference_guard import bound_to, forget_topic, lose, overdue, remove_the_rest
from tests.unit.namesrv.reference_inputs import (
    ADDRS,
    CLUSTERS,
    GROUPS,
    IDS,
    INTENT_KEYS,
    MAPPINGS,
    NUMBERS,
    PARTIAL_REGISTRATIONS,
    REGISTRATIONS,
    TABLES,
    TOPIC_NAMES,
    TOPICS,
    VERSIONS,
)
from tests.unit.namesrv.reference_machine import LOSS_PLANS, PLANS, UNDISTURBED, Plan, ReferenceMachine
from tests.unit.namesrv.reference_model import ReferenceModel
from tests.unit.namesrv.reference_operators import blast_radius, moved_queues, without_brokers, without_topic

OPERATOR = Cause("an operator's call", "an operator", "because")

SETTINGS = {
    ORDER_MESSAGE_ENABLE: "order_message_enable",
    "deleteTopicWithBrokerRegistration": "delete_topic_with_broker_registration",
}
"""Settings that change while a name server runs, with their fields of a Behaviour."""
SWITCHES = st.fixed_dictionaries(dict.fromkeys(("support_acting_master", *SETTINGS.values()), st.booleans()))

FleetPlace = tuple[str, BrokerKey, int]
"""A broker's address, its group, and its id."""


def places(at_least: int) -> st.SearchStrategy[list[FleetPlace]]:
    """Each is taken once, so that nothing is changed that is changed back in the same step."""
    unique = (lambda place: place[0], lambda place: place[1:])
    return st.lists(st.tuples(ADDRS, GROUPS, IDS), min_size=at_least, max_size=5, unique_by=unique)


def mark_of(topics: Mapping[str, ReportedQueues]) -> TopicTableFingerprint:
    """A mark that only an equal table has."""
    return TopicTableFingerprint(0, repr(sorted(topics.items())).encode(), len(topics))


class TablesAgreeWithTheModel(ReferenceMachine):
    behaviour = Behaviour(mass_loss_percent=100)
    """The guard is off: no more than all can be lost."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[BrokerKey, Mapping[str, ReportedQueues]] = {}
        """The last table of each group that came in merging registrations, with its mark."""

    @initialize(
        switches=SWITCHES, places=places(1), topics=TOPICS,
        intents=st.lists(st.tuples(INTENT_KEYS, st.booleans(), st.none()), max_size=3),
    )  # fmt: skip
    def start(
        self,
        switches: dict[str, bool],
        places: list[FleetPlace],
        topics: dict[str, QueueNumbers],
        intents: list[tuple[IntentKey, bool, int | None]],
    ) -> None:
        self.start_with(replace(self.behaviour, **switches))
        self.decide_on(intents, [], UNDISTURBED)
        self.the_change_log_has_a_change_for_all_that_can_be_seen()
        self.a_fleet_comes(places, topics)

    def a_fleet_comes(self, places: list[FleetPlace], topics: dict[str, QueueNumbers], *, channels: int = 1) -> None:
        """Over one channel, so that it can vanish at once, or over several."""
        self.most_changes = len(places)
        opened = [self.fleet.state.open_channel() for _ in range(channels)]
        self.model.open_channels.update(opened)
        for (addr, group, broker_id), channel in zip(places, itertools.cycle(opened), strict=False):
            version = DataVersion(1, 1, 1)
            registration = Registration(group, broker_id, addr, version, topics, channel_id=channel)
            self.register_with(registration, UNDISTURBED)

    # Brokers

    @rule(registration=REGISTRATIONS | PARTIAL_REGISTRATIONS, plan=PLANS, data=st.data())
    def register(self, registration: Registration, plan: Plan, data: st.DataObject) -> None:
        self.register_with(replace(registration, channel_id=self.some_channel(data)), plan)

    @rule(registration=REGISTRATIONS | PARTIAL_REGISTRATIONS, number=st.integers(0, 3), plan=PLANS)
    def take_an_id(self, registration: Registration, number: int, plan: Plan) -> None:
        """Of a broker, mostly at another address."""
        for _, broker in self.brokers_at(number):
            self.register_with(replace(registration, broker=broker.group, broker_id=broker.broker_id), plan)

    def some_channel(self, data: st.DataObject) -> str | None:
        channels = [*sorted(self.model.open_channels)[:2], *sorted(self.model.ended_channels)[:1]]
        return data.draw(st.sampled_from([*channels, None]))

    @rule(
        number=st.integers(0, 3), version=st.none() | VERSIONS, topics=TOPICS, table=TABLES, plan=PLANS,
        kind=st.sampled_from(["whole", "increment", "topic by topic", "the same topic by topic"]),
        mapping=st.none() | MAPPINGS, filter_servers=st.sampled_from([None, (), ("f:1",)]), data=st.data(),
    )  # fmt: skip
    def register_again(
        self,
        number: int,
        version: DataVersion | None,
        topics: dict[str, QueueNumbers],
        table: dict[str, ReportedQueues],
        plan: Plan,
        kind: str,
        mapping: StaticMapping | None,
        filter_servers: tuple[str, ...] | None,
        data: st.DataObject,
    ) -> None:
        partial = kind.endswith("topic by topic")
        for key, broker in self.brokers_at(number):
            said = self.said.get(broker.group, topics) if kind.startswith("the same") else topics
            registration = Registration(
                broker.group,
                broker.broker_id,
                key.broker_addr,
                version or broker.version,
                said if partial else table,
                filter_servers=filter_servers,
                channel_id=self.some_channel(data),
                base_version=broker.version if kind == "increment" else None,
                enable_acting_master=True,
                topic_by_topic=partial,
                mappings={} if mapping is None else {"T1": mapping},
            )
            self.register_with(registration, plan)

    @rule(
        number=st.integers(0, 3), topics=TOPICS, topic=TOPIC_NAMES, numbers=NUMBERS,
        between=st.sampled_from(["register", "delete", "hold", "lift"]),
    )  # fmt: skip
    def register_the_same_twice(
        self, number: int, topics: dict[str, QueueNumbers], topic: str, numbers: QueueNumbers, between: str
    ) -> None:
        """With a mark, so that the second table is read only if something has come between."""
        for key, broker in self.brokers_at(number):
            registration = Registration(
                broker.group, broker.broker_id, key.broker_addr, broker.version, topics,
                enable_acting_master=True, topic_by_topic=True,
            )  # fmt: skip
            self.register_with(registration, UNDISTURBED)
            self.the_change_log_has_a_change_for_all_that_can_be_seen()
            match between:
                case "register":
                    self.register_topic(topic=topic, queues={broker.group: numbers}, plan=UNDISTURBED, only_known=True)
                case "delete":
                    self.delete_topic(topic=topic, cluster=None, plan=UNDISTURBED)
                case "hold":
                    self.decide_on([(HoldKey(topic, None), True, None)], [], UNDISTURBED)
                case _:
                    self.decide_on([], [0, 1, 2, 3], UNDISTURBED)
            self.the_change_log_has_a_change_for_all_that_can_be_seen()
            self.register_with(registration, UNDISTURBED)

    def register_with(self, registration: Registration, plan: Plan) -> None:
        topics = registration.topic_configs
        if registration.topic_by_topic and topics is not None and not registration.mappings:
            self.said[registration.broker] = topics
            registration = replace(registration, table_fingerprint=mark_of(topics))
        refusal = self.model.refusal(registration)
        change = BrokerRegistration(self.fleet.state, registration)
        published: list[bool] = []

        def publication() -> None:
            self.model.register(registration, self.now)
            published.append(True)

        before, result = self.state.revision, None
        try:
            result = self.drive(change, plan, publication, cause="RegisterBroker")
        except Refused as error:
            channel_has_ended = registration.channel_id not in {None, *self.model.open_channels}
            if error.reason != refusal and not (channel_has_ended and error.reason == Reason.CHANNEL_GONE):
                raise
            assert not published
        if result is not None:
            assert refusal is None
            assert result.changed == (self.state.revision > before)
            assert (result.ha_server_addr, result.master_addr) == self.model.master_of(registration.live_key)

    @rule(
        topic=TOPIC_NAMES, queues=st.dictionaries(GROUPS, NUMBERS, min_size=1, max_size=3), plan=PLANS,
        only_known=st.booleans(),
    )  # fmt: skip
    def register_topic(self, topic: str, queues: dict[BrokerKey, QueueNumbers], plan: Plan, only_known: bool) -> None:
        if only_known:
            queues = {group: numbers for group, numbers in queues.items() if group in self.model.facts}
        before = self.model.shown()
        change = TopicRegistration(self.fleet.state, topic, queues)
        publication = partial(self.model.register_topic, topic, queues)
        if queues.keys() <= self.model.facts.keys():
            changed = self.drive(change, plan, publication, cause="RegisterTopic")
            assert self.given_up or changed == (self.model.shown() != before)
        else:
            with refuses(Reason.BROKER_NOT_REGISTERED):
                apply_now(change)
            self.reaches(Reason.BROKER_NOT_REGISTERED)

    @rule(number=st.integers(0, 3), plan=PLANS, generation=st.sampled_from([None, None, 0, 1]))
    def unregister_one(self, number: int, plan: Plan, generation: int | None) -> None:
        for key, broker in self.brokers_at(number):
            self.unregister(group=broker.group, addr=key.broker_addr, plan=plan, generation=generation)

    @rule(group=GROUPS, addr=ADDRS, plan=PLANS, generation=st.sampled_from([None, None, 0, 1]))
    def unregister(self, group: BrokerKey, addr: str, plan: Plan, generation: int | None) -> None:
        """The generation is so many before the current one."""
        key = LiveKey(group.cluster_name, addr)
        broker = self.model.brokers.get(key)
        named = None
        if generation is not None and broker is not None:
            named = self.state.tables.broker_live_table[key].generation - generation
        due = broker is not None and broker.group == group and generation != 1
        removal = unregister_broker(self.fleet.state, group, addr, RemovalReason.UNREGISTERED, generation=named)
        publication = partial(remove_the_rest, self.model, [key] if due else [])
        removed = self.drive(removal, plan, publication, cause="UnregisterBroker")
        assert self.given_up or bool(removed) == due

    # Liveness

    @rule(
        number=st.integers(0, 3),
        kind=st.sampled_from(["heartbeat", "query", "by address", "channel opens", "more time"]),
    )
    def sign_of_life(self, kind: str, number: int) -> None:
        self.happens(kind, number)

    @rule()
    def the_name_server_restarts(self) -> None:
        self.restart()
        self.the_tables_agree()
        self.reaches("restarted")

    @rule(seconds=st.sampled_from([1.0, 29.0, 30.0, 31.0, 119.0, 120.0, 121.0, 300.0, 601.0]))
    def time_passes(self, seconds: float) -> None:
        self.fleet.clock.advance(seconds)

    @rule(seconds=st.sampled_from([0.0, 0.0, 31.0, 121.0]), plan=LOSS_PLANS)
    def scan(self, seconds: float, plan: Plan) -> None:
        """Some time after the change before."""
        self.fleet.clock.advance(seconds)
        changes = scan_not_active_broker(self.fleet.state)
        first = lambda: lose(self.model, overdue(self.model, self.now), self.now)  # noqa: E731
        rest = lambda: remove_the_rest(self.model, overdue(self.model, self.now))  # noqa: E731
        self.drive_all(changes, plan, first, rest, cause="expiry")

    # Channels

    @rule(data=st.data())
    def a_channel_ends(self, data: st.DataObject) -> None:
        if self.model.open_channels:
            self.end_channel(data.draw(st.sampled_from(sorted(self.model.open_channels))))

    @rule(plan=LOSS_PLANS, count=st.integers(1, 3))
    def ends_of_channels_are_noticed(self, plan: Plan, count: int) -> None:
        self.notice_ends_of_channels(plan, count)

    def notice_ends_of_channels(self, plan: Plan, count: int) -> None:
        channels = sorted(self.model.ended_channels)[:count]
        self.model.ended_channels.difference_update(channels)
        keys = bound_to(self.model, channels)
        changes = on_channel_destroy(self.fleet.state, channels)
        self.drive_all(changes, plan, partial(lose, self.model, keys, self.now), cause="channel end")

    @rule(data=st.data())
    def an_end_of_a_channel_is_doubted(self, data: st.DataObject) -> None:
        if not self.model.open_channels:
            return
        self.doubt(data.draw(st.sampled_from(sorted(self.model.open_channels))))

    def doubt(self, channel: str) -> None:
        bound = bound_to(self.model, [channel])
        self.end_channel(channel)
        self.model.ended_channels.remove(channel)
        assert self.fleet.state.doubt_channel_end(channel, 30.0, Doubt.OWN_STALL) == len(bound)
        for key in bound:
            self.model.brokers[key].due, self.model.brokers[key].doubted = self.now + 30.0, True

    # Operators

    @rule(
        intents=st.lists(st.tuples(INTENT_KEYS, st.booleans(), st.none() | st.just(60_000)), max_size=2),
        lifted=st.lists(st.integers(0, 3), max_size=2), plan=PLANS,
    )  # fmt: skip
    def decide(self, intents: list[tuple[IntentKey, bool, int | None]], lifted: list[int], plan: Plan) -> None:
        self.decide_on(intents, lifted, plan)

    def decide_on(self, intents: list[tuple[IntentKey, bool, int | None]], lifted: list[int], plan: Plan) -> None:
        now = self.fleet.clock.wall_millis()
        present = list(self.model.intents)
        table = self.state.intents.without([present[number] for number in lifted if number < len(present)])
        for key, wipe, millis in intents:
            permission = IntentKind.WIPE_WRITE_PERM if wipe else IntentKind.ADD_WRITE_PERM
            kind = IntentKind.TOPIC_HOLD if isinstance(key, HoldKey) else permission
            table = table.with_intent(Intent(kind, key, "an operator", now, "", millis and now + millis))
        self.publish_intents(table, plan)

    @rule(plan=PLANS)
    def intents_end(self, plan: Plan) -> None:
        table = self.state.intents
        ended = [intent.key for intent in table.ended(self.fleet.clock.wall_millis())]
        self.publish_intents(table.without(ended), plan)

    def publish_intents(self, table: IntentTable, plan: Plan) -> None:
        def publication() -> None:
            self.model.intents = dict(table.intents)

        after = replace(self.model, intents=dict(table.intents))
        preview = apply_now(IntentsChange(self.fleet.state, table, OPERATOR, validate_only=True))
        change = IntentsChange(self.fleet.state, table, OPERATOR)
        self.carry_out(preview, change, plan, after, publication, despite_freeze=True)

    @rule(topic=TOPIC_NAMES, cluster=st.none() | CLUSTERS, plan=PLANS)
    def delete_topic(self, topic: str, cluster: str | None, plan: Plan) -> None:
        def publication() -> None:
            self.model.queues = after.queues
            forget_topic(self.model, topic, cluster)

        after = without_topic(self.model, topic, cluster)
        preview = apply_now(TopicDeletion(self.fleet.state, topic, cluster, OPERATOR, validate_only=True))
        change = TopicDeletion(self.fleet.state, topic, cluster, OPERATOR)
        self.carry_out(preview, change, plan, after, publication)

    def carry_out(
        self,
        preview: OperatorOutcome,
        change: StateChange[OperatorOutcome],
        plan: Plan,
        after: ReferenceModel,
        publication: Callable[[], None],
        *,
        despite_freeze: bool = False,
    ) -> None:
        self.the_tables_agree()
        assert preview.blast_radius == blast_radius(self.model, after)
        assert preview.queue_data_count == moved_queues(self.model, after)
        outcome = self.drive(change, plan, publication, cause=OPERATOR.call, despite_freeze=despite_freeze)
        assert outcome == preview or self.given_up

    @rule(wanted=st.sets(ADDRS, min_size=1), plan=PLANS)
    def confirm_broker_loss(self, wanted: set[str], plan: Plan) -> None:
        keys = {key for key in self.model.unconfirmed() if key.broker_addr in wanted}
        removed, radius = apply_now(preview_broker_loss(self.fleet.state, lambda live: live.key in keys))
        self.the_tables_agree()
        assert {gone.live.key for gone in removed} == keys
        assert radius == blast_radius(self.model, without_brokers(self.model, keys))
        changes = confirm_broker_loss(self.fleet.state, lambda live: live.key in keys, OPERATOR)
        outcome = self.drive_all(changes, plan, partial(remove_the_rest, self.model, keys), cause=OPERATOR.call)
        assert outcome == removed or self.given_up

    @rule(
        namespace=st.sampled_from([ORDER_TOPIC_CONFIG, "other"]), key=TOPIC_NAMES,
        value=st.sampled_from([None, "broker-a:4", "broker-b:2"]),
    )  # fmt: skip
    def put_kv_config(self, namespace: str, key: str, value: str | None) -> None:
        self.causes = {OPERATOR.call}
        table = self.state.kv_config
        if value is None:
            publish_kv_config(self.fleet.state, table.without(namespace, key), OPERATOR)
            self.model.kv.pop((namespace, key), None)
        else:
            publish_kv_config(self.fleet.state, table.with_value(namespace, key, value), OPERATOR)
            self.model.kv[namespace, key] = value

    @rule(setting=st.sampled_from(list(SETTINGS)))
    def switch(self, setting: str) -> None:
        self.causes = {OPERATOR.call}
        value = not getattr(self.model.behaviour, SETTINGS[setting])
        self.model.behaviour = replace(self.model.behaviour, **{SETTINGS[setting]: value})
        publish_behaviour(self.fleet.state, self.model.behaviour, OPERATOR, (SettingChange(setting, None, str(value)),))


class TablesAgreeWithTheModelUnderTheGuard(TablesAgreeWithTheModel):
    behaviour = Behaviour(mass_loss_percent=50, mass_loss_min_brokers=2, mass_loss_window_seconds=30.0)
    """All brokers have one principal; ``test_guard_against_model`` has several."""
    outcomes = TablesAgreeWithTheModel.outcomes | GUARDED | {"LOSS_CONFIRMED gone", "refused while unconfirmed"}

    @rule(places=places(3), topics=TOPICS, channels=st.integers(1, 4))
    def another_fleet_comes(self, places: list[FleetPlace], topics: dict[str, QueueNumbers], channels: int) -> None:
        self.a_fleet_comes(places, topics, channels=channels)

    @rule(seconds=st.sampled_from([0.0, 5.0, 29.0, 31.0]), plan=LOSS_PLANS, number=st.integers(0, 3))
    def a_part_of_the_fleet_goes(self, seconds: float, plan: Plan, number: int) -> None:
        """The brokers of one channel, some time after the change before."""
        self.fleet.clock.advance(seconds)
        bound = {broker.channel for broker in self.model.brokers.values()}
        channels = [channel for channel in self.model.open_channels if channel in bound]
        for channel in sorted(channels)[number : number + 1]:
            self.end_channel(channel)
        self.notice_ends_of_channels(plan, 1)

    @rule(
        places=places(3), topics=TOPICS, plans=st.lists(LOSS_PLANS, min_size=2, max_size=4), topic=TOPIC_NAMES,
        cluster=st.none() | CLUSTERS, meanwhile=st.sets(st.sampled_from(["hold", "delete", "replace", "succeed"])),
        reported=TOPICS, then=st.sampled_from(["beat", "confirm", "return"]),
    )  # fmt: skip
    def a_fleet_goes_one_by_one(
        self,
        places: list[FleetPlace],
        topics: dict[str, QueueNumbers],
        plans: list[Plan],
        topic: str,
        cluster: str | None,
        meanwhile: set[str],
        reported: dict[str, QueueNumbers],
        then: str,
    ) -> None:
        """Much happens after the first: of what the guard brings back, only what nobody has decided otherwise."""
        self.a_fleet_comes(places, topics, channels=4)
        self.the_change_log_has_a_change_for_all_that_can_be_seen()
        self.a_part_of_the_fleet_goes(1.0, UNDISTURBED, 0)
        self.the_change_log_has_a_change_for_all_that_can_be_seen()
        if "hold" in meanwhile:
            self.decide_on([(HoldKey(topic, cluster), True, None)], [], UNDISTURBED)
            self.the_change_log_has_a_change_for_all_that_can_be_seen()
        if meanwhile & {"replace", "succeed"}:
            self.another_broker_of_the_lost_group_comes(reported, has_its_id="succeed" in meanwhile)
            self.the_change_log_has_a_change_for_all_that_can_be_seen()
        if "delete" in meanwhile:
            self.delete_topic(topic=topic, cluster=cluster, plan=UNDISTURBED)
            self.the_change_log_has_a_change_for_all_that_can_be_seen()
        for plan in plans:
            self.a_part_of_the_fleet_goes(1.0, plan, 0)
            self.the_change_log_has_a_change_for_all_that_can_be_seen()
        if then == "confirm":
            self.confirm_broker_loss(wanted={key.broker_addr for key in self.model.unconfirmed()}, plan=plans[0])
        elif then == "return":
            self.a_fleet_comes(places[:2], topics)
        elif then == "beat":
            for number in range(4):
                self.happens("heartbeat", number)

    @rule(places=places(3), topics=TOPICS, plan=LOSS_PLANS)
    def a_fleet_is_doubted_and_falls_silent(
        self, places: list[FleetPlace], topics: dict[str, QueueNumbers], plan: Plan
    ) -> None:
        self.a_fleet_comes(places, topics)
        channel = max(self.model.open_channels, key=lambda name: int(name.rpartition("-")[2]))
        self.the_change_log_has_a_change_for_all_that_can_be_seen()
        self.doubt(channel)
        self.scan(seconds=31.0, plan=plan)

    def another_broker_of_the_lost_group_comes(self, topics: dict[str, QueueNumbers], *, has_its_id: bool) -> None:
        """At another address, as a broker of RocketMQ's that speaks for its group."""
        for lost in list(self.model.recent.values())[-1:]:
            broker_id = lost.broker.broker_id if has_its_id else int(not lost.broker.broker_id)
            registration = Registration(
                lost.broker.group, broker_id, "10.0.0.6:10911", DataVersion(1, 1, 1), topics,
                enable_acting_master=True, topic_by_topic=True,
            )  # fmt: skip
            self.register_with(registration, UNDISTURBED)
