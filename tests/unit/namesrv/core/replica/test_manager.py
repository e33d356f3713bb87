"""A read-only copy has, at each revision, what its leader has: whatever happens, and however often it is cut off."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_internal.v1.replica_service_pb2 import ChangeStart, FollowTablesResponse, News, OpeningRows

from namesrv.app.worker import GivenUp
from namesrv.core.change_stream import route_changes
from namesrv.core.changes import Cause, ConfigPut
from namesrv.core.digests import FRONT
from namesrv.core.errors import Reason, Refused
from namesrv.core.model import ORDER_TOPIC_CONFIG, DataVersion
from namesrv.core.policy import Behaviour
from namesrv.core.replica import LeaderChange, OutOfStep, ReplicaIntake, ReplicaTables
from namesrv.core.replica_feed import READER_SETTINGS, ReplicaFeed, change_start, tables_message
from namesrv.core.snapshot_load import UnusableSnapshot
from namesrv.core.state import RouteState, Unconfirmed
from namesrv.core.state_change import StateChange, apply_all_now, apply_now
from namesrv.core.watch import Follower
from namesrv.runtime_settings import CONFIG_KEYS
from tests.properties import examples
from tests.support.breaths import AtBreath, breathing, give_up, short_breaths
from tests.support.core_fleet import A, Fleet
from tests.support.routes.route_rows import RouteRows
from tests.support.virtual_clock import VirtualClock
from tests.unit.namesrv.change_machine import BEHAVIOURS, ChangesMakeSnapshots

_CAUSE = Cause("test", "somebody", "because")
_TOPICS = ["T1", "T2", "T3", "T4"]


class Link:
    """A copy, and the stream that it is made of."""

    def __init__(self, leader: RouteState, monotonic: Callable[[], float] = lambda: 0.0) -> None:
        self.leader = leader
        self.monotonic = monotonic
        self.copies = 0
        self.gives_up: AtBreath | None = None
        """The breath at which the next change is given up, or it is given up right before its commit."""
        self.start()

    def start(self) -> None:
        """The copy is made anew."""
        self.copies += 1
        self.intake = ReplicaIntake(lambda identity: ReplicaTables(identity, VirtualClock()), "copy")
        self.feed = ReplicaFeed(self.leader, lambda: True, self.monotonic)
        snapshot = self.leader.snapshot()
        self.reader = Follower(lambda: None, snapshot.revision)
        for message in self.opening(snapshot.messages()):
            self.take(message)

    def opening(self, messages: Iterator[bytes]) -> Iterator[bytes]:
        yield tables_message(next(messages))
        yield from self.feed.opening()
        yield from map(tables_message, messages)

    def resume(self) -> None:
        """The stream ends and begins again, where the copy is."""
        self.feed = ReplicaFeed(self.leader, lambda: True, self.monotonic)
        self.intake.stream_ended()
        self.reader = Follower(lambda: None, self.state.revision)

    def read(self, most: int | None = None) -> None:
        """Reads what there is, or some messages of it."""
        messages = self.feed.messages(self.leader.change_log, self.reader, self.leader.identity)
        try:
            for count, message in enumerate(messages):
                if count == most:
                    return
                self.take(message)
        except Refused as error:
            if error.reason != Reason.REVISION_COMPACTED:
                raise
            self.start()
            self.read(most)

    def take(self, message: bytes) -> None:
        if message:
            self.make(self.intake.take(FollowTablesResponse.FromString(message)))

    def make(self, changes: Iterator[StateChange[list[None]]]) -> None:
        """Makes changes as the table writer does, each prepared and settled as on a thread."""
        while True:
            with breathing(lambda: None):
                change = next(changes, None)
            if change is None:
                return
            if self.gives_up is None:
                with breathing(lambda: None):
                    change.prepare()
            else:
                before = state_of(change.state)
                with contextlib.suppress(GivenUp), breathing(self.gives_up):
                    change.prepare()
                assert state_of(change.state) == before
                raise GivenUp
            change.commit()
            with breathing(lambda: None):
                change.state.settle()

    @property
    def tables(self) -> ReplicaTables:
        assert self.intake.tables is not None
        return self.intake.tables

    @property
    def state(self) -> RouteState:
        return self.tables.state


def tables(**content: Any) -> FollowTablesResponse:
    """A message of another epoch's tables."""
    header = route_data_pb2.NamesrvHeader(epoch="another")
    return FollowTablesResponse(tables=pb.StreamRouteSnapshotResponse(header=header, **content))


