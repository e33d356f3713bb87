"""A read-only copy has, at each revision, what its leader has: whatever happens, and however often it is cut off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.core.change_stream import follow_messages, replica_message, route_changes
from namesrv.core.changes import Cause, ConfigPut
from namesrv.core.digests import FRONT
from namesrv.core.errors import RevisionCompacted
from namesrv.core.model import ORDER_TOPIC_CONFIG, DataVersion
from namesrv.core.policy import Behaviour
from namesrv.core.registrations import RouteInfoManager
from namesrv.core.replica import LeaderChange, OutOfStep, ReplicaIntake, ReplicaManager
from namesrv.core.replica_feed import READER_SETTINGS, ReplicaFeed
from namesrv.core.slices import run_sync
from namesrv.core.snapshot import WHOLE
from namesrv.core.snapshot_load import UnusableSnapshot
from namesrv.core.state import Unconfirmed
from namesrv.core.watch import Follower
from namesrv.runtime_settings import CONFIG_KEYS
from tests.properties import examples
from tests.support.core_fleet import A, Fleet
from tests.support.routes.route_rows import RouteRows
from tests.support.virtual_clock import VirtualClock
from tests.unit.namesrv.change_machine import BEHAVIOURS, ChangesMakeSnapshots

_CAUSE = Cause("test", "somebody", "because")
_TOPICS = ["T1", "T2", "T3", "T4"]


class Link:
    """A copy, and the stream that it is made of."""

    def __init__(self, leader: RouteInfoManager, monotonic: Callable[[], float] = lambda: 0.0) -> None:
        self.leader = leader
        self.monotonic = monotonic
        self.copies = 0
        self.start()

    def start(self) -> None:
        """The copy is made anew."""
        self.copies += 1
        self.intake = ReplicaIntake(lambda identity: ReplicaManager(identity, VirtualClock()), "copy")
        self.feed = ReplicaFeed(self.leader, lambda: True, self.monotonic)
        snapshot = self.leader.snapshot()
        self.reader = Follower(lambda: None, snapshot.revision)
        for message in self.opening(snapshot.messages()):
            self.take(message)

    def opening(self, messages: Iterator[bytes]) -> Iterator[bytes]:
        yield next(messages)
        for rows in self.feed.opening():
            yield replica_message(self.leader.identity, self.leader.revision, rows)
        yield from messages

    def resume(self) -> None:
        """The stream ends and begins again, where the copy is."""
        self.feed = ReplicaFeed(self.leader, lambda: True, self.monotonic)
        self.intake.stream_ended()
        assert self.manager is not None
        self.reader = Follower(lambda: None, self.manager.revision)

    def read(self, most: int | None = None) -> None:
        """Reads what there is, or some messages of it."""
        messages = follow_messages(self.leader.change_log, self.reader, self.leader.identity, WHOLE, self.feed)
        try:
            for count, message in enumerate(messages):
                if count == most:
                    return
                self.take(message)
        except RevisionCompacted:
            self.start()
            self.read(most)

    def take(self, message: bytes) -> None:
        if message:
            run_sync(self.intake.take(pb.StreamRouteSnapshotResponse.FromString(message)))

    @property
    def manager(self) -> ReplicaManager:
        assert self.intake.manager is not None
        return self.intake.manager


def state_of(manager: RouteInfoManager) -> dict[str, object]:
    """All that readers can see, in comparable form."""
    rows = RouteRows.of_snapshot(map(pb.StreamRouteSnapshotResponse.FromString, manager.snapshot().messages()))
    tables, digests = manager.tables, manager.digests
    return {
        "revision": manager.revision,
        "rows": rows,
        "clusters": tables.cluster_addr_table,
        "routes": {(t, z): manager.pickup_topic_route_data(t, z) for t in _TOPICS for z in (None, "z1")},
        "names": run_sync(manager.topic_lists.all_after("", 10)),
        "topic count": len(tables.topic_queue_table),
        "topics by broker": {key: set(topics) for key, topics in tables.topics_by_broker.items() if topics},
        "rules": {key: group.write for key, group in tables.broker_addr_table.items()},
        "held": {
            (topic, broker): data.numbers
            for topic, holders in tables.held_queue_table.items()
            for broker, data in holders.items()
        },
        "unconfirmed": manager.unconfirmed,
        "intents": manager.intents.intents,
        "kv": manager.kv_config,
        "digests": [(row.position, row.digest) for row in run_sync(digests.after(FRONT, 100))],
    }


def log_of(manager: RouteInfoManager, after: int) -> list[object]:
    """The changes after a revision as readers get them; the order of rows within one depends on how it was made."""
    feed = ReplicaFeed(manager, lambda: True, lambda: 0.0)
    found: list[object] = []
    for change in reversed(manager.change_log.newest_first()):
        if change.revision > after:
            rows = [
                row.SerializeToString(deterministic=True)
                for message in route_changes(change.rows, change.applied_at_millis, WHOLE)
                for row in pb.RouteChanges.FromString(message).changes
            ]
            found.append(
                (change.revision, change.applied_at_millis, change.cause, sorted(rows), feed.of_change(change))
            )
    return found


class CopiesFollowTheirLeader(ChangesMakeSnapshots):
    """Everything that can happen to a name server, with a copy that reads now and then."""

    @initialize(behaviour=BEHAVIOURS, max_changes=st.sampled_from([3, 1_000]))
    def start(self, behaviour: Behaviour, max_changes: int) -> None:
        super().start(behaviour)
        if max_changes < 1_000:
            self.fleet.manager.change_log._max_changes = max_changes
        self.link = Link(self.fleet.manager)
        self.checked_after = 0

    @rule()
    def reads(self) -> None:
        copies = self.link.copies
        self.link.read()
        leader, copy = self.fleet.manager, self.link.manager
        assert state_of(copy) == state_of(leader)
        assert copy.header().epoch == leader.header().epoch
        if copies == self.link.copies:
            after = max(copy.change_log.compacted_revision, leader.change_log.compacted_revision)
            assert log_of(copy, after) == log_of(leader, after)

    @rule(most=st.integers(0, 3))
    def is_cut_off_while_reading(self, most: int) -> None:
        self.link.read(most)
        self.link.resume()

    @rule()
    def starts_anew(self) -> None:
        self.link.start()

    @rule()
    def lets_go_of_an_address(self) -> None:
        manager = self.fleet.manager
        for claim in run_sync(manager.address_claims.in_force())[:1]:
            assert manager.release_address_claim(claim.key, _CAUSE) == claim

    @rule(topic=st.sampled_from(_TOPICS), value=st.none() | st.sampled_from(["broker-a:1", "broker-b:2"]))
    def orders(self, topic: str, value: str | None) -> None:
        manager = self.fleet.manager
        table = manager.kv_config
        changed = (
            table.without(ORDER_TOPIC_CONFIG, topic)
            if value is None
            else table.with_value(ORDER_TOPIC_CONFIG, topic, value)
        )
        manager.publish_kv_config(changed, _CAUSE)

    @rule(on=st.booleans())
    def switches_order(self, on: bool) -> None:
        manager = self.fleet.manager
        behaviour = replace(manager.behaviour, order_message_enable=on)
        manager.publish_behaviour(behaviour, _CAUSE, (ConfigPut("orderMessageEnable", str(on).lower()),))

    @invariant()
    def nothing_changes_without_a_revision(self) -> None:
        """The copy is compared instead."""

    def teardown(self) -> None:
        self.patched.stop()
        if hasattr(self, "link"):
            self.link.resume()
            self.reads()


TestCopiesFollowTheirLeader = CopiesFollowTheirLeader.TestCase
TestCopiesFollowTheirLeader.settings = settings(max_examples=examples(100), stateful_step_count=25)


def test_a_change_that_does_not_follow_the_last_one_is_not_made(fleet: Fleet) -> None:
    fleet.register()
    copy = Link(fleet.manager).manager
    with pytest.raises(OutOfStep, match="revision 3 does not follow 1"):
        run_sync(copy.apply(LeaderChange(3)))
    assert state_of(copy) == state_of(fleet.manager)


def test_half_a_change_is_forgotten_when_the_stream_ends_and_comes_again(fleet: Fleet) -> None:
    fleet.register(topics=["T1"])
    link = Link(fleet.manager)
    fleet.register(topics=["T1", "T2"], version=DataVersion(2, 2))
    link.read(1)
    assert link.manager.revision == 1
    link.resume()
    link.read()
    assert state_of(link.manager) == state_of(fleet.manager)


def test_filter_servers_that_come_alone_and_go_alone_show_in_the_routes_of_a_copy(fleet: Fleet) -> None:
    fleet.register(topics=["T1"])
    link = Link(fleet.manager)
    for filter_servers in (("f:1",), ("f:1", "f:2"), ()):
        fleet.register(topics=["T1"], filter_servers=filter_servers)
        link.read()
        encoded = link.manager.pickup_topic_route_data("T1")
        assert encoded is not None
        route = route_data_pb2.TopicRouteData.FromString(encoded)
        assert [tuple(row.filter_servers) for row in route.filter_servers] == [filter_servers] * bool(filter_servers)
        assert state_of(link.manager) == state_of(fleet.manager)


def test_what_the_snapshot_file_left_unconfirmed_is_told_apart_from_what_the_guard_holds(fleet: Fleet) -> None:
    fleet.register(A, name="broker-a")
    restarted = Fleet()
    restarted.manager.load_snapshot(fleet.manager.snapshot().messages())
    copy = Link(restarted.manager).manager
    assert list(copy.unconfirmed.values()) == [Unconfirmed.SNAPSHOT_FILE]
    assert state_of(copy) == state_of(restarted.manager)


def test_a_snapshot_with_rows_that_do_not_fit_together_is_refused(fleet: Fleet) -> None:
    fleet.register()
    intake = ReplicaIntake(lambda identity: ReplicaManager(identity, VirtualClock()), None)
    first, *_, end = map(pb.StreamRouteSnapshotResponse.FromString, fleet.manager.snapshot().messages())
    run_sync(intake.take(first))
    with pytest.raises(UnusableSnapshot, match="the end marker counts 1 clusters, and there are 0"):
        run_sync(intake.take(end))
    assert intake.manager is None


def test_a_copy_is_told_now_and_then_when_brokers_were_heard_of(fleet: Fleet) -> None:
    fleet.register(A)
    link = Link(fleet.manager, fleet.clock.monotonic)
    fleet.clock.advance(3.0)
    fleet.query(A)
    link.read()
    assert link.manager.last_heard() != fleet.manager.last_heard()
    fleet.clock.advance(3.0)
    link.read()
    assert link.manager.last_heard() == fleet.manager.last_heard()
    fleet.unregister(A)
    link.read()
    assert link.manager.last_heard() == {}


def test_a_copy_can_be_copied(fleet: Fleet) -> None:
    fleet.register(topics=["T1", "T2"])
    first = Link(fleet.manager)
    second = Link(first.manager)
    fleet.unregister()
    first.read()
    second.read()
    assert state_of(second.manager) == state_of(fleet.manager)


def test_settings_of_readers_are_known_by_their_names_on_the_wire() -> None:
    assert {key: CONFIG_KEYS[key].field for key in READER_SETTINGS} == READER_SETTINGS
