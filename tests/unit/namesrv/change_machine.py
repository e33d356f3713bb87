"""A state machine of everything that may happen to a name server: a snapshot with the changes after it is the
snapshot at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.core import tables
from namesrv.core.change_stream import change_messages
from namesrv.core.changes import Cause, SettingChange
from namesrv.core.errors import Reason
from namesrv.core.model import (
    EMPTY,
    BrokerKey,
    DataVersion,
    HoldKey,
    Intent,
    IntentKey,
    IntentKind,
    IntentTable,
    QueueNumbers,
    Registration,
    ReportedTopic,
)
from namesrv.core.operator_changes import IntentsChange, TopicDeletion, publish_behaviour, publish_kv_config
from namesrv.core.policy import Behaviour
from namesrv.core.registrations import BrokerRegistration
from namesrv.core.removals import confirm_broker_loss, on_channel_destroy, preview_broker_loss
from namesrv_common.errors import Refused
from tests.properties import Machine
from tests.support.core_fleet import Fleet
from tests.support.routes.route_rows import RouteRows, key_of
from tests.support.state_changes import apply_all_now, apply_now
from tests.unit.namesrv.reference_change_log import (
    BY_OPERATORS,
    GUARDED,
    LOST_QUEUES,
    REMOVALS,
    ReaderTables,
    outcomes_of,
)
from tests.unit.namesrv.reference_inputs import (
    CLUSTERS,
    GROUPS,
    NAMES,
    NUMBERS,
    PARTIAL_REGISTRATIONS,
    REGISTRATIONS,
    VERSIONS,
)

_ADDRS = st.sampled_from([f"10.0.0.{number}:10911" for number in range(1, 5)])
_TOPIC_NAMES = st.sampled_from(["T1", "T2", "T3", "T4"])
_TOPICS = st.lists(st.tuples(_TOPIC_NAMES, NUMBERS), max_size=4, unique_by=lambda config: config[0])
_PERMISSION_KINDS = st.sampled_from([IntentKind.WIPE_WRITE_PERM, IntentKind.ADD_WRITE_PERM])
_HOLDS = st.builds(HoldKey, _TOPIC_NAMES, st.none() | CLUSTERS)
_INTENTS = st.one_of(
    st.builds(Intent, _PERMISSION_KINDS, GROUPS, st.just("operator"), st.integers(0, 1)),
    st.builds(Intent, st.just(IntentKind.TOPIC_HOLD), _HOLDS, st.just("operator"), st.integers(0, 1)),
)
BEHAVIOURS = st.builds(
    Behaviour,
    support_acting_master=st.booleans(),
    delete_topic_with_broker_registration=st.booleans(),
    mass_loss_percent=st.sampled_from([0, 40, 100]),
    mass_loss_min_brokers=st.integers(1, 3),
    mass_loss_hold_seconds=st.just(200.0),
)
_CAUSE = Cause("test")


class ChangesMakeSnapshots(Machine):
    outcomes = (
        REMOVALS
        | LOST_QUEUES
        | GUARDED
        | BY_OPERATORS
        | {
            "LOSS_CONFIRMED gone",
            Reason.BROKER_NOT_REGISTERED,
            Reason.NEED_FULL_REGISTRATION,
            Reason.STALE_STATE_VERSION,
        }
    )

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet()
        self.channels: list[str] = []
        self.seen: dict[int, RouteRows] = {}
        self.patched = mock.patch.object(tables, "UNUSED_PER_BROKER", 0)
        self.patched.start()

    @initialize(behaviour=BEHAVIOURS, topics=_TOPICS)
    def start(self, behaviour: Behaviour, topics: list[ReportedTopic]) -> None:
        self.fleet = Fleet(behaviour)
        self.a_fleet_comes_and_goes_one_by_one(topics, DataVersion(0, 0, 1), 0, 0, confirmed=False)

    @contextmanager
    def refusals_noted(self) -> Iterator[None]:
        try:
            yield
        except Refused as error:
            self.reaches(error.reason)

    @rule(registration=REGISTRATIONS | PARTIAL_REGISTRATIONS, data=st.data())
    def register(self, registration: Registration, data: st.DataObject) -> None:
        channel = data.draw(st.sampled_from([None, *self.channels]))
        with self.refusals_noted():
            apply_now(BrokerRegistration(self.fleet.state, replace(registration, channel_id=channel)))

    @rule(cluster=CLUSTERS, name=NAMES, addr=_ADDRS, topics=_TOPICS, version=VERSIONS)
    def register_master(
        self, cluster: str, name: str, addr: str, topics: list[ReportedTopic], version: DataVersion
    ) -> None:
        with self.refusals_noted():
            self.fleet.register(addr, 0, topics, name=name, cluster=cluster, version=version)

    @rule(topic=_TOPIC_NAMES, queues=st.dictionaries(GROUPS, NUMBERS, min_size=1, max_size=3))
    def register_topic(self, topic: str, queues: dict[BrokerKey, QueueNumbers]) -> None:
        with self.refusals_noted():
            self.fleet.register_topic(topic, queues)

    @rule(cluster=CLUSTERS, name=NAMES, addr=_ADDRS)
    def unregister(self, cluster: str, name: str, addr: str) -> None:
        self.fleet.unregister(addr, name=name, cluster=cluster)

    @rule(data=st.data())
    def unregister_one(self, data: st.DataObject) -> None:
        if live := self.fleet.state.tables.broker_live_table:
            broker = live[data.draw(st.sampled_from(sorted(live)))]
            self.unregister(*broker.broker, broker.broker_addr)

    @rule()
    def open_channel(self) -> None:
        self.channels.append(self.fleet.heartbeats.open_channel())

    @rule(
        topics=_TOPICS, version=VERSIONS, moved=st.integers(0, 1), going=st.integers(0, 4), confirmed=st.booleans()
    )  # fmt: skip
    def a_fleet_comes_and_goes_one_by_one(
        self, topics: list[ReportedTopic], version: DataVersion, moved: int, going: int, confirmed: bool
    ) -> None:
        """A master of each group, mostly at an address of another one before, over channels that then end."""
        came = []
        for number, (cluster, name) in enumerate(product(("c1", "c2"), ("broker-a", "broker-b"))):
            came.append(self.fleet.heartbeats.open_channel())
            with self.refusals_noted():
                self.fleet.register(
                    f"10.0.0.{(number + moved) % 4 + 1}:10911", 0, topics, name=name, cluster=cluster, version=version,
                    channel_id=came[-1],
                )  # fmt: skip
        for channel in came[:going]:
            self.fleet.end_channel(channel)
        self.channels += came[going:]
        if confirmed:
            self.confirm_losses(validate_only=False)

    @rule(data=st.data())
    def end_channels(self, data: st.DataObject) -> None:
        ended = data.draw(st.sets(st.sampled_from(self.channels))) if self.channels else set()
        for channel in ended:
            self.channels.remove(channel)
            self.fleet.heartbeats.end_channel(channel)
        apply_all_now(on_channel_destroy(self.fleet.state, sorted(ended)))

    @rule(seconds=st.sampled_from([1.0, 60.0, 121.0, 201.0]))
    def time_passes(self, seconds: float) -> None:
        self.fleet.clock.advance(seconds)
        self.fleet.scan()

    @rule(intents=st.lists(_INTENTS, max_size=3), lifted=st.lists(GROUPS | _HOLDS, max_size=3))
    def decide(self, intents: list[Intent], lifted: list[IntentKey]) -> None:
        table = self.fleet.state.intents.without(lifted)
        for intent in intents:
            table = table.with_intent(intent)
        apply_now(IntentsChange(self.fleet.state, table, _CAUSE))

    @rule()
    def lift_everything(self) -> None:
        apply_now(IntentsChange(self.fleet.state, IntentTable(), _CAUSE))

    @rule(topic=_TOPIC_NAMES, cluster=st.none() | CLUSTERS, validate_only=st.booleans())
    def delete_topic(self, topic: str, cluster: str | None, validate_only: bool) -> None:
        apply_now(TopicDeletion(self.fleet.state, topic, cluster, _CAUSE, validate_only=validate_only))

    @rule(validate_only=st.booleans())
    def confirm_losses(self, validate_only: bool) -> None:
        if validate_only:
            apply_now(preview_broker_loss(self.fleet.state, lambda _: True))
        else:
            apply_all_now(confirm_broker_loss(self.fleet.state, lambda _: True, _CAUSE))

    @rule(value=st.sampled_from(["1", "2"]))
    def configure(self, value: str) -> None:
        state = self.fleet.state
        publish_kv_config(state, EMPTY.with_value("namespace", "key", value), _CAUSE)
        publish_behaviour(state, state.behaviour, _CAUSE, (SettingChange("massLossMinBrokers", None, value),))

    @invariant()
    def nothing_changes_without_a_revision(self) -> None:
        state = self.fleet.state
        messages = [pb.StreamRouteSnapshotResponse.FromString(message) for message in state.snapshot().messages()]
        rows = RouteRows.of_snapshot(messages)
        assert self.seen.setdefault(state.revision, rows) == rows
        assert len(state.tables.topic_queue_table) == len(list(state.tables.topic_queue_table))

    def teardown(self) -> None:
        self.patched.stop()
        self.note_changes()
        self.changes_lead_from_each_snapshot_to_the_next()

    def note_changes(self) -> None:
        before, change = ReaderTables(), self.fleet.state.change_log.after(0)
        while change is not None:
            for outcome in outcomes_of(change, before):
                self.reaches(outcome)
            before.apply(change)
            change = change.next

    def changes_lead_from_each_snapshot_to_the_next(self) -> None:
        state = self.fleet.state
        last = state.revision
        messages = [
            pb.StreamRouteChangesResponse.FromString(message)
            for message in change_messages(state.change_log.after(0), last, state.identity)
        ]
        assert (messages[-1].header, messages.pop().HasField("changes")) == (state.header(), False)
        by_revision = {revision: [] for revision in range(1, last + 1)}  # type: dict[int, list[pb.RouteChange]]
        for message in messages:
            by_revision[message.header.revision] += message.changes.changes
        for changes in by_revision.values():
            assert [key for key, times in Counter(map(key_of, changes)).items() if times > 1] == []
        rows = RouteRows()
        for revision in range(last + 1):
            for change in by_revision.get(revision, ()):
                rows.apply(change)
            if revision in self.seen:
                assert rows == self.seen[revision]
