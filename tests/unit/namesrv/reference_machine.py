"""Drives a name server's core and the reference model side by side, and compares them after every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant
from namesrv_api.v1 import route_data_pb2, route_service_pb2

from namesrv.core import edit, liveness, registrations
from namesrv.core import edit as edit_module
from namesrv.core import tables as queue_data_table
from namesrv.core import tables as tables_module
from namesrv.core.errors import BrokerNotRegistered
from namesrv.core.model import BrokerKey, LiveKey
from namesrv.core.policy import Behaviour
from namesrv.core.slices import Sliced, run_sync
from namesrv.core.state import Unconfirmed
from namesrv.core.topic_lists import UNIT, UNIT_SUB
from tests.support.core_fleet import Fleet
from tests.unit.namesrv.reference_change_log import ReaderTables, tables_of
from tests.unit.namesrv.reference_model import Broker, ReferenceModel
from tests.unit.namesrv.reference_operators import expected_route, queue_data

ResultT = TypeVar("ResultT")

Plan = list[tuple[str, int]]
"""What happens each time that a writer gives way, and to which broker or channel."""

GIVEN_UP = "given up"
SIGNS_OF_LIFE = ("heartbeat", "query", "by address", "channel opens", "channel ends", GIVEN_UP)
PLANS = st.lists(
    st.tuples(st.sampled_from([*SIGNS_OF_LIFE, "time passes", "more time"]), st.integers(0, 3)), max_size=5
)
LOSS_PLANS = st.lists(st.tuples(st.sampled_from(SIGNS_OF_LIFE), st.integers(0, 3)), max_size=5)
"""Here time stands still, so that it does not matter when exactly the guard looks at the clock."""


@contextmanager
def small_slices() -> Iterator[None]:
    """Writers give way after every few topics, and QueueDatas are dropped as soon as they are not used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edit, "SLICE", 2)
        patch.setattr(registrations, "GROUP_SLICE", 1)
        patch.setattr(edit_module, "TOPIC_SLICE", 1)
        patch.setattr(tables_module, "MERGE_SLICE", 1)
        patch.setattr(liveness, "SLICE", 2)
        patch.setattr(queue_data_table, "UNUSED_PER_BROKER", 0)
        yield


