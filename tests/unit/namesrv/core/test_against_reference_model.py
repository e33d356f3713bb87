"""Any sequence of changes leaves the tables as a plain model says, and answers as generated code would encode them.

Writers give way after every topic or two; what else may happen then, happens, and some of them are given up half-way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from namesrv.core.changes import Cause, ConfigPut
from namesrv.core.errors import BrokerNotRegistered, ChannelGone
from namesrv.core.model import (
    ORDER_TOPIC_CONFIG,
    BrokerKey,
    DataVersion,
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
from namesrv.core.operator_changes import OperatorOutcome
from namesrv.core.policy import Behaviour
from namesrv.core.slices import Sliced, run_sync
from tests.properties import examples
from tests.unit.namesrv.reference_guard import bound_to, lose, overdue, remove_the_rest
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
from tests.unit.namesrv.reference_machine import LOSS_PLANS, PLANS, Plan, ReferenceMachine, small_slices
from tests.unit.namesrv.reference_model import ReferenceModel
from tests.unit.namesrv.reference_operators import (
    blast_radius,
    moved_queues,
    without_brokers,
    without_topic,
)

OPERATOR = Cause("an operator's call", "an operator", "because")


def mark_of(topics: Mapping[str, ReportedQueues]) -> TopicTableFingerprint:
    """A mark that only an equal table has."""
    return TopicTableFingerprint(0, repr(sorted(topics.items())).encode(), len(topics))


class TablesAgreeWithTheModel(ReferenceMachine):
    behaviour = Behaviour(mass_loss_percent=100)
    """The guard is off: no more than all can be lost."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[BrokerKey, Mapping[str, ReportedQueues]] = {}
        """The last table of each group that came topic by topic, with its mark."""

    @initialize(acting_master=st.booleans(), exactly=st.booleans())
    def start(self, acting_master: bool, exactly: bool) -> None:
        self.start_with(
            replace(self.behaviour, support_acting_master=acting_master, delete_topic_with_broker_registration=exactly)
        )

    # Brokers

    @rule(registration=REGISTRATIONS | PARTIAL_REGISTRATIONS, plan=PLANS, data=st.data())
    def register(self, registration: Registration, plan: Plan, data: st.DataObject) -> None:
        channel = data.draw(st.sampled_from([None, *sorted(self.model.open_channels)[:2]]))
        self.register_with(replace(registration, channel_id=channel), plan)

    @rule(
        number=st.integers(0, 3), version=st.none() | VERSIONS, topics=TOPICS, table=TABLES, plan=PLANS,
        kind=st.sampled_from(["whole", "increment", "topic by topic", "the same topic by topic"]),
        mapping=st.none() | MAPPINGS,
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
    ) -> None:
        partial = kind.endswith("topic by topic")
        for key, broker in sorted(self.model.brokers.items(), key=lambda item: item[0])[number : number + 1]:
            said = self.said.get(broker.group, topics) if kind.startswith("the same") else topics
            registration = Registration(
                broker.group,
                broker.broker_id,
                key.broker_addr,
                version or broker.version,
                said if partial else table,
                base_version=broker.version if kind == "increment" else None,
                enable_acting_master=True,
                topic_by_topic=partial,
                mappings={} if mapping is None else {"T1": mapping},
            )
            self.register_with(registration, plan)

    def register_with(self, registration: Registration, plan: Plan) -> None:
        topics = registration.topic_configs
        if registration.topic_by_topic and topics is not None and not registration.mappings:
            self.said[registration.broker] = topics
            registration = replace(registration, table_fingerprint=mark_of(topics))
        refusal = self.model.refusal(registration)
        steps = self.manager.register_broker(registration)
        published: list[bool] = []

        def publication() -> None:
            self.model.register(registration, self.now)
            published.append(True)

        with contextlib.ExitStack() as stack:
            if refusal is not None:
                stack.enter_context(pytest.raises((refusal, ChannelGone)))
            before = self.manager.revision
            try:
                result = self.drive(steps, plan, publication, cause="RegisterBroker")
            except ChannelGone:
                assert not published
                assert registration.channel_id not in self.model.open_channels
                assert registration.channel_id is not None
                if refusal is not None:
                    raise
                return
            if result is not None:
                assert result.changed == (self.manager.revision > before)
            elif refusal is not None:
                raise ChannelGone("given up before it was refused")

    @rule(topic=TOPIC_NAMES, queues=st.dictionaries(GROUPS, NUMBERS, min_size=1, max_size=3), plan=PLANS)
    def register_topic(self, topic: str, queues: dict[BrokerKey, QueueNumbers], plan: Plan) -> None:
        before = self.model.shown()
        steps = self.manager.register_topic(topic, queues)
        publication = partial(self.model.register_topic, topic, queues)
        if queues.keys() <= self.model.facts.keys():
            changed = self.drive(steps, plan, publication, cause="RegisterTopic")
            assert self.given_up or changed == (self.model.shown() != before)
        else:
            with pytest.raises(BrokerNotRegistered):
                run_sync(steps)

    @rule(group=GROUPS, addr=ADDRS, plan=PLANS, generation=st.sampled_from([None, None, 0, 1]))
    def unregister(self, group: BrokerKey, addr: str, plan: Plan, generation: int | None) -> None:
        """The generation is so many before the current one."""
        key = LiveKey(group.cluster_name, addr)
        broker = self.model.brokers.get(key)
        named = None
        if generation is not None and broker is not None:
            named = self.manager.tables.broker_live_table[key].generation - generation
        due = broker is not None and broker.group == group and generation != 1
        steps = self.manager.unregister_broker(group, addr, RemovalReason.UNREGISTERED, named)
        publication = partial(remove_the_rest, self.model, [key] if due else [])
        removed = self.drive(steps, plan, publication, cause="UnregisterBroker")
        assert self.given_up or (removed is not None) == due

    # Signs of life

    @rule(
        number=st.integers(0, 3),
        kind=st.sampled_from(["heartbeat", "query", "by address", "channel opens", "more time"]),
    )
    def sign_of_life(self, kind: str, number: int) -> None:
        self.happens(kind, number)

    @rule(group=GROUPS, addr=ADDRS, broker_id=IDS, version=VERSIONS)
    def query(self, group: BrokerKey, addr: str, broker_id: int, version: DataVersion) -> None:
        answer = self.manager.query_data_version(group, broker_id, addr, version)
        self.check_answer(answer, group, addr, broker_id, version)

    def check_answer(
        self, answer: tuple[bool, DataVersion | None], group: BrokerKey, addr: str, broker_id: int, version: DataVersion
    ) -> None:
        broker = self.model.brokers.get(LiveKey(group.cluster_name, addr))
        if broker is None or (broker.group, broker.broker_id) != (group, broker_id):
            assert answer == (True, None)
        else:
            assert answer == (not broker.vouches_for(version), broker.version)
            if not answer[0]:
                broker.due = self.now + broker.timeout

    @rule(group=GROUPS, addr=ADDRS, broker_id=IDS, version=VERSIONS)
    def query_by_address(self, group: BrokerKey, addr: str, broker_id: int, version: DataVersion) -> None:
        answer = self.manager.query_by_address(group, broker_id, addr, version)
        broker = self.model.brokers.get(LiveKey(group.cluster_name, addr))
        if broker is None or not broker.topic_by_topic:
            self.check_answer(answer, group, addr, broker_id, version)
            return
        is_same = (broker.group, broker.broker_id, broker.version) == (group, broker_id, version)
        assert answer == (not is_same or broker.unconfirmed or broker.increment_first, broker.version)
        broker.heard_by_address(self.now)

    @rule(seconds=st.sampled_from([1.0, 29.0, 30.0, 31.0, 119.0, 120.0, 121.0, 300.0, 601.0]))
    def time_passes(self, seconds: float) -> None:
        self.fleet.clock.advance(seconds)

    @rule(plan=LOSS_PLANS)
    def scan(self, plan: Plan) -> None:
        steps = self.manager.scan_not_active_broker()
        first = lambda: lose(self.model, overdue(self.model, self.now), self.now)  # noqa: E731
        rest = lambda: remove_the_rest(self.model, overdue(self.model, self.now))  # noqa: E731
        self.drive(steps, plan, first, rest, cause="expiry")

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
        steps = self.manager.on_channel_destroy(channels)
        self.drive(steps, plan, partial(lose, self.model, keys, self.now), cause="channel end")

    @rule(handed_over=st.booleans(), data=st.data())
    def an_end_of_a_channel_is_doubted(self, handed_over: bool, data: st.DataObject) -> None:
        if not self.model.open_channels:
            return
        channel = data.draw(st.sampled_from(sorted(self.model.open_channels)))
        bound = bound_to(self.model, [channel])
        if handed_over:
            assert self.manager.hand_over_channel(channel) == len(bound)
        assert self.manager.channels.was_handed_over(channel) == handed_over
        self.end_channel(channel)
        self.model.ended_channels.remove(channel)
        assert run_sync(self.manager.doubt_channel_end(channel, 30.0)) == len(bound)
        for key in bound:
            self.model.brokers[key].due = self.now + 30.0

    # Operators

    @rule(
        intents=st.lists(st.tuples(INTENT_KEYS, st.booleans(), st.none() | st.just(60_000)), max_size=2),
        lifted=st.lists(st.integers(0, 3), max_size=2), plan=PLANS,
    )  # fmt: skip
    def decide(self, intents: list[tuple[IntentKey, bool, int | None]], lifted: list[int], plan: Plan) -> None:
        now = self.fleet.clock.wall_millis()
        present = list(self.model.intents)
        table = self.manager.intents.without([present[number] for number in lifted if number < len(present)])
        for key, wipe, millis in intents:
            permission = IntentKind.WIPE_WRITE_PERM if wipe else IntentKind.ADD_WRITE_PERM
            kind = IntentKind.TOPIC_HOLD if isinstance(key, HoldKey) else permission
            table = table.with_intent(Intent(kind, key, "an operator", now, "", millis and now + millis))
        self.publish_intents(table, plan)

    @rule(plan=PLANS)
    def intents_end(self, plan: Plan) -> None:
        table = self.manager.intents
        ended = [intent.key for intent in table.ended(self.fleet.clock.wall_millis())]
        self.publish_intents(table.without(ended), plan)

    def publish_intents(self, table: IntentTable, plan: Plan) -> None:
        def publication() -> None:
            self.model.intents = dict(table.intents)

        after = replace(self.model, intents=dict(table.intents))
        preview = run_sync(self.manager.publish_intents(table, OPERATOR, validate_only=True))
        self.carry_out(preview, self.manager.publish_intents(table, OPERATOR), plan, after, publication)

    @rule(topic=TOPIC_NAMES, cluster=st.none() | CLUSTERS, plan=PLANS)
    def delete_topic(self, topic: str, cluster: str | None, plan: Plan) -> None:
        def publication() -> None:
            self.model.queues = after.queues

        after = without_topic(self.model, topic, cluster)
        preview = run_sync(self.manager.delete_topic(topic, cluster, OPERATOR, validate_only=True))
        self.carry_out(preview, self.manager.delete_topic(topic, cluster, OPERATOR), plan, after, publication)

    def carry_out(
        self,
        preview: OperatorOutcome,
        steps: Sliced[OperatorOutcome],
        plan: Plan,
        after: ReferenceModel,
        publication: Callable[[], None],
    ) -> None:
        self.the_tables_agree()
        assert preview.blast_radius == blast_radius(self.model, after)
        assert preview.queue_data_count == moved_queues(self.model, after)
        outcome = self.drive(steps, plan, publication, cause=OPERATOR.call)
        assert outcome == preview or self.given_up

    @rule(wanted=st.sets(ADDRS, min_size=1), plan=PLANS)
    def confirm_broker_loss(self, wanted: set[str], plan: Plan) -> None:
        keys = {key for key in self.model.unconfirmed() if key.broker_addr in wanted}
        preview = run_sync(
            self.manager.confirm_broker_loss(lambda live: live.key in keys, OPERATOR, validate_only=True)
        )
        self.the_tables_agree()
        assert {gone.live.key for gone in preview[0]} == keys
        assert preview[1] == blast_radius(self.model, without_brokers(self.model, keys))
        steps = self.manager.confirm_broker_loss(lambda live: live.key in keys, OPERATOR)
        outcome = self.drive(steps, plan, partial(remove_the_rest, self.model, keys), cause=OPERATOR.call)
        assert outcome == preview or self.given_up

    @rule(
        namespace=st.sampled_from([ORDER_TOPIC_CONFIG, "other"]), key=TOPIC_NAMES,
        value=st.sampled_from([None, "broker-a:4", "broker-b:2"]),
    )  # fmt: skip
    def put_kv_config(self, namespace: str, key: str, value: str | None) -> None:
        self.causes = {OPERATOR.call}
        table = self.manager.kv_config
        if value is None:
            self.manager.publish_kv_config(table.without(namespace, key), OPERATOR)
            self.model.kv.pop((namespace, key), None)
        else:
            self.manager.publish_kv_config(table.with_value(namespace, key, value), OPERATOR)
            self.model.kv[namespace, key] = value

    @rule(name=st.sampled_from(["order_message_enable", "delete_topic_with_broker_registration"]))
    def switch(self, name: str) -> None:
        self.causes = {OPERATOR.call}
        value = not getattr(self.model.behaviour, name)
        self.model.behaviour = replace(self.model.behaviour, **{name: value})
        self.manager.publish_behaviour(self.model.behaviour, OPERATOR, (ConfigPut(name, str(value)),))


