"""Lists of topics: what is in them, in pages, and what changes while they are read."""

from __future__ import annotations

import pytest

from namesrv.core.lists import UNIT, NamesAfter, TopicLists
from namesrv.core.model import BrokerKey
from namesrv.core.pace import FEW
from tests.support.core_fleet import CLUSTER, A, B, Fleet
from tests.support.yield_points import AtYieldPoint, yielding

C = "127.0.0.1:30911"


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


def test_an_unknown_cluster_has_no_topics(fleet: Fleet, lists: TopicLists) -> None:
    assert whole(lists.of_cluster("c1")) == []
    fleet.register(cluster="c1")
    assert whole(lists.of_cluster("c2")) == []


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
    lists.names().get()  # sorts the names, so that the first yield point is one of the filter
    read, yield_point = lists.with_flags(UNIT, 0), AtYieldPoint(0, lambda: fleet.unregister(A))
    with yielding(yield_point):
        assert read("", len(names)) == names[:FEW]
    assert yield_point.has_come
    assert whole(lists.with_flags(UNIT, 0)) == names[:1]


def test_a_list_is_of_the_topics_of_its_moment(fleet: Fleet, lists: TopicLists) -> None:
    fleet.register(topics=["b", "c"])
    taken = [lists.all(), lists.with_flags(0, UNIT), lists.of_cluster(CLUSTER)]
    fleet.register_topic("a", {BrokerKey(CLUSTER, "broker-a"): (4, 4, 6, 0)})
    assert [whole(names_after) for names_after in taken] == [["b", "c"]] * 3
    assert whole(lists.all()) == ["a", "b", "c"]
