"""What RocketMQ's own brokers register: tables that may be parts of the whole, and static topics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from namesrv_api.v1 import route_data_pb2

from namesrv.core.errors import Reason
from namesrv.core.model import LiveKey, ReportedTopic, StaticMapping, TopicTableFingerprint
from namesrv.remoting.calls import heartbeat_by_address, query_by_address
from tests.support.core_fleet import CLUSTER, A, B, Fleet
from tests.support.refusals import refuses
from tests.unit.namesrv.reference_operators import mapping_message
from tests.unit.namesrv.scenarios.groups import GROUP, delete_topic, hold, known_route, lift_all, version, wipe


def says(fleet: Fleet, *topics: str | ReportedTopic, addr: str = A, **fields: Any) -> None:
    """A RocketMQ broker of version 5 registers."""
    fleet.register(addr, 0, topics, enable_acting_master=False, topic_by_topic=True, **fields)


# A table whose mark is held is not read again

MARK = TopicTableFingerprint(100, b"a digest", 2)


def says_marked(fleet: Fleet, mark: TopicTableFingerprint = MARK, *, is_read: bool = False) -> bool:
    """The table T1, T2 comes with its mark, without having been read. Whether it changes anything."""
    said = fleet.register(topics=("T1", "T2"), version=version(2), topic_by_topic=True, mark=mark, is_read=is_read)
    return said.changed


def test_a_table_of_the_same_mark_need_not_be_read_and_is_no_increment(fleet: Fleet) -> None:
    says_marked(fleet, is_read=True)
    says_marked(fleet)
    assert fleet.topics == {"T1", "T2"}
    assert not says_marked(fleet)
    assert not fleet.topics_read
    assert query_by_address(fleet.state, GROUP, 0, A, version(2)) == (False, version(2))


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
    heartbeat_by_address(fleet.state, LiveKey(CLUSTER, A))
    fleet.clock.advance(100.0)
    assert fleet.state.liveness.idle_channels() == []


# Static topics: their mappings go wherever the group's queues of the topic go.

STATIC = StaticMapping("__global__", 4, 1_795_340_517_986, False, ((0, 0), (1, 1), (2, 2), (3, 3)))
MOVED = StaticMapping("__global__", 4, 1_795_340_999_999, True, ((0, 0), (3, 5)))


def shown(fleet: Fleet, topic: str = "T") -> list[route_data_pb2.StaticTopicMapping]:
    """The mapping of each group of the route that has one."""
    return [queues.mapping for queues in known_route(fleet, topic).queue_datas if queues.HasField("mapping")]


def test_a_route_has_the_mapping_of_each_group_and_ordinary_topics_have_none(fleet: Fleet) -> None:
    says(fleet, "T", "Ordinary", mappings={"T": STATIC})
    says(fleet, "T", addr=B, name="broker-b", mappings={"T": MOVED})
    assert shown(fleet) == [mapping_message(STATIC), mapping_message(MOVED)]
    assert shown(fleet, "Ordinary") == []


def test_a_topic_registered_by_itself_keeps_its_mapping(fleet: Fleet) -> None:
    says(fleet, "T", mappings={"T": STATIC})
    assert fleet.register_topic("T", {GROUP: (8, 8, 6, 0)})
    assert shown(fleet) == [mapping_message(STATIC)]


def test_a_held_static_topic_comes_back_with_the_mapping_that_was_said_last(fleet: Fleet) -> None:
    says(fleet, "T", "T2", mappings={"T": STATIC})
    hold(fleet, "T")
    says(fleet, mappings={"T": MOVED})
    says(fleet, "T")
    lift_all(fleet)
    assert shown(fleet) == [mapping_message(MOVED)]