def state_of(state: RouteState) -> dict[str, object]:
    """All that readers can see, in comparable form."""
    rows = RouteRows.of_snapshot(map(pb.StreamRouteSnapshotResponse.FromString, state.snapshot().messages()))
    tables, digests = state.tables, state.digests
    digests.compute(digests.missing(FRONT, 100))
    digested = digests.page(FRONT, 100)
    assert digested is not None
    return {
        "revision": state.revision,
        "rows": rows,
        "clusters": tables.cluster_addr_table,
        "routes": {(t, z): state.route(t, z) for t in _TOPICS for z in (None, "z1")},
        "names": state.topic_lists.all()("", 10),
        "topic count": len(tables.topic_queue_table),
        "topics by broker": {key: set(topics) for key, topics in tables.topics_by_broker.items() if topics},
        "rules": {key: group.write for key, group in tables.broker_addr_table.items()},
        "held": {
            (topic, broker): data.numbers
            for topic, holders in tables.held_queue_table.items()
            for broker, data in holders.items()
        },
        "unconfirmed": state.unconfirmed,
        "intents": state.intents.intents,
        "kv": state.kv_config,
        "digests": [(row.position, row.digest) for row in digested],
    }


def log_of(state: RouteState, after: int) -> list[object]:
    """The changes after a revision as readers get them; the order of rows within one depends on how it was made."""
    found: list[object] = []
    for change in reversed(state.change_log.newest_first()):
        if change.revision > after:
            rows = [
                row.SerializeToString(deterministic=True)
                for message in route_changes(change.rows, change.applied_at_millis)
                for row in pb.RouteChanges.FromString(message).changes
            ]
            found.append((change.cause, sorted(rows), change_start(change)))
    return found