class TablesAgreeWithTheModelUnderTheGuard(TablesAgreeWithTheModel):
    behaviour = Behaviour(
        mass_loss_percent=50, mass_loss_min_brokers=2, mass_loss_window_seconds=30.0, mass_loss_settle_seconds=0.0
    )
    """Everything counts at once; ``test_guard_against_model`` has owners, and brokers that have not settled."""

    @rule(
        # Each place is taken once, so that nothing is changed that is changed back in the same step.
        places=st.lists(
            st.tuples(ADDRS, GROUPS, IDS),
            min_size=3,
            max_size=5,
            unique_by=(lambda place: place[0], lambda place: place[1:]),
        ),
        topics=TOPICS,
    )
    def a_fleet_comes(self, places: list[tuple[str, BrokerKey, int]], topics: dict[str, QueueNumbers]) -> None:
        """Over one channel, so that it can vanish at once."""
        self.most_changes = len(places)
        channel = self.manager.open_channel()
        self.model.open_channels.add(channel)
        for addr, group, broker_id in places:
            version = DataVersion(1, 1, 1)
            self.register_with(Registration(group, broker_id, addr, version, topics, channel_id=channel), [])

    @rule(seconds=st.sampled_from([0.0, 5.0, 29.0, 31.0]), plan=LOSS_PLANS)
    def a_fleet_goes(self, seconds: float, plan: Plan) -> None:
        """Over the first channel that is open, some time after the change before."""
        self.fleet.clock.advance(seconds)
        for channel in sorted(self.model.open_channels)[:1]:
            self.end_channel(channel)
        self.notice_ends_of_channels(plan, 1)


@pytest.fixture(autouse=True, scope="module")
def _slices_are_small() -> Iterator[None]:
    with small_slices():
        yield


TestTablesAgreeWithTheModel = TablesAgreeWithTheModel.TestCase
TestTablesAgreeWithTheModel.settings = settings(max_examples=examples(100), stateful_step_count=40)
TestTablesAgreeWithTheModelUnderTheGuard = TablesAgreeWithTheModelUnderTheGuard.TestCase
TestTablesAgreeWithTheModelUnderTheGuard.settings = settings(max_examples=examples(100), stateful_step_count=40)
