"""What RocketMQ's own brokers register: tables that may be parts, each under the version of the whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from namesrv.core.errors import Reason
from namesrv.core.model import DataVersion, LiveKey, RegisterBrokerResult, ReportedTopic, TopicTableFingerprint
from namesrv.core.policy import Behaviour
from tests.support.core_fleet import CLUSTER, VERSION, A, B, Fleet
from tests.support.refusals import refuses
from tests.unit.namesrv.scenarios.groups import GROUP, delete_topic, hold, known_route, version, wipe


def says(
    fleet: Fleet,
    *topics: str | ReportedTopic,
    addr: str = A,
    broker_id: int = 0,
    version: DataVersion = VERSION,
    acting: bool | None = False,
) -> RegisterBrokerResult:
    """A RocketMQ broker of version 5 registers; one of version 4 says nothing of acting masters (None)."""
    return fleet.register(addr, broker_id, topics, version=version, enable_acting_master=acting, topic_by_topic=True)


# A version stands for no table


def test_a_restart_whose_first_word_is_an_increment_loses_no_topic(fleet: Fleet) -> None:
    says(fleet, "T5", version=version(5))
    says(fleet, "T1", "T2", "T3", "T4", "T5", version=version(5))
    assert fleet.topics == {"T1", "T2", "T3", "T4", "T5"}


def test_an_increment_changes_its_topic_and_leaves_the_others(fleet: Fleet) -> None:
    says(fleet, "T1", "T2", version=version(1))
    says(fleet, ("T2", (8, 8, 6, 0)), version=version(2))
    assert fleet.topics == {"T1", "T2"}
    assert [queue.read_queue_nums for queue in known_route(fleet, "T2").queue_datas] == [8]


def test_the_same_table_again_renews_and_takes_no_revision(fleet: Fleet) -> None:
    says(fleet, "T1", "T2")
    revision = fleet.state.revision
    fleet.clock.advance(100.0)
    assert not says(fleet, "T2", "T1").changed
    assert fleet.state.revision == revision
    fleet.clock.advance(100.0)
    assert fleet.scan() == []


# A table whose mark is held is not read again

MARK = TopicTableFingerprint(100, b"a digest", 2)


def says_marked(fleet: Fleet, mark: TopicTableFingerprint = MARK, *, is_read: bool = False) -> RegisterBrokerResult:
    """The table T1, T2 comes with its mark, without having been read."""
    return fleet.register(topics=("T1", "T2"), version=version(2), topic_by_topic=True, mark=mark, is_read=is_read)


def test_a_table_of_the_same_mark_need_not_be_read(fleet: Fleet) -> None:
    says_marked(fleet, is_read=True)
    says_marked(fleet)
    assert fleet.topics == {"T1", "T2"}
    assert not says_marked(fleet).changed
    assert not fleet.topics_read


def test_a_broker_whose_table_is_known_by_its_mark_has_said_more_than_an_increment(fleet: Fleet) -> None:
    says_marked(fleet, is_read=True)
    says_marked(fleet)
    assert fleet.heartbeats.query_by_address(GROUP, 0, A, version(2)) == (False, version(2))


def test_a_table_of_another_mark_must_be_read(fleet: Fleet) -> None:
    says_marked(fleet, is_read=True)
    says_marked(fleet, MARK._replace(digest=b"another"))
    assert fleet.topics_read == MARK.topics


@pytest.mark.parametrize(
    "happens",
    [
        lambda fleet: delete_topic(fleet, "T1"),
        lambda fleet: hold(fleet, "T1"),
        wipe,
        lambda fleet: fleet.register_topic("T1", {GROUP: (8, 8, 6, 0)}),
        lambda fleet: fleet.unregister(),
        lambda fleet: says(fleet, ("T1", (8, 8, 6, 0)), version=version(2)),
        lambda fleet: says(fleet, addr=B, version=version(2)),
    ],
    ids=["deleted", "held", "wiped", "one topic changed", "left", "increment", "replaced"],
)
def test_whatever_happens_to_a_groups_queues_its_table_must_be_read(
    fleet: Fleet, happens: Callable[[Fleet], object]
) -> None:
    says_marked(fleet, is_read=True)
    happens(fleet)
    says_marked(fleet)
    assert fleet.topics_read == MARK.topics


def test_a_table_must_be_read_again_after_a_held_topic_of_it_changed(fleet: Fleet) -> None:
    hold(fleet, "T1")
    says_marked(fleet, is_read=True)
    fleet.register_topic("T1", {GROUP: (8, 8, 6, 0)})
    says_marked(fleet)
    assert fleet.topics_read == MARK.topics


def test_a_table_of_the_same_mark_must_be_read_where_topics_that_it_does_not_name_go(fleet: Fleet) -> None:
    says_marked(fleet, is_read=True)
    fleet.state.behaviour = replace(fleet.state.behaviour, delete_topic_with_broker_registration=True)
    says_marked(fleet)
    assert fleet.topics_read == MARK.topics


# A broker that has an agent from now on, or had one


def test_an_agent_under_the_brokers_own_version_is_asked_for_its_whole_table(fleet: Fleet) -> None:
    """The agent reads the version from the broker's topics.json, so it is the one that the broker registered."""
    says(fleet, "T5", version=version(5))
    assert fleet.query(version=version(5)) == (True, version(5))
    with refuses(Reason.NEED_FULL_REGISTRATION, match="topic by topic"):
        fleet.register(topics=(), version=version(6), base_version=version(5))
    fleet.register(topics=("T1", "T5"), version=version(5))
    assert fleet.topics == {"T1", "T5"}
    assert fleet.query(version=version(5)) == (False, version(5))


