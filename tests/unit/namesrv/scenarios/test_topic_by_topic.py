"""What RocketMQ's own brokers register: tables that may be parts, each under the version of the whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from namesrv.core.errors import Reason
from namesrv.core.model import DataVersion, LiveKey, RegisterBrokerResult, ReportedTopic, TopicTableFingerprint
from tests.support.core_fleet import CLUSTER, A, B, Fleet
from tests.support.refusals import refuses
from tests.unit.namesrv.scenarios.groups import GROUP, delete_topic, hold, version, wipe


def says(fleet: Fleet, *topics: str | ReportedTopic, addr: str = A, version: DataVersion) -> RegisterBrokerResult:
    """A RocketMQ broker of version 5 registers."""
    return fleet.register(addr, 0, topics, version=version, enable_acting_master=False, topic_by_topic=True)


# A table whose mark is held is not read again

MARK = TopicTableFingerprint(100, b"a digest", 2)


def says_marked(fleet: Fleet, mark: TopicTableFingerprint = MARK, *, is_read: bool = False) -> RegisterBrokerResult:
    """The table T1, T2 comes with its mark, without having been read."""
    return fleet.register(topics=("T1", "T2"), version=version(2), topic_by_topic=True, mark=mark, is_read=is_read)


def test_a_table_of_the_same_mark_need_not_be_read_and_is_no_increment(fleet: Fleet) -> None:
    says_marked(fleet, is_read=True)
    says_marked(fleet)
    assert fleet.topics == {"T1", "T2"}
    assert not says_marked(fleet).changed
    assert not fleet.topics_read
    assert fleet.state.query_by_address(GROUP, 0, A, version(2)) == (False, version(2))


def test_a_table_of_another_mark_must_be_read(fleet: Fleet) -> None:
    says_marked(fleet, is_read=True)
    says_marked(fleet, MARK._replace(digest=b"another"))
    assert fleet.topics_read == MARK.topics


def delete_what_registrations_lack(fleet: Fleet) -> None:
    fleet.state.behaviour = replace(fleet.state.behaviour, delete_topic_with_broker_registration=True)


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
        delete_what_registrations_lack,
    ],
    ids=["deleted", "held", "wiped", "one topic changed", "left", "increment", "replaced", "exact"],
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


# Liveness


def test_heartbeats_keep_the_connection_of_the_broker_from_being_idle(fleet: Fleet) -> None:
    channel = fleet.state.open_channel()
    fleet.register(channel_id=channel, timeout_seconds=300.0, topic_by_topic=True)
    fleet.clock.advance(100.0)
    fleet.state.heartbeat_by_address(LiveKey(CLUSTER, A))
    fleet.clock.advance(100.0)
    assert fleet.state.liveness.idle_channels() == []
