"""Drives a name server's core and the reference model side by side, and compares them after every step.

Readers of the changes come to the same tables as a snapshot, whenever they read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.app.worker import GivenUp
from namesrv.core import pace
from namesrv.core import tables as tables_module
from namesrv.core.changes import Cause
from namesrv.core.errors import Reason, Refused
from namesrv.core.lists import UNIT, UNIT_SUB
from namesrv.core.model import Behaviour, BrokerKey, DataVersion, Doubt, LiveKey
from namesrv.core.snapshot import ALL_TABLES
from namesrv.core.state import StateChange
from namesrv.core.watch.hub import ChangeReader
from namesrv.core.watch.messages import change_messages, follow_messages
from namesrv.remoting.calls import heartbeat_by_address, query_by_address
from tests.properties import Machine
from tests.support.core_fleet import Fleet
from tests.support.refusals import refuses
from tests.support.routes.route_rows import RouteRows, key_of
from tests.support.yield_points import yielding
from tests.unit.namesrv.reference_change_log import BY_OPERATORS, LOST_QUEUES, REMOVALS, apply, outcomes_of, tables_of
from tests.unit.namesrv.reference_inputs import ADDRS, GROUPS, IDS, TOPICS_KNOWN, VERSIONS
from tests.unit.namesrv.reference_model import Broker, ReferenceModel
from tests.unit.namesrv.reference_operators import expected_route, queue_data

ResultT = TypeVar("ResultT")
KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

Event = tuple[str, int]
"""Something that happens, and to which broker or channel."""


class Plan(NamedTuple):
    """What happens while a change is made."""

    at_yield_points: list[Event]
    before_commits: list[Event]
    """When all is prepared."""


UNDISTURBED = Plan([], [])
GIVEN_UP, FREEZE = "given up", "freeze"
SIGNS_OF_LIFE = ("heartbeat", "query", "by address", "channel opens", "channel ends")


def _plans(*kinds: str) -> st.SearchStrategy[Plan]:
    numbers, any_kind = st.integers(0, 3), st.sampled_from([*kinds, GIVEN_UP, FREEZE])
    at_yield_points = st.lists(st.tuples(st.just("nothing") | any_kind, numbers), max_size=8)
    return st.builds(Plan, at_yield_points, st.lists(st.tuples(any_kind, numbers), max_size=2))


PLANS = _plans(*SIGNS_OF_LIFE, "time passes", "more time")
LOSS_PLANS = _plans(*SIGNS_OF_LIFE)
"""Here time stands still, so that it does not matter when exactly the guard looks at the clock."""


@contextmanager
def often_disturbed() -> Iterator[None]:
    """Changes have a yield point after every topic or two, and drop QueueDatas as soon as they are not used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pace.paced, "__defaults__", (1,))
        patch.setattr(tables_module, "UNUSED_PER_BROKER", 0)
        yield


SOME_TABLES: list[Collection[pb.RouteTable]] = [
    ALL_TABLES,
    *({table} for table in ALL_TABLES),
    {pb.ROUTE_TABLE_BROKER_GROUPS, pb.ROUTE_TABLE_LIVE_BROKERS},
    {pb.ROUTE_TABLE_CLUSTERS, pb.ROUTE_TABLE_TOPIC_QUEUES},
]
"""Tables that followers ask for."""

REFUSALS = {
    Reason.BROKER_NOT_REGISTERED,
    Reason.CHANNEL_GONE,
    Reason.NEED_FULL_REGISTRATION,
    Reason.SHUTTING_DOWN,
    Reason.STALE_STATE_VERSION,
}


