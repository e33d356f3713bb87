"""Loading a snapshot: routes stay the same, no broker is confirmed, and rows that do not fit together are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from namesrv_api.v1 import route_data_pb2, route_service_pb2

from namesrv.core.changes import Cause
from namesrv.core.model import (
    BrokerKey,
    BrokerLiveInfo,
    DataVersion,
    Doubt,
    HoldKey,
    Intent,
    IntentKey,
    IntentKind,
    IntentTable,
    LiveKey,
    RemovalReason,
)
from namesrv.core.operator_changes import IntentsChange
from namesrv.core.policy import Behaviour
from namesrv.core.snapshot_load import UnusableSnapshot
from tests.support.core_fleet import CLUSTER, HA, VERSION, A, B, Fleet
from tests.support.state_changes import apply_now

GROUP = BrokerKey(CLUSTER, "broker-a")
CAUSE = Cause("test")

Message = route_service_pb2.StreamRouteSnapshotResponse
Damage = Callable[[list[Message]], object]


def saved(fleet: Fleet) -> list[bytes]:
    return list(fleet.state.snapshot().messages())


def restarted(before: Fleet, intents: IntentTable | None = None) -> Fleet:
    """The name server after a restart, with what it has on disk."""
    after = Fleet(before.state.behaviour)
    after.state.intents = before.state.intents if intents is None else intents
    after.state.kv_config = before.state.kv_config
    after.state.load_snapshot(saved(before))
    return after


def intent(kind: IntentKind, key: IntentKey) -> Intent:
    return Intent(kind, key, "ops", 1)


def decide(fleet: Fleet, *intents: Intent) -> None:
    apply_now(IntentsChange(fleet.state, IntentTable.of(intents), CAUSE))


def routes(fleet: Fleet, *, doubted: bool = False) -> dict[str, bytes]:
    """All routes; with ``doubted``, as they are if nobody has confirmed anything."""
    encoded = {}
    for topic in fleet.topics:
        route = fleet.route(topic)
        assert route is not None
        for group in route.broker_datas if doubted else ():
            group.unconfirmed_broker_ids[:] = sorted(member.broker_id for member in group.broker_addrs)
        encoded[topic] = _in_order(route).SerializeToString(deterministic=True)
    return encoded


def _in_order(route: route_data_pb2.TopicRouteData) -> route_data_pb2.TopicRouteData:
    """Filter servers of one group are in the order in which its brokers came, which a snapshot does not keep."""
    route.filter_servers.sort(key=lambda filters: filters.broker_addr)
    return route


_ADDRS = {f"10.0.0.{number}:10911": (name, number % 3) for number, name in enumerate(["a", "a", "a", "b", "b", "c"])}
_NUMBERS = st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from([0, 2, 4, 6, 7]), st.integers(0, 3))
_TOPICS = st.lists(
    st.tuples(st.sampled_from(["T1", "T2", "T3", "T4"]), _NUMBERS), max_size=4, unique_by=lambda config: config[0]
)
_BROKER = st.fixed_dictionaries(
    {
        "addr": st.sampled_from(sorted(_ADDRS)),
        "cluster": st.sampled_from(["c1", "c2"]),
        "topics": _TOPICS,
        "version": st.builds(DataVersion, st.integers(0, 9), st.integers(0, 9)),
        "ha": st.sampled_from([None, HA]),
        "filter_servers": st.sampled_from([None, (), ("f:1", "f:2")]),
        "timeout_seconds": st.sampled_from([None, 0.5, 30.0, 1_000.0]),
        "zone_name": st.sampled_from([None, "", "z"]),
        "enable_acting_master": st.sampled_from([None, False, True]),
    }
)
_GROUPS = st.builds(BrokerKey, st.sampled_from(["c1", "c2"]), st.sampled_from(["a", "b"]))
_HOLDS = st.builds(HoldKey, st.sampled_from(["T1", "T2"]), st.sampled_from([None, "c1"]))
_INTENTS = st.lists(
    st.builds(intent, st.sampled_from([IntentKind.WIPE_WRITE_PERM, IntentKind.ADD_WRITE_PERM]), _GROUPS)
    | st.builds(intent, st.just(IntentKind.TOPIC_HOLD), _HOLDS),
    max_size=3,
)


@given(brokers=st.lists(_BROKER, max_size=8), intents=_INTENTS, gone=st.integers(0, 3))
def test_after_a_restart_every_route_is_what_it_was_but_for_who_is_confirmed(
    brokers: list[dict[str, Any]], intents: list[Intent], gone: int
) -> None:
    before = Fleet(Behaviour(support_acting_master=True, mass_loss_percent=100))
    for broker in brokers:
        name, broker_id = _ADDRS[broker["addr"]]
        before.clock.advance(1)
        before.register(name=name, broker_id=broker_id, **broker)
    decide(before, *intents)
    for live in list(before.state.tables.broker_live_table.values())[:gone]:
        before.unregister(live.broker_addr, name=live.broker.broker_name, cluster=live.broker.cluster_name)

    after = restarted(before)
    assert routes(after) == routes(before, doubted=True)
    old, new = before.state.tables, after.state.tables
    assert new.broker_live_table.keys() == old.broker_live_table.keys() == after.state.unconfirmed.keys()
    assert after.state.index.cluster_addr_table == before.state.index.cluster_addr_table
    assert new.filter_server_table == old.filter_server_table
    assert {key: (group.addrs, group.write) for key, group in new.broker_addr_table.items()} == {
        key: (group.addrs, group.write) for key, group in old.broker_addr_table.items()
    }
    assert after.state.revision == 0
    assert len(after.state.change_log) == 0

    again = restarted(after)
    assert routes(again) == routes(after), "what is loaded is written as it was"
    assert again.state.tables.broker_live_table == after.state.tables.broker_live_table


def test_a_loaded_broker_is_marked_as_unconfirmed_in_its_route_its_group_and_its_row() -> None:
    before = Fleet()
    before.register(A, ha=HA, timeout_seconds=30, channel_id=before.heartbeats.open_channel())
    before.register(B, 1)
    after = restarted(before)
    route = after.route()
    assert route is not None
    assert list(route.broker_datas[0].unconfirmed_broker_ids) == [0, 1]
    live = after.state.tables.broker_live_table[LiveKey(CLUSTER, A)]
    assert live == BrokerLiveInfo(GROUP, 0, A, HA, VERSION, None, generation=1, timeout_seconds=30, unconfirmed=True)
    assert set(after.state.unconfirmed.values()) == {Doubt.SNAPSHOT_FILE}


def test_what_is_known_of_the_last_sign_of_life_is_from_before_the_restart() -> None:
    before = Fleet()
    before.register(A)
    before.clock.advance(50)
    after = restarted(before)
    assert after.state.snapshot().last_seen == before.state.snapshot().last_seen


def test_generations_go_on_after_the_largest_loaded() -> None:
    before = Fleet()
    for _ in range(5):
        before.register(A)
    before.register(B, 1)
    assert restarted(before).register(A).generation == 7


def test_the_guard_does_not_hold_a_loaded_fleet_that_never_comes_back() -> None:
    before = Fleet()
    for number in range(10):
        before.register(f"10.0.0.{number}:10911", name=f"broker-{number}")
    after = restarted(before)
    after.clock.advance(121)
    assert {gone.reason for gone in after.scan()} == {RemovalReason.EXPIRED}
    assert after.topics == set()


def test_loaded_brokers_that_expire_do_not_make_the_guard_trip_over_the_few_that_came_back() -> None:
    before = Fleet()
    for number in range(10):
        before.register(f"10.0.0.{number}:10911", name=f"broker-{number}")
    after = restarted(before)
    channels = {}
    for number in range(4):
        channels[number] = after.heartbeats.open_channel()
        after.register(f"10.0.0.{number}:10911", name=f"broker-{number}", channel_id=channels[number])
    after.clock.advance(119)
    for number in range(4):
        after.query(f"10.0.0.{number}:10911", name=f"broker-{number}")
    after.clock.advance(2)
    assert len(after.scan()) == 6
    assert [gone.reason for gone in after.end_channel(channels[0])] == [RemovalReason.CHANNEL_CLOSED]


def test_an_empty_snapshot_loads_as_nothing() -> None:
    loaded = Fleet().state.load_snapshot(saved(Fleet()))
    assert (loaded.live, loaded.topic_count) == ({}, 0)


# What does not fit together


def chunk(messages: list[Message]) -> route_service_pb2.SnapshotChunk:
    return messages[1].chunk


def row_with_two_groups(messages: list[Message]) -> route_service_pb2.TopicQueues:
    return next(row for row in chunk(messages).topics if len(row.queue_datas) == 2)


def without_the_last_group(messages: list[Message]) -> None:
    chunk(messages).broker_datas.pop()
    row_with_two_groups(messages).queue_datas.pop()
    messages[-1].snapshot_end.queue_data_count = 2


DAMAGES: dict[str, Damage] = {
    "does not start with a header": lambda messages: messages.pop(0),
    "end marker is missing": lambda messages: messages.pop(),
    "follows the end marker": lambda messages: messages.append(messages[-1]),
    "neither a chunk nor the end": lambda messages: messages.insert(1, messages[0]),
    "counts 2 clusters": lambda messages: chunk(messages).clusters.pop(),
    "counts 2 topics, and there are 1": lambda messages: chunk(messages).topics.pop(),
    "counts 3 queue datas": lambda messages: row_with_two_groups(messages).queue_datas.pop(),
    "counts 3 live brokers": lambda messages: chunk(messages).live_brokers.pop(),
    "counts 2 broker groups": without_the_last_group,
    "name other broker groups": lambda messages: chunk(messages).clusters[0].broker_names.append("other"),
    "there twice": lambda messages: chunk(messages).topics.append(chunk(messages).topics[0]),
    "broker_name='broker-a') is there twice": lambda messages: chunk(messages).broker_datas.append(
        chunk(messages).broker_datas[0]
    ),
    "has no members": lambda messages: chunk(messages).broker_datas[0].ClearField("broker_addrs"),
    "other members than there are live": lambda messages: chunk(messages).broker_datas[0].broker_addrs.pop(),
    "filter servers of no live broker": lambda messages: chunk(messages).filter_servers.add(broker_addr=A),
    "has no queues": lambda messages: chunk(messages).topics[0].ClearField("queue_datas"),
    "which is no broker group": lambda messages: chunk(messages).topics[0].queue_datas.add(broker_name="x"),
    "not in the order of their groups": lambda messages: (
        chunk(messages).topics[0].queue_datas.append(chunk(messages).topics[0].queue_datas[0])
    ),
}


def damaged(damage: Damage) -> Iterable[bytes]:
    fleet = Fleet()
    fleet.register(A, topics=["T1", "T2"])
    fleet.register(B, 1, filter_servers=("f:1",))
    fleet.register("10.0.0.3:10911", topics=["T1"], name="broker-b", cluster="other")
    messages = [Message.FromString(message) for message in saved(fleet)]
    damage(messages)
    return [message.SerializeToString() for message in messages]


@pytest.mark.parametrize("problem", DAMAGES)
def test_rows_that_do_not_fit_together_are_refused_as_a_whole(problem: str) -> None:
    fleet = Fleet()
    with pytest.raises(UnusableSnapshot) as refused:
        fleet.state.load_snapshot(damaged(DAMAGES[problem]))
    assert problem in str(refused.value)
    assert saved(fleet) == saved(Fleet())
    fleet.register(A)
    assert fleet.topics == {"TopicTest"}


def test_what_is_no_message_is_refused_as_a_whole() -> None:
    fleet = Fleet()
    with pytest.raises(UnusableSnapshot, match="cannot be parsed"):
        fleet.state.load_snapshot([*saved(fleet)[:1], b"\xff"])
    assert saved(fleet) == saved(Fleet())
