"""Lists of topics: what is in them, in pages, and what changes while they are read."""

from __future__ import annotations

import pytest

from namesrv.core.model import BrokerKey
from namesrv.core.pace import FEW
from namesrv.core.topic_lists import UNIT, UNIT_SUB, NamesAfter, TopicLists
from tests.support.breaths import AtBreath, breathing, breaths_of
from tests.support.core_fleet import CLUSTER, A, B, Fleet

C = "127.0.0.1:30911"
BOTH = UNIT | UNIT_SUB


@pytest.fixture
def lists(fleet: Fleet) -> TopicLists:
    return fleet.state.topic_lists


def whole(names_after: NamesAfter, page_size: int = 2) -> list[str]:
    """All pages of a list."""
    names: list[str] = []
    while page := names_after(names[-1] if names else "", page_size):
        assert len(page) <= page_size
        names += page
    return names


def flagged(name: str, flag: int) -> tuple[str, tuple[int, int, int, int]]:
    return name, (4, 4, 6, flag)


def test_topics_of_a_cluster_are_those_with_queues_on_any_of_its_groups(fleet: Fleet, lists: TopicLists) -> None:
    fleet.register(A, topics=("T1", "T2"), name="broker-a", cluster="c1")
    fleet.register(B, topics=("T3", "T2"), name="broker-b", cluster="c1")
    fleet.register(A, topics=("T4", "T2"), name="broker-a", cluster="c2")
    assert whole(lists.of_cluster("c1")) == ["T1", "T2", "T3"]
    assert whole(lists.of_cluster("c2")) == ["T2", "T4"]


def test_an_unknown_cluster_has_no_topics(fleet: Fleet, lists: TopicLists) -> None:
    assert whole(lists.of_cluster("c1")) == []
    fleet.register(cluster="c1")
    assert whole(lists.of_cluster("c2")) == []


def test_unit_lists_go_by_the_two_flag_bits_and_no_other(fleet: Fleet, lists: TopicLists) -> None:
    fleet.register(topics=[flagged("none", 4), flagged("unit", UNIT), flagged("sub", UNIT_SUB), flagged("both", 7)])
    assert whole(lists.with_flags(UNIT, 0)) == ["both", "unit"]
    assert whole(lists.with_flags(UNIT_SUB, 0)) == ["both", "sub"]
    assert whole(lists.with_flags(UNIT_SUB, UNIT)) == ["sub"]


def test_only_the_first_queue_data_of_a_topic_decides_on_its_flags(fleet: Fleet, lists: TopicLists) -> None:
    fleet.register(B, topics=[flagged("T1", UNIT), flagged("T2", 0)], name="broker-b")
    fleet.register(A, topics=[flagged("T1", 0), flagged("T2", UNIT)], name="broker-a")
    assert whole(lists.with_flags(UNIT, 0)) == ["T2"]
    fleet.unregister(A)
    assert whole(lists.with_flags(UNIT, 0)) == ["T1"]


def test_system_topics_are_clusters_and_groups_each_once(fleet: Fleet, lists: TopicLists) -> None:
    fleet.register(A, name="broker-b", cluster="c2", topics=())
    fleet.register(B, name="broker-a", cluster="c2", topics=())
    fleet.register(A, name="broker-a", cluster="c1", topics=())
    fleet.register(C, name="c1", cluster="c1", topics=())
    assert whole(lists.system()) == ["broker-a", "broker-b", "c1", "c2"]


def test_the_broker_that_knows_more_system_topics_is_the_lowest_of_the_first_group(
    fleet: Fleet, lists: TopicLists
) -> None:
    assert lists.broker_addr() is None
    fleet.register(B, 1, name="broker-b")
    fleet.register(C, 0, name="broker-a")
    assert lists.broker_addr() == B
    fleet.register(A, 0, name="broker-b")
    assert lists.broker_addr() == A


def test_a_filter_passes_over_topics_that_go_while_it_is_read(fleet: Fleet, lists: TopicLists) -> None:
    names = [f"{number:05}" for number in range(2 * FEW)]
    fleet.register(A, topics=[flagged(name, UNIT) for name in names])
    fleet.register(B, topics=[flagged(names[0], UNIT)], name="broker-b")
    lists.names().get()  # sorts the names, so that the first breath is one of the filter
    read, breath = lists.with_flags(UNIT, 0), AtBreath(0, lambda: fleet.unregister(A))
    with breathing(breath):
        assert read("", len(names)) == names[:FEW]
    assert breath.has_come
    assert whole(lists.with_flags(UNIT, 0)) == names[:1]


def test_a_list_is_of_the_topics_of_its_moment(fleet: Fleet, lists: TopicLists) -> None:
    fleet.register(topics=["b", "c"])
    taken = [lists.all(), lists.with_flags(0, UNIT), lists.of_cluster(CLUSTER)]
    fleet.register_topic("a", {BrokerKey(CLUSTER, "broker-a"): (4, 4, 6, 0)})
    assert [whole(names_after) for names_after in taken] == [["b", "c"]] * 3
    assert whole(lists.all()) == ["a", "b", "c"]


def test_a_filter_stops_where_its_page_is_full(fleet: Fleet, lists: TopicLists) -> None:
    fleet.register(topics=[flagged(f"{number:05}", BOTH) for number in range(2 * FEW)])
    lists.names().get()
    read: list[str] = []
    assert breaths_of(lambda: read.extend(lists.with_flags(UNIT, 0)("00009", 2))) == 0
    assert read == ["00010", "00011"]