class ReferenceMachine(Machine):
    """Has rules for what changes no table: queries, and readers."""

    outcomes = (
        REMOVALS
        | LOST_QUEUES
        | BY_OPERATORS
        | REFUSALS
        | {GIVEN_UP, "reported while held", "restarted", "stood in for"}
    )

    def notice(self) -> None:
        """Notes what the tables show now."""
        if self.state.index.held_queue_table:
            self.reaches("reported while held")
        if any(map(self.model.is_acted_for, self.model.facts)):
            self.reaches("stood in for")

    def start_with(self, behaviour: Behaviour) -> None:
        self.fleet = Fleet(behaviour)
        self.state = self.fleet.state
        self.model = ReferenceModel(behaviour)
        self.causes = {""}
        """What may have caused the changes of the current step."""
        self.most_changes = 2
        """How many changes the current step may make: what is lost may be held in part and removed in part."""
        self.given_up = False
        """Whether the current step's change was not made, or not as a whole: given up, or the tables were frozen."""
        self.from_file: set[LiveKey] = set()
        """Brokers that have not registered since the name server's last start."""
        self.begin_to_read()

    def begin_to_read(self) -> None:
        """Has readers of the changes begin with the tables as they are."""
        state = self.state
        self.reader, self.last_read, self.seen = tables_of(state), state.change_log.last, self.model.visible()
        self.rows, self.rows_revision = RouteRows.of_snapshot(self.snapshot()), state.revision
        self.followers = [
            (tables, self.rows.of_tables(tables), ChangeReader(lambda: None, revision=state.revision))
            for tables in SOME_TABLES
        ]

    def snapshot(self, tables: Collection[pb.RouteTable] = ALL_TABLES) -> list[pb.StreamRouteSnapshotResponse]:
        return list(map(pb.StreamRouteSnapshotResponse.FromString, self.state.snapshot().messages(tables)))

    @property
    def now(self) -> float:
        return self.fleet.clock.seconds

    def drive(
        self,
        change: StateChange[ResultT],
        plan: Plan,
        publication: Callable[[], None],
        *,
        cause: str,
        despite_freeze: bool = False,
    ) -> ResultT | None:
        """Makes a change, and tells the model as soon as it is committed.

        Returns:
            The change's result; None if it was given up, or frozen tables refused it by an error.
        """
        result: ResultT | None = None
        with self._beside(plan, cause):
            with yielding(self._at_yield_point):
                change.prepare()
            result = self._commit(change, despite_freeze=despite_freeze)
            if not self.given_up:
                publication()
            self.the_tables_agree()
        return result

    def drive_all(
        self, changes: Iterator[StateChange[list[ResultT]]], plan: Plan, *publications: Callable[[], None], cause: str
    ) -> list[ResultT] | None:
        """The same with changes that follow from each other.

        The model is notified of each publication as soon as it shows, and of the rest at the end.
        """
        left, revision, results = list(publications), self.state.revision, list[ResultT]()
        with self._beside(plan, cause):
            while (change := self._prepared_of(changes)) is not None:
                results += self._commit(change)
                for _ in range(self.state.revision - revision):
                    left.pop(0)()
                revision = self.state.revision
                self.the_tables_agree()
            self.given_up |= self.state.frozen
            if not self.given_up:
                for publication in left:
                    publication()
        return None if self.given_up else results

    def _prepared_of(self, changes: Iterator[StateChange[ResultT]]) -> StateChange[ResultT] | None:
        """The next of some changes, prepared; None if there is none."""
        with yielding(self._at_yield_point):
            change = next(changes, None)
            if change is not None:
                change.prepare()
            return change

    @contextmanager
    def _beside(self, plan: Plan, cause: str) -> Iterator[None]:
        """What a change is made in: it may be given up, and the tables may be frozen in the meantime."""
        self.causes, self.given_up = {cause, "mass-loss guard"}, False
        self.at_yield_points, self.before_commits = list(plan.at_yield_points), list(plan.before_commits)
        try:
            yield
        except GivenUp:
            self.given_up = True
            self.reaches(GIVEN_UP)
        except Refused as error:
            self.reaches(error.reason)
            if error.reason != Reason.SHUTTING_DOWN:
                raise
            assert self.state.frozen
            self.given_up = True
        finally:
            self.state.frozen = False

    def _at_yield_point(self) -> None:
        self.the_tables_agree()
        if self.at_yield_points:
            self.happens(*self.at_yield_points.pop(0))

    def _commit(self, change: StateChange[ResultT], *, despite_freeze: bool = False) -> ResultT:
        while self.before_commits:
            self.happens(*self.before_commits.pop(0))
        self.the_tables_agree()
        if self.state.frozen and not despite_freeze:
            self.given_up = True
        return change.commit()

    def happens(self, kind: str, number: int) -> None:
        """Something that is no change of the tables and may come while one is prepared."""
        match kind:
            case "nothing":
                pass
            case "given up":
                raise GivenUp  # as after its caller has left
            case "freeze":
                self.state.frozen = True
            case "time passes":
                self.fleet.clock.advance(40.0 * number)
            case "more time":
                self.grant_more_time(10.0 * number)
            case "channel opens":
                self.open_channel()
            case "channel ends":
                channels = sorted(self.model.open_channels)
                if channels:
                    self.end_channel(channels[number % len(channels)])
            case _:
                for key, broker in self.brokers_at(number):
                    self.is_heard(kind, key, broker)

    def is_heard(self, kind: str, key: LiveKey, broker: Broker) -> None:
        asked = broker.group, key.broker_addr, broker.broker_id, broker.version
        match kind:
            case "heartbeat":
                self.heartbeat(key, broker)
            case "query":
                self.query(*asked)
            case "by address":
                assert heartbeat_by_address(self.fleet.state, key) == broker.topic_by_topic
                if broker.topic_by_topic:
                    self.query_by_address(*asked)
            case _:
                raise AssertionError(kind)

    def restart(self) -> None:
        """Has another name server begin with a snapshot of this one, and with what operators have decided."""
        before, self.fleet = self.state, Fleet(self.model.behaviour)
        self.state = self.fleet.state
        self.state.intents, self.state.kv_config = before.intents, before.kv_config
        self.state.load_snapshot(before.snapshot().messages())
        self.model.restart(self.now)
        self.from_file = set(self.model.brokers)
        self.begin_to_read()

    def open_channel(self) -> None:
        if self.state.frozen:
            with refuses(Reason.SHUTTING_DOWN):
                self.fleet.state.open_channel()
        else:
            self.model.open_channels.add(self.fleet.state.open_channel())

    def brokers_at(self, number: int) -> list[tuple[LiveKey, Broker]]:
        """One broker, the same for the same number; none if there is none."""
        brokers = sorted(self.model.brokers.items(), key=lambda item: item[0])
        return brokers[number % len(brokers) :][:1] if brokers else []

    def heartbeat(self, key: LiveKey, broker: Broker) -> None:
        with refuses(Reason.BROKER_NOT_REGISTERED) if broker.unconfirmed else nullcontext():
            self.fleet.state.broker_heartbeat(broker.group, broker.broker_id, key.broker_addr)
        if broker.unconfirmed:
            self.reaches("refused while unconfirmed")
        else:
            broker.renew(self.now)

    @rule(group=GROUPS, addr=ADDRS, broker_id=IDS, version=VERSIONS)
    def query(self, group: BrokerKey, addr: str, broker_id: int, version: DataVersion) -> None:
        answer = self.fleet.state.query_data_version(group, broker_id, addr, version)
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
                broker.renew(self.now)

    @rule(group=GROUPS, addr=ADDRS, broker_id=IDS, version=VERSIONS)
    def query_by_address(self, group: BrokerKey, addr: str, broker_id: int, version: DataVersion) -> None:
        answer = query_by_address(self.fleet.state, group, broker_id, addr, version)
        broker = self.model.brokers.get(LiveKey(group.cluster_name, addr))
        if broker is None or not broker.topic_by_topic:
            self.check_answer(answer, group, addr, broker_id, version)
            return
        is_same = (broker.group, broker.broker_id, broker.version) == (group, broker_id, version)
        assert answer == (not is_same or broker.unconfirmed or broker.increment_first, broker.version)
        broker.heard_by_address(self.now)

    def end_channel(self, channel: str) -> None:
        self.fleet.state.liveness.end_channel(channel)
        self.model.open_channels.remove(channel)
        self.model.ended_channels.add(channel)

    def grant_more_time(self, seconds: float) -> None:
        self.fleet.state.grant_more_time(seconds)
        for broker in self.model.brokers.values():
            broker.due += seconds

    @invariant()
    def the_tables_agree(self) -> None:
        tables, index, model = self.state.tables, self.state.index, self.model
        groups = model.group_addrs()
        assert {key: dict(group.addrs) for key, group in tables.broker_addr_table.items()} == groups
        assert {
            key: ((group.zone_name, group.enable_acting_master), group.write)
            for key, group in tables.broker_addr_table.items()
        } == {key: (facts, model.rule_of(key)) for key, facts in model.facts.items()}
        assert index.cluster_addr_table == {cluster: set(names) for cluster, names in _grouped(groups).items()}
        names = _grouped((name, cluster) for cluster, name in model.facts)
        if model.behaviour.mass_loss_percent < 100:  # the guard restores lost groups in any order
            names = {name: sorted(found) for name, found in names.items()}
            assert {name: sorted(found) for name, found in index.clusters_by_name.items()} == names
        else:
            assert {name: list(found) for name, found in index.clusters_by_name.items()} == names
        assert tables.filter_server_table == model.filters
        self._live_brokers_agree()
        rows = {
            (topic, data.broker): data.reported for topic in TOPICS_KNOWN for data in self.state.queue_datas_of(topic)
        }
        shown = model.shown()
        assert rows == shown
        assert len(tables.topic_queue_table) == len({topic for topic, _ in shown})
        held = {
            (topic, group): data.reported
            for topic, holders in index.held_queue_table.items()
            for group, data in holders.items()
        }
        assert held == {place: numbers for place, numbers in model.queues.items() if place not in shown}
        topics_by_broker = {key: set(topics) for key, topics in index.topics_by_broker.items() if topics}
        of_groups = _grouped((group, topic) for topic, group in shown)
        assert topics_by_broker == {group: set(topics) for group, topics in of_groups.items()}
        assert index.topics_by_broker.keys() <= groups.keys()

    def _live_brokers_agree(self) -> None:
        deadlines, doubts = self.state.liveness._brokers, self.state.channel_doubts()
        assert {
            key: Broker(
                live.broker, live.broker_id, live.data_version, live.channel_id, live.timeout_seconds, deadlines[key],
                live.labels, live.ha_server_addr, live.unconfirmed, live.topic_by_topic,
                key in self.state.possibly_partial, key in doubts,
            )
            for key, live in self.state.tables.broker_live_table.items()
        } == self.model.brokers  # fmt: skip
        assert deadlines.keys() == self.state.liveness.last_update_millis.keys() == self.model.brokers.keys()
        for key, doubt in doubts.items():
            assert doubt.ends_at_millis - self.fleet.clock.wall_millis() == round(1000 * (deadlines[key] - self.now))
        assert self.state.possibly_partial | self.state.doubts.keys() <= self.model.brokers.keys()
        unconfirmed = self.model.unconfirmed()
        self.from_file &= unconfirmed
        assert self.state.unconfirmed == {
            key: Doubt.SNAPSHOT_FILE if key in self.from_file else Doubt.GUARD for key in unconfirmed
        }
        for channel in self.model.open_channels:
            bound = {key for key, broker in self.model.brokers.items() if broker.channel == channel}
            assert self.state.liveness.bound(channel) == bound

    @invariant()
    def the_change_log_has_a_change_for_all_that_can_be_seen(self) -> None:
        """A reader that applies every change has the current tables; nothing invisible takes a revision."""
        before = self.last_read
        while self.last_read.next is not None:
            self.last_read = self.last_read.next
            assert self.last_read.rows
            assert self.last_read.cause.call in self.causes
            for outcome in outcomes_of(self.last_read, self.reader):
                self.reaches(outcome)
            apply(self.reader, self.last_read)
        assert self.reader == tables_of(self.state)
        visible = self.model.visible()
        assert (self.last_read is not before) == (visible != self.seen)
        assert self.state.revision == self.last_read.revision <= before.revision + self.most_changes
        self.seen, self.most_changes = visible, 2
        self.notice()

    @invariant()
    def joined_routes_are_what_generated_code_encodes(self) -> None:
        topics = {topic for topic, _ in self.model.shown()}
        for topic in topics:
            for zone_name in (None, "z1"):
                expected = self._with_filter_servers(expected_route(self.model, topic, zone_name))
                joined = self.state.route(topic, zone_name)
                assert joined is not None
                assert route_data_pb2.TopicRouteData.FromString(joined) == expected
                assert joined == expected.SerializeToString(deterministic=True)
        for topic in {topic for topic, _ in self.model.queues} - topics:
            assert self.state.route(topic) is None

    def _with_filter_servers(self, route: route_data_pb2.TopicRouteData) -> route_data_pb2.TopicRouteData:
        for data in route.broker_datas:
            group = self.state.tables.broker_addr_table[BrokerKey(data.cluster_name, data.broker_name)]
            for _, addr in sorted(group.addrs.items()):
                if filter_servers := self.model.filters.get(LiveKey(data.cluster_name, addr)):
                    route.filter_servers.add(
                        cluster_name=data.cluster_name, broker_addr=addr, filter_servers=filter_servers
                    )
        return route

    @invariant()
    def lists_agree(self) -> None:
        lists = self.state.topic_lists
        assert {
            "all": lists.all()("", 10),
            "c1": lists.of_cluster("c1")("", 10),
            "unit": lists.with_flags(UNIT, 0)("", 10),
            "sub": lists.with_flags(UNIT_SUB, 0)("", 10),
            "sub not unit": lists.with_flags(UNIT_SUB, UNIT)("", 10),
            "system": lists.system()("", 10),
        } == self.model.lists()
        assert (lists.broker_addr() is None) == (not self.model.brokers)

    @invariant()
    def nothing_is_interned_for_groups_that_never_came(self) -> None:
        """At least after the next transaction: one that was given up may have left some."""
        self.state.begin(Cause("dropped"))
        assert self.state.index.queue_datas._by_reported.keys() <= self.model.facts.keys()

    @invariant()
    def a_snapshot_holds_every_row(self) -> None:
        messages = self.snapshot()
        assert messages[0].HasField("snapshot_header")
        assert {message.header.revision for message in messages} == {self.state.revision}
        rows, end = RouteRows.of_snapshot(messages), messages[-1].snapshot_end
        assert rows.queues == {
            (topic, *group): queue_data(self.model, topic, group) for topic, group in self.model.shown()
        }
        live = {key: row.unconfirmed for key, row in rows.live.items()}
        assert live == {key: broker.unconfirmed for key, broker in self.model.brokers.items()}
        assert (end.queue_data_count, end.live_broker_count) == (len(rows.queues), len(live))
        self.changes_lead_to(rows)

    def changes_lead_to(self, rows: RouteRows) -> None:
        """The rows of the snapshot before, with the changes since, one for each key and revision."""
        state, keys = self.state, list[object]()
        encoded = change_messages(state.change_log.after(self.rows_revision), state.revision, state.identity)
        *messages, end = (pb.StreamRouteChangesResponse.FromString(message) for message in encoded if message)
        assert (end.header, end.HasField("changes")) == (state.header(), False)
        for message in messages:
            for change in message.changes.changes:
                keys.append((message.header.revision, key_of(change)))
                self.rows.apply(change)
        assert len(keys) == len(set(keys))
        assert self.rows == rows
        self.rows_revision = state.revision

    @rule()
    def followers_read(self) -> None:
        """At each bookmark they hold what a snapshot has."""
        state, now = self.state, RouteRows.of_snapshot(self.snapshot())
        for tables, held, follower in self.followers:
            encoded = follow_messages(state.change_log, follower, state.identity, tables)
            messages = [pb.StreamRouteSnapshotResponse.FromString(message) for message in encoded if message]
            assert {message.WhichOneof("content") for message in messages} == {"changes"}
            for message in messages:
                held.take(message)
            assert held == now.of_tables(tables)
            revisions = [message.header.revision for message in messages]
            assert revisions == sorted(revisions)
            assert revisions[-1] == state.revision

    @rule(tables=st.sets(st.sampled_from(sorted(ALL_TABLES)), min_size=1))
    def somebody_takes_a_snapshot_of_some_tables(self, tables: set[pb.RouteTable]) -> None:
        messages = self.snapshot(tables)
        rows, counted = RouteRows.of_snapshot(messages), messages[-1].snapshot_end
        assert rows == RouteRows.of_snapshot(self.snapshot()).of_tables(tables)
        assert counted.queue_data_count == len(rows.queues)
        assert counted.topic_count == len({topic for topic, *_ in rows.queues})
        assert (counted.cluster_count, counted.broker_data_count) == (len(rows.clusters), len(rows.groups))
        assert counted.live_broker_count == len(rows.live)


def _grouped(pairs: Iterable[tuple[KeyT, ValueT]]) -> dict[KeyT, list[ValueT]]:
    found: dict[KeyT, list[ValueT]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
