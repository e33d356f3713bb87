"""Looking brokers' addresses up in the kept routes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from route_client.cache import BrokerAddrTable, any_broker_of
from route_client.route import TopicRoute
from tests.support.routes.wire_routes import CLUSTER, addr, route


@pytest.fixture
def table() -> BrokerAddrTable:
    filled = BrokerAddrTable()
    for kept in (TopicRoute(), route("broker-a", ids=(0, 2)), route("broker-b", ids=(1, 2))):
        filled.replace(None, kept)
    return filled


def test_scenario_79_the_next_id_stands_in_for_a_missing_slave_and_a_missing_group_is_none(
    table: BrokerAddrTable,
) -> None:
    found = table.find_in_subscribe("broker-a", 1)
    assert found == (addr("broker-a", 2), 2)
    assert found is not None
    assert found.slave
    assert table.find_in_subscribe("nobody", 1) is None


def test_the_broker_wanted_is_taken_if_it_is_there(table: BrokerAddrTable) -> None:
    assert table.find_in_subscribe("broker-a", 0) == (addr("broker-a", 0), 0)
    assert table.find_in_subscribe("broker-a", 2) == (addr("broker-a", 2), 2)


def test_any_other_of_the_group_stands_in_unless_only_this_one_will_do(table: BrokerAddrTable) -> None:
    assert table.find_in_subscribe("broker-b", 0) == (addr("broker-b", 1), 1)
    assert table.find_in_subscribe("broker-a", 7) == (addr("broker-a", 0), 0)
    assert table.find_in_subscribe("broker-b", 0, only_this_broker=True) is None
    assert table.find_in_subscribe("broker-a", 1, only_this_broker=True) == (addr("broker-a", 2), 2)


def test_messages_are_sent_to_the_master_only(table: BrokerAddrTable) -> None:
    assert table.find_in_publish("broker-a") == addr("broker-a", 0)
    assert table.find_in_publish("broker-b") is None
    assert table.find_in_publish("broker-a", CLUSTER) == addr("broker-a", 0)
    assert table.find_in_publish("broker-a", "OtherCluster") is None


def test_the_route_that_changed_last_has_the_addresses(table: BrokerAddrTable) -> None:
    table.replace(None, route("broker-b", ids=(0, 1)))
    assert table.find_in_publish("broker-b") == addr("broker-b")


@given(st.lists(st.tuples(st.integers(0, 3), st.sets(st.sampled_from("abc"))), max_size=30))
@settings(deadline=None)
def test_the_table_has_the_groups_of_the_kept_routes_and_no_others(steps: list[tuple[int, set[str]]]) -> None:
    table, kept = BrokerAddrTable(), dict[int, TopicRoute]()
    for topic, names in steps:
        new = route(*sorted(names)) if names else None
        table.replace(kept.pop(topic, None), new)
        if new is not None:
            kept[topic] = new
    named = {group.broker_name for told in kept.values() for group in told.broker_datas}
    assert {name for name in "abc" if table.find_in_publish(name) is not None} == named


def test_a_group_s_consumers_are_asked_for_at_any_broker_rather_a_master() -> None:
    rng = random.Random(0)
    two = route("broker-a", "broker-b")
    assert {any_broker_of(two, rng) for _ in range(50)} == {addr("broker-a"), addr("broker-b")}
    assert any_broker_of(route("broker-b", ids=(1, 2)), rng) == addr("broker-b", 1)
    assert any_broker_of(route(ids=()), rng) is None