class ReferenceMachine(RuleBasedStateMachine):
    """Has no rules of its own."""

    def start_with(self, behaviour: Behaviour) -> None:
        self.fleet = Fleet(behaviour)
        self.manager = self.fleet.manager
        self.model = ReferenceModel(behaviour)
        self.causes = {""}
        """What may have caused the changes of the current step."""
        self.most_changes = 2
        """How many changes the current step may make: what is lost may be held in part and removed in part."""
        self.given_up = False
        self.reader = ReaderTables()
        self.last_read = self.manager.change_log.last
        self.seen = self.model.visible()

    @property
    def now(self) -> float:
        return self.fleet.clock.seconds

    def drive(
        self, steps: Sliced[ResultT], plan: Plan, *publications: Callable[[], None], cause: str
    ) -> ResultT | None:
        """Drives a writer, and tells the model of each publication as soon as it shows, and of the rest at the end.

        Returns:
            The writer's result; None if it was given up half-way.
        """
        self.causes, self.given_up = {cause, "mass-loss guard"}, False
        left, events, revision = list(publications), list(plan), self.manager.revision
        while True:
            try:
                next(steps)
            except StopIteration as end:
                for publication in left:
                    publication()
                result: ResultT = end.value
                return result
            for _ in range(self.manager.revision - revision):
                left.pop(0)()
            revision = self.manager.revision
            self.the_tables_agree()
            if events:
                kind, number = events.pop(0)
                if kind == GIVEN_UP:
                    steps.close()
                    self.given_up = True
                    return None
                self.happens(kind, number)

    def happens(self, kind: str, number: int) -> None:
        """Something that is no change of the tables and may come while one is prepared."""
        match kind:
            case "heartbeat":
                self.heartbeat(number)
            case "query":
                self.query_of_one(number)
            case "by address":
                self.heartbeat_by_address(number)
            case "channel opens":
                self.model.open_channels.add(self.manager.open_channel())
            case "channel ends":
                channels = sorted(self.model.open_channels)
                if channels:
                    self.end_channel(channels[number % len(channels)])
            case "time passes":
                self.fleet.clock.advance(40.0 * number)
            case "more time":
                self.grant_more_time(10.0 * number)
            case _:
                raise AssertionError(kind)

    def heartbeat(self, number: int) -> None:
        for key, broker in sorted(self.model.brokers.items(), key=lambda item: item[0])[number : number + 1]:
            if broker.unconfirmed:
                with pytest.raises(BrokerNotRegistered):
                    self.manager.broker_heartbeat(broker.group, broker.broker_id, key.broker_addr)
            else:
                self.manager.broker_heartbeat(broker.group, broker.broker_id, key.broker_addr)
                broker.due = self.now + broker.timeout

    def query_of_one(self, number: int) -> None:
        for key, broker in sorted(self.model.brokers.items(), key=lambda item: item[0])[number : number + 1]:
            answer = self.manager.query_data_version(broker.group, broker.broker_id, key.broker_addr, broker.version)
            assert answer == (not broker.vouches_for(broker.version), broker.version)
            if not answer[0]:
                broker.due = self.now + broker.timeout

    def heartbeat_by_address(self, number: int) -> None:
        for key, broker in sorted(self.model.brokers.items(), key=lambda item: item[0])[number : number + 1]:
            assert self.manager.heartbeat_by_address(key) == broker.topic_by_topic
            if broker.topic_by_topic:
                broker.heard_by_address(self.now)

    def end_channel(self, channel: str) -> None:
        self.manager.end_channel(channel)
        self.model.open_channels.remove(channel)
        self.model.ended_channels.add(channel)

    def grant_more_time(self, seconds: float) -> None:
        self.manager.grant_more_time(seconds)
        for broker in self.model.brokers.values():
            broker.due += seconds

    @invariant()
    def the_tables_agree(self) -> None:
        tables, model = self.manager.tables, self.model
        groups = model.group_addrs()
        assert {key: dict(group.addrs) for key, group in tables.broker_addr_table.items()} == groups
        assert {
            key: ((group.zone_name, group.enable_acting_master), group.write)
            for key, group in tables.broker_addr_table.items()
        } == {key: (facts, model.rule_of(key)) for key, facts in model.facts.items()}
        clusters: dict[str, set[str]] = {}
        for key in groups:
            clusters.setdefault(key.cluster_name, set()).add(key.broker_name)
        assert tables.cluster_addr_table == clusters
        names: dict[str, list[str]] = {}
        for key in model.facts:
            names.setdefault(key.broker_name, []).append(key.cluster_name)
        assert {name: list(found) for name, found in tables.clusters_by_name.items()} == names
        assert tables.filter_server_table == model.filters
        self._live_brokers_agree()
        rows = {
            (topic, data.broker): data.reported
            for topic, queues in tables.topic_queue_table.copy().items()
            for data in map(tables.queue_datas.by_fragment.__getitem__, queues)
        }
        shown = model.shown()
        assert rows == shown
        assert len(tables.topic_queue_table) == len({topic for topic, _ in shown})
        held = {
            (topic, group): data.reported
            for topic, holders in tables.held_queue_table.items()
            for group, data in holders.items()
        }
        assert held == {place: numbers for place, numbers in model.queues.items() if place not in shown}
        topics_by_broker = {key: set(topics) for key, topics in tables.topics_by_broker.items() if topics}
        assert topics_by_broker == _topics_by_group(shown)
        assert tables.topics_by_broker.keys() <= groups.keys()

    def _live_brokers_agree(self) -> None:
        deadlines = self.manager._liveness._brokers
        assert {
            key: Broker(
                live.broker, live.broker_id, live.data_version, live.channel_id, live.timeout_seconds, deadlines[key],
                live.unconfirmed, live.topic_by_topic, key in self.manager._possibly_partial,
            )
            for key, live in self.manager.tables.broker_live_table.items()
        } == self.model.brokers  # fmt: skip
        assert deadlines.keys() == self.model.brokers.keys()
        assert self.manager.unconfirmed == dict.fromkeys(self.model.unconfirmed(), Unconfirmed.GUARD)
        for channel in self.model.open_channels:
            bound = {key for key, broker in self.model.brokers.items() if broker.channel == channel}
            assert self.manager.channels.bound(channel) == bound

    @invariant()
    def the_change_log_has_a_change_for_all_that_can_be_seen(self) -> None:
        """A reader that applies every change has the current tables; nothing invisible takes a revision."""
        before = self.last_read
        while self.last_read.next is not None:
            self.last_read = self.last_read.next
            assert self.last_read.rows
            assert self.last_read.cause.call in self.causes
            self.reader.apply(self.last_read)
        assert self.reader == tables_of(self.manager)
        visible = self.model.visible()
        assert (self.last_read is not before) == (visible != self.seen)
        assert self.manager.revision == self.last_read.revision <= before.revision + self.most_changes
        self.seen, self.most_changes = visible, 2

    @invariant()
    def joined_routes_are_what_generated_code_encodes(self) -> None:
        topics = {topic for topic, _ in self.model.shown()}
        for topic in topics:
            for zone_name in (None, "z1"):
                expected = self._with_filter_servers(expected_route(self.model, topic, zone_name))
                joined = self.manager.pickup_topic_route_data(topic, zone_name)
                assert joined is not None
                assert route_data_pb2.TopicRouteData.FromString(joined) == expected
                assert joined == expected.SerializeToString(deterministic=True)
        for topic in {topic for topic, _ in self.model.queues} - topics:
            assert self.manager.pickup_topic_route_data(topic) is None

    def _with_filter_servers(self, route: route_data_pb2.TopicRouteData) -> route_data_pb2.TopicRouteData:
        for data in route.broker_datas:
            group = self.manager.tables.broker_addr_table[BrokerKey(data.cluster_name, data.broker_name)]
            for _, addr in sorted(group.addrs.items()):
                if filter_servers := self.model.filters.get(LiveKey(data.cluster_name, addr)):
                    route.filter_servers.add(
                        cluster_name=data.cluster_name, broker_addr=addr, filter_servers=filter_servers
                    )
        return route

    @invariant()
    def lists_agree(self) -> None:
        lists = self.manager.topic_lists
        assert {
            "all": run_sync(lists.all_after("", 10)),
            "c1": run_sync(lists.of_cluster_after("c1", "", 10)),
            "unit": run_sync(lists.with_flags_after(UNIT, 0, "", 10)),
            "sub": run_sync(lists.with_flags_after(UNIT_SUB, 0, "", 10)),
            "sub not unit": run_sync(lists.with_flags_after(UNIT_SUB, UNIT, "", 10)),
            "system": run_sync(lists.system_after("", 10)),
        } == self.model.lists()
        assert (lists.broker_addr() is None) == (not self.model.brokers)

    @invariant()
    def a_snapshot_holds_every_row(self) -> None:
        messages = [
            route_service_pb2.StreamRouteSnapshotResponse.FromString(message)
            for message in self.manager.snapshot().messages()
        ]
        assert messages[0].HasField("snapshot_header")
        assert {message.header.revision for message in messages} == {self.manager.revision}
        rows = {
            (row.topic, BrokerKey(queue.cluster_name, queue.broker_name)): queue
            for message in messages
            for row in message.chunk.topics
            for queue in row.queue_datas
        }
        assert rows == {place: queue_data(self.model, *place) for place in self.model.shown()}
        live = {
            LiveKey(row.cluster_name, row.broker_addr): row.unconfirmed
            for message in messages
            for row in message.chunk.live_brokers
        }
        assert live == {key: broker.unconfirmed for key, broker in self.model.brokers.items()}
        end = messages[-1].snapshot_end
        assert (end.queue_data_count, end.live_broker_count) == (len(rows), len(live))


def _topics_by_group(places: Iterable[tuple[str, BrokerKey]]) -> dict[BrokerKey, set[str]]:
    found: dict[BrokerKey, set[str]] = {}
    for topic, group in places:
        found.setdefault(group, set()).add(topic)
    return found
