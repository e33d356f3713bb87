"""Snapshots: they stand still, share rows, and have each field. One is loaded as a whole, or refused as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import Phase, find, settings
from namesrv_api.v1 import route_service_pb2
from namesrv_api.v1.route_data_pb2 import BrokerAddr

from namesrv.core.model import (
    BrokerData,
    BrokerKey,
    BrokerLiveInfo,
    DataVersion,
    LiveKey,
    Member,
    Registration,
    StaticMapping,
)
from namesrv.core.registrations import BrokerRegistration
from namesrv.core.snapshot import RouteSnapshot, UnusableSnapshot
from tests.support.core_fleet import CLUSTER, HA, VERSION, A, B, Fleet
from tests.support.state_changes import apply_now
from tests.unit.namesrv.reference_inputs import PARTIAL_REGISTRATIONS, REGISTRATIONS
from tests.unit.namesrv.scenarios.groups import GROUP, lift_all, wipe

Message = route_service_pb2.StreamRouteSnapshotResponse
Damage = Callable[[list[Message]], object]


def test_snapshots_of_one_revision_share_the_tables_and_stay_as_they_are(fleet: Fleet) -> None:
    fleet.register()
    wipe(fleet)
    taken, other = fleet.state.snapshot(), fleet.state.snapshot()
    assert taken.tables is other.tables
    before = list(taken.messages())
    lift_all(fleet)
    fleet.register(topics=["T1"], version=DataVersion(2_000, 2))
    fleet.register(B, 1)
    assert list(taken.messages()) == before


def test_a_registration_that_says_nothing_new_leaves_the_row_of_its_group(fleet: Fleet) -> None:
    fleet.register(A, ha=HA, zone_name="z", enable_acting_master=True)
    before = fleet.state.tables.broker_addr_table[GROUP]
    for zone_name, acting in (("z", True), (None, None)):
        assert not fleet.register(A, ha=HA, zone_name=zone_name, enable_acting_master=acting).changed
        assert fleet.state.tables.broker_addr_table[GROUP] is before


def test_queue_data_of_many_topics_is_shared(fleet: Fleet) -> None:
    fleet.register(topics=[f"t{number}" for number in range(100)])
    assert len({id(queues[0]) for queues in fleet.state.tables.topic_queue_table.values()}) == 1


# Loading


def saved(fleet: Fleet) -> list[bytes]:
    return list(fleet.state.snapshot().messages())


def test_what_is_known_of_the_last_sign_of_life_is_from_before_the_restart() -> None:
    before = Fleet()
    before.register(A)
    before.clock.advance(50)
    after = Fleet()
    after.state.load_snapshot(saved(before))
    assert after.state.snapshot().last_seen == before.state.snapshot().last_seen


def test_generations_go_on_after_the_largest_loaded() -> None:
    before, after = Fleet(), Fleet()
    for _ in range(5):
        before.register(A)
    before.register(B, 1)
    after.state.load_snapshot(saved(before))
    assert after.register(A).generation == 7


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


# Every field of a registration, a group and a live broker: a change of it shows, and it survives a restart.

FIRST = Registration(
    BrokerKey(CLUSTER, "broker-a"), 2, A, VERSION, {"T": (4, 4, 6, 0)}, topic_by_topic=True, enable_acting_master=False
)
"""A slave that says nothing else yet, and whose topics are always read."""

CHANGED: dict[str, Any] = {
    "broker": BrokerKey(CLUSTER, "broker-b"),
    "broker_id": 1,
    "broker_addr": B,
    "data_version": DataVersion(2, 2),
    "topic_configs": {"T": (8, 4, 6, 0)},
    "ha_server_addr": HA,
    "filter_servers": ("10.0.0.1:1",),
    "zone_name": "z",
    "enable_acting_master": True,
    "labels": (("rack", "r1"),),
    "timeout_seconds": 7.0,
    "topic_by_topic": False,
    "mappings": {"T": StaticMapping("__global__", 8, 1, False, ((0, 0),))},
}
NOT_SHOWN = {"channel_id", "base_version", "table_fingerprint"}
"""Fields that tell the name server how to take a registration."""

RENEWED = {"channel_id", "generation"}
"""Fields of a live broker that change with each registration and that no reader sees."""

UNTIL_CONFIRMED = {"unconfirmed"}
"""Fields that a restart changes."""


def register(fleet: Fleet, registration: Registration) -> None:
    apply_now(BrokerRegistration(fleet.state, registration))


def compared(row: BrokerData | BrokerLiveInfo) -> dict[str, Any]:
    passing = RENEWED | UNTIL_CONFIRMED
    if isinstance(row, BrokerData):
        row = replace(row, members=tuple(member._replace(unconfirmed=False) for member in row.members))
    return {each.name: getattr(row, each.name) for each in fields(row) if each.compare and each.name not in passing}


def shown(snapshot: RouteSnapshot) -> object:
    tables = snapshot.tables
    groups = [(group, group.filter_fragment) for group in tables.broker_addr_table.values()]
    return dict(tables.topic_queue_table), groups, [compared(live) for live in tables.broker_live_table.values()]


def test_every_field_of_a_registration_is_here() -> None:
    assert CHANGED.keys() | NOT_SHOWN == {each.name for each in fields(Registration)}
    assert {field.name for field in BrokerAddr.DESCRIPTOR.fields} == set(Member._fields) - UNTIL_CONFIRMED


@pytest.mark.parametrize("name", CHANGED)
def test_the_reference_model_is_tried_with_every_field(name: str) -> None:
    drawn = REGISTRATIONS | PARTIAL_REGISTRATIONS
    first_found = settings(phases=[Phase.generate], database=None)
    find(drawn, lambda one: getattr(one, name) != getattr(FIRST, name), settings=first_found)


@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_field_is_a_change_and_survives_a_restart(name: str) -> None:
    fleet, restarted = Fleet(), Fleet()
    register(fleet, FIRST)
    first = fleet.state.snapshot()
    register(fleet, replace(FIRST, **{name: CHANGED[name]}))

    assert fleet.state.revision == first.revision + 1, "a reader of the changes sees it"
    snapshot = fleet.state.snapshot()
    assert shown(first) != shown(snapshot)
    restarted.state.load_snapshot(snapshot.messages())
    tables, loaded = fleet.state.tables, restarted.state.tables
    assert dict(loaded.topic_queue_table) == dict(tables.topic_queue_table)
    assert loaded.filter_server_table == tables.filter_server_table
    for table, loaded_table in (
        (tables.broker_addr_table, loaded.broker_addr_table),
        (tables.broker_live_table, loaded.broker_live_table),
    ):
        assert {key: compared(row) for key, row in loaded_table.items()} == {
            key: compared(row) for key, row in table.items()
        }


@pytest.mark.parametrize("name", [each.name for each in fields(BrokerLiveInfo) if each.init])
def test_a_live_broker_is_the_same_only_if_it_was_renewed(name: str) -> None:
    fleet = Fleet()
    register(fleet, FIRST)
    live = fleet.state.tables.broker_live_table[LiveKey(CLUSTER, A)]
    other: Any = BrokerKey("other", "other") if name == "broker" else object()
    assert live.same_but_renewed(replace(live, **{name: other})) is (name in RENEWED)