class CopiesFollowTheirLeader(ChangesMakeSnapshots):
    """Everything that can happen to a name server, with a copy that reads now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.often_breathing = contextlib.ExitStack()

    @initialize(behaviour=BEHAVIOURS, max_changes=st.sampled_from([3, 1_000]))
    def start(self, behaviour: Behaviour, max_changes: int) -> None:
        super().start(behaviour)
        self.often_breathing.enter_context(short_breaths())
        if max_changes < 1_000:
            self.fleet.state.change_log._max_changes = max_changes
        self.link = Link(self.fleet.state)
        self.checked_after = 0

    @rule()
    def reads(self) -> None:
        copies = self.link.copies
        self.link.read()
        leader, copy = self.fleet.state, self.link.state
        assert state_of(copy) == state_of(leader)
        assert copy.header().epoch == leader.header().epoch
        if copies == self.link.copies:
            after = max(copy.change_log.compacted_revision, leader.change_log.compacted_revision)
            assert log_of(copy, after) == log_of(leader, after)

    @rule(most=st.integers(0, 3))
    def is_cut_off_while_reading(self, most: int) -> None:
        self.link.read(most)
        self.link.resume()

    @rule(breath=st.integers(0, 5))
    def is_given_up_while_it_makes_a_change(self, breath: int) -> None:
        self.link.gives_up = AtBreath(breath, give_up)
        try:
            with contextlib.suppress(GivenUp):
                self.link.read()
        finally:
            self.link.gives_up = None
        self.link.resume()

    @rule()
    def starts_anew(self) -> None:
        self.link.start()

    @rule(topic=st.sampled_from(_TOPICS), value=st.none() | st.sampled_from(["broker-a:1", "broker-b:2"]))
    def orders(self, topic: str, value: str | None) -> None:
        state = self.fleet.state
        table = state.kv_config
        changed = (
            table.without(ORDER_TOPIC_CONFIG, topic)
            if value is None
            else table.with_value(ORDER_TOPIC_CONFIG, topic, value)
        )
        self.fleet.routes.operator_changes.publish_kv_config(changed, _CAUSE)

    @rule(on=st.booleans())
    def switches_order(self, on: bool) -> None:
        state = self.fleet.state
        behaviour = replace(state.behaviour, order_message_enable=on)
        rows = (ConfigPut("orderMessageEnable", str(on).lower()),)
        self.fleet.routes.operator_changes.publish_behaviour(behaviour, _CAUSE, rows)

    @invariant()
    def nothing_changes_without_a_revision(self) -> None:
        """The copy is compared instead."""

    def teardown(self) -> None:
        self.patched.stop()
        with self.often_breathing:
            if hasattr(self, "link"):
                self.link.resume()
                self.reads()


TestCopiesFollowTheirLeader = CopiesFollowTheirLeader.TestCase
TestCopiesFollowTheirLeader.settings = settings(max_examples=examples(100), stateful_step_count=25)


def test_a_change_that_does_not_follow_the_last_one_is_not_made(fleet: Fleet) -> None:
    fleet.register()
    copy = Link(fleet.state).tables
    with pytest.raises(OutOfStep, match="revision 3 does not follow 1"):
        apply_now(copy.change(LeaderChange(ChangeStart(revision=3))))
    assert state_of(copy.state) == state_of(fleet.state)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (FollowTablesResponse(), "something unknown where a snapshot is due"),
        (FollowTablesResponse(news=News()), "news where a snapshot is due"),
    ],
)
def test_a_stream_that_does_not_begin_with_a_snapshot_is_refused(message: FollowTablesResponse, problem: str) -> None:
    intake = ReplicaIntake(lambda identity: ReplicaTables(identity, VirtualClock()), None)
    with pytest.raises(OutOfStep, match=problem):
        apply_all_now(intake.take(message))


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (FollowTablesResponse(), "something unknown where changes are due"),
        (FollowTablesResponse(opening=OpeningRows()), "opening where changes are due"),
        (tables(snapshot_end=pb.SnapshotEnd()), "a snapshot where changes are due"),
        (tables(changes=pb.RouteChanges()), "the epoch is another now"),
    ],
)
def test_a_message_that_is_no_change_is_refused_after_the_snapshot(
    fleet: Fleet, message: FollowTablesResponse, problem: str
) -> None:
    link = Link(fleet.state)
    with pytest.raises(OutOfStep, match=problem):
        apply_all_now(link.intake.take(message))


def test_rows_of_a_revision_that_has_not_begun_are_refused(fleet: Fleet) -> None:
    link = Link(fleet.state)
    fleet.register()
    messages = link.feed.messages(fleet.state.change_log, link.reader, fleet.state.identity)
    next(messages)
    with pytest.raises(OutOfStep, match="rows of revision 1 come without its beginning"):
        link.take(next(messages))


def test_half_a_change_is_forgotten_when_the_stream_ends_and_comes_again(fleet: Fleet) -> None:
    fleet.register(topics=["T1"])
    link = Link(fleet.state)
    fleet.register(topics=["T1", "T2"], version=DataVersion(2, 2))
    link.read(1)
    assert link.state.revision == 1
    link.resume()
    link.read()
    assert state_of(link.state) == state_of(fleet.state)


def test_filter_servers_that_come_alone_and_go_alone_show_in_the_routes_of_a_copy(fleet: Fleet) -> None:
    fleet.register(topics=["T1"])
    link = Link(fleet.state)
    for filter_servers in (("f:1",), ("f:1", "f:2"), ()):
        fleet.register(topics=["T1"], filter_servers=filter_servers)
        link.read()
        encoded = link.state.route("T1")
        assert encoded is not None
        route = route_data_pb2.TopicRouteData.FromString(encoded)
        assert [tuple(row.filter_servers) for row in route.filter_servers] == [filter_servers] * bool(filter_servers)
        assert state_of(link.state) == state_of(fleet.state)


def test_what_the_snapshot_file_left_unconfirmed_is_told_apart_from_what_the_guard_holds(fleet: Fleet) -> None:
    fleet.register(A, name="broker-a")
    restarted = Fleet()
    restarted.state.load_snapshot(fleet.state.snapshot().messages())
    copy = Link(restarted.state).state
    assert list(copy.unconfirmed.values()) == [Unconfirmed.SNAPSHOT_FILE]
    assert state_of(copy) == state_of(restarted.state)


def test_a_snapshot_with_rows_that_do_not_fit_together_is_refused(fleet: Fleet) -> None:
    fleet.register()
    intake = ReplicaIntake(lambda identity: ReplicaTables(identity, VirtualClock()), None)
    messages = map(tables_message, fleet.state.snapshot().messages())
    first, *_, end = map(FollowTablesResponse.FromString, messages)
    apply_all_now(intake.take(first))
    with pytest.raises(UnusableSnapshot, match="the end marker counts 1 clusters, and there are 0"):
        apply_all_now(intake.take(end))
    assert intake.tables is None


def test_a_copy_is_told_now_and_then_when_brokers_were_heard_of(fleet: Fleet) -> None:
    fleet.register(A)
    link = Link(fleet.state, fleet.clock.monotonic)
    fleet.clock.advance(3.0)
    fleet.query(A)
    link.read()
    assert link.state.last_heard() != fleet.state.last_heard()
    fleet.clock.advance(3.0)
    link.read()
    assert link.state.last_heard() == fleet.state.last_heard()
    fleet.unregister(A)
    link.read()
    assert link.state.last_heard() == {}


def test_a_copy_can_be_copied(fleet: Fleet) -> None:
    fleet.register(topics=["T1", "T2"])
    first = Link(fleet.state)
    second = Link(first.state)
    fleet.unregister()
    first.read()
    second.read()
    assert state_of(second.state) == state_of(fleet.state)


def test_settings_of_readers_are_known_by_their_names_on_the_wire() -> None:
    assert {key: CONFIG_KEYS[key].field for key in READER_SETTINGS} == READER_SETTINGS