def test_a_question_of_an_agent_renews_nothing_that_the_broker_said_itself(fleet: Fleet) -> None:
    says(fleet, "T1")
    fleet.clock.advance(100.0)
    fleet.query()
    fleet.clock.advance(21.0)
    assert len(fleet.scan()) == 1


# Liveness


def ask(fleet: Fleet, version: DataVersion = VERSION, broker_id: int = 0) -> tuple[bool, DataVersion | None]:
    return fleet.heartbeats.query_by_address(GROUP, broker_id, A, version)


def test_any_question_is_a_sign_of_life_also_with_a_version_that_is_not_held(fleet: Fleet) -> None:
    """A broker whose last increment was lost asks each second, and has 10 s."""
    fleet.register(topics=("T1", "T2"), timeout_seconds=10.0, topic_by_topic=True)
    for _ in range(5):
        fleet.clock.advance(9.0)
        assert ask(fleet, version(2)) == (True, VERSION)
    assert fleet.scan() == []
    fleet.clock.advance(10.5)
    assert len(fleet.scan()) == 1


def test_a_question_is_answered_by_the_version_that_was_registered_last(fleet: Fleet) -> None:
    says(fleet, "T1", "T2", version=version(1))
    assert ask(fleet, version(1)) == (False, version(1))
    says(fleet, "T2", version=version(2))
    assert ask(fleet, version(2)) == (False, version(2))
    assert ask(fleet, version(1)) == (True, version(2))


def test_who_has_said_one_topic_only_is_asked_to_register_until_it_says_more(fleet: Fleet) -> None:
    """Of a broker with forceRegister=false: it sends its table only if it is told that something changed."""
    says(fleet, "T5", version=version(5))
    assert ask(fleet, version(5)) == (True, version(5))
    says(fleet, "T6", version=version(6))
    assert ask(fleet, version(6)) == (True, version(6))
    says(fleet, "T1", "T5", "T6", version=version(6))
    assert ask(fleet, version(6)) == (False, version(6))


def test_a_broker_of_an_agent_lives_only_by_the_version_that_it_holds(fleet: Fleet) -> None:
    fleet.register(timeout_seconds=10.0)
    fleet.clock.advance(9.0)
    assert ask(fleet) == (False, VERSION)
    fleet.clock.advance(9.0)
    assert ask(fleet, version(2)) == (True, VERSION)
    assert not fleet.heartbeats.heartbeat_by_address(LiveKey(CLUSTER, A))
    fleet.clock.advance(2.0)
    assert len(fleet.scan()) == 1


def test_heartbeats_keep_the_connection_of_the_broker_from_being_idle(fleet: Fleet) -> None:
    channel = fleet.heartbeats.open_channel()
    fleet.register(channel_id=channel, timeout_seconds=300.0, topic_by_topic=True)
    fleet.clock.advance(100.0)
    fleet.heartbeats.heartbeat_by_address(LiveKey(CLUSTER, A))
    fleet.clock.advance(100.0)
    assert fleet.state.liveness.idle_channels() == []


def test_a_broker_of_the_snapshot_file_that_asks_each_second_stays_until_it_registers(fleet: Fleet) -> None:
    """It registers again within 33 s, and has 10 s."""
    fleet.register(topics=("T1", "T2"), timeout_seconds=10.0, topic_by_topic=True)
    restarted = Fleet()
    restarted.state.load_snapshot(fleet.state.snapshot().messages())
    for _ in range(33):
        restarted.clock.advance(1.0)
        assert ask(restarted) == (True, VERSION)
    assert restarted.scan() == []
    says(restarted, "T3")
    assert ask(restarted) == (True, VERSION)
    assert not restarted.state.unconfirmed


def test_a_broker_that_the_guard_holds_is_held_no_less_long_because_it_speaks() -> None:
    fleet = Fleet(Behaviour(mass_loss_min_brokers=1))
    fleet.register(timeout_seconds=10.0, topic_by_topic=True)
    fleet.clock.advance(11.0)
    assert fleet.scan() == []
    ask(fleet)
    fleet.clock.advance(500.0)
    assert fleet.scan() == []
    fleet.clock.advance(101.0)
    assert len(fleet.scan()) == 1
